"""ring-flash-attn and yunchang as they are, over gloo, with a stand-in for flash-attn alone; where they are installed.

Both accumulate gradients in float32, and where inputs are float32 already overwrite what they have added up (`.to` makes
no copy), so inputs are float64 here.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import ModuleType

import numpy as np
import pytest
from ranks import RankPool
from strategy_runs import expected, implementation, mask_slices, put_together
from test_library_strategies import DOCS, PARAMS, TAKES, run_ready

from attnspec.shape import Shape

SHAPE = Shape(batch=1, num_heads_q=8, num_heads_kv=4, head_dim=8, dtype="float64")
LIBRARIES = {
    "ring_flash_attn_zigzag": ("ring_flash_attn", {}),
    "ring_flash_attn_llama3": ("ring_flash_attn", {"heads_k_stride": 2}),
    "yunchang_usp": ("yunchang", {"ulysses_degree": 2}),
}
BFLOAT16_DQ = ("full",)
"""Their ring for full attention gives dq as bfloat16, whatever the inputs are."""


def run_real(ranks, cases):
    from fakes import flash_attention
    from fakes.arithmetic import Log

    if "flash_attn" not in sys.modules:
        flash_attention.install_flash_attn(pytest.MonkeyPatch(), Log())
        sys.modules["flash_attn"].__version__ = "2.8.3"
        sys.modules["flash_attn"].flash_attn_func = None
    if "transformers" not in sys.modules:  # ring-flash-attn's adapter to it is imported with the package
        package, attention, models = (
            ModuleType(name)
            for name in (
                "transformers",
                "transformers.modeling_flash_attention_utils",
                "transformers.modeling_utils",
            )
        )
        package.modeling_flash_attention_utils = attention
        attention.is_flash_attn_greater_or_equal_2_10 = attention._flash_attention_forward = None
        models.ALL_ATTENTION_FUNCTIONS = {}
        sys.modules.update({one.__name__: one for one in (package, attention, models)})
    return run_ready(ranks, SHAPE, cases)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.filterwarnings("ignore")
def test_the_real_library_computes_the_specification(name, size):
    package, params = LIBRARIES[name]
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    masks = [mask for mask, names in TAKES.items() if name in names]
    asked = implementation(name, "fa2", {**params, **({"ulysses_degree": 1} if size == 2 and "usp" in name else {})})
    cases = [(asked, mask_slices(mask, DOCS, **PARAMS.get(mask, {}))) for mask in masks]
    with RankPool(size) as pool:
        of_ranks = pool.run(run_real, cases)
    for number, (mask, (_, slices)) in enumerate(zip(masks, cases, strict=True)):
        wanted = expected(SHAPE, slices)
        for value, found in put_together([results[number] for results in of_ranks], slices).items():
            rounded = value == "dq" and mask in BFLOAT16_DQ and name != "ring_flash_attn_llama3"
            assert np.allclose(found, wanted[value], rtol=0, atol=5e-3 if rounded else 3e-6), (mask, value)
