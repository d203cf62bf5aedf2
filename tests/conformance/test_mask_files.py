"""What every mask file must be, whoever wrote it. Runs over all that are found; a new file needs no entry here.

That a mask's slices are its definition is tested in tests/property/test_masks.py, where each has its own predicate.
"""

import dataclasses
import subprocess
import sys
import typing

import numpy as np
import pytest

from attnspec import plugins
from attnspec.masks import make_slices, seqlen_k_of
from attnspec.params import info
from attnspec.slices import AttnSlices, area, check, dense

NAMES = plugins.names("masks")
PACKS = ([1], [7], [3, 4, 5], [0, 2, 0, 9, 0], [1, 1, 1, 1], [16, 1, 16], [64])


def params_of(module):
    """Params with a small number for each that needs one, and an empty list for each that needs rows."""
    hints = typing.get_type_hints(module.Params)
    required = [field for field in dataclasses.fields(module.Params) if field.default is dataclasses.MISSING]
    return module.Params(**{field.name: 3 if hints[field.name] is int else () for field in required})


@pytest.mark.parametrize("name", NAMES)
def test_a_mask_file_says_what_it_is(name):
    module = plugins.load("masks", name)
    assert module.__doc__.startswith(f"{name}: ")
    assert "Source:" in module.__doc__
    assert type(module.USES_DOCUMENTS) is bool
    assert dataclasses.is_dataclass(module.Params)
    assert module.Params.__dataclass_params__.frozen
    assert all(info(field).doc for field in dataclasses.fields(module.Params))


@pytest.mark.parametrize("docs", PACKS, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_a_mask_makes_disjoint_slices_inside_the_sequence_and_the_same_each_time(name, docs):
    module = plugins.load("masks", name)
    docs = docs if module.USES_DOCUMENTS else [sum(docs)]
    params = params_of(module)
    made = make_slices(module, params, docs, sum(docs))
    assert isinstance(made, AttnSlices)
    assert (made.seqlen_q, made.seqlen_k) == (sum(docs), seqlen_k_of(params, sum(docs)))
    assert (made.ranges.dtype, made.types.dtype) == (np.int64, np.int8)
    check(made)
    assert area(made) == dense(made).sum()
    assert made.rows() == make_slices(module, params, np.array(docs, dtype=np.int32), sum(docs)).rows()


@pytest.mark.parametrize("name", [name for name in NAMES if plugins.load("masks", name).USES_DOCUMENTS])
def test_a_mask_of_documents_depends_on_them(name):
    module = plugins.load("masks", name)
    pictures = [dense(make_slices(module, params_of(module), docs, 12)) for docs in ([12], [3, 4, 5], [6, 3, 3])]
    assert not np.array_equal(pictures[1], pictures[2])
    assert pictures[0].sum() >= max(picture.sum() for picture in pictures[1:])


def test_masks_import_neither_torch_nor_what_only_the_host_has():
    blocked = ("torch", "pyarrow", "pydantic", "networkx", "yaml", "click", "rich", "matplotlib")
    program = (
        "import sys\n"
        f"for name in {blocked!r}: sys.modules[name] = None\n"
        "from attnspec import plugins\n"
        "for name in plugins.names('masks'): plugins.load('masks', name)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
