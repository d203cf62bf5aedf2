"""Reading specs: any text gives a spec or problems with places; what a spec means does not depend on how it is written."""

from __future__ import annotations

import copy
import json
import random
import string
from pathlib import Path

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from attnspec import catalog
from attnspec.catalog.params import checked, params_schema
from attnspec.errors import Problem, SpecError
from attnspec.spec import Spec, load_spec
from attnspec.spec.overrides import apply_override
from attnspec.spec.schema import json_schema
from attnspec.spec.yaml_text import parse_yaml
from attnspec.units import format_count

TEXTS = st.text(st.characters(exclude_categories=("Cs", "Cc", "Cn", "Zl", "Zp")), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)

SPEC = {
    "attnspec": 1,
    "name": "small",
    "runner": "local",
    "seed": 7,
    "shape": {"batch": 1, "num_heads_q": 8, "num_heads_kv": 2, "head_dim": 64, "dtype": "float32"},
    "data": {"lengths": "page", "max_doc_fraction": "1/4", "num_packs": 2},
    "sweeps": [
        {
            "level": "kernel",
            "masks": ["full", {"sliding_window_causal": {"window": 1024}}, {"prefix_lm_causal": {"prefix": 512}}],
            "seqlen": [1024, 2048],
            "passes": ["fwd", "bwd"],
            "kernels": ["reference", {"sdpa": {"backend": "math", "env": {"A": "1", "B": "2"}}}],
            "exclude": [{"masks": ["full"], "seqlen": [2048], "kernels": [{"sdpa": {"backend": "math"}}]}],
        }
    ],
    "measure": {"min_iters": 5, "max_seconds": 1.0},
}


@pytest.fixture(scope="module")
def validator():
    return jsonschema.Draft202012Validator(json_schema())


COUNTS = [
    (kind, name, field)
    for kind in ("masks", "kernels", "strategies")
    for name in catalog.names(kind)
    for field, held in catalog.param_fields(catalog.load(kind, name)).items()
    if held.about.tokens
]


@pytest.mark.parametrize(("kind", "name", "field"), COUNTS)
def test_a_count_is_taken_as_a_number_and_as_text_alike(kind, name, field):
    module = catalog.load(kind, name)
    of_schema = jsonschema.Draft202012Validator(params_schema(module)["properties"][field])

    def taken(value):
        try:
            return checked(module, {field: value}, partial=True)[field]
        except ValidationError:
            return None

    least = catalog.param_fields(module)[field].about.ge
    for count, *texts in ((0, "0", "0K", "0.0M"), (1, "1"), (1024, "1K"), (2**62, str(2**62)), (2**62 + 1,)):
        allowed = count if least <= count <= 2**62 else None
        assert [taken(one) for one in (count, str(count), *texts)] == [allowed] * (len(texts) + 2), count
        assert all(of_schema.is_valid(one) == (allowed is not None) for one in (count, *texts)), count


@given(JSON)
@settings(max_examples=50)
def test_json_is_read_as_json_reads_it(value):
    text = json.dumps(value, ensure_ascii=False)
    document = parse_yaml(text)
    assert document.problems == []
    assert json.dumps(document.value, ensure_ascii=False) == text


@settings(max_examples=50)
@given(st.dictionaries(TEXTS, TEXTS, min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_every_duplicate_key_is_named(content, shuffler):
    keys = [*content, *shuffler.choices(list(content), k=3)]
    text = "".join(f"{json.dumps(key, ensure_ascii=False)}: 1\n" for key in keys)
    problems = parse_yaml(text).problems
    assert len(problems) == 3
    assert all(problem.line is not None and problem.line > len(content) for problem in problems)


@given(st.text() | st.text("[]{}&*!|>'\"%@`:,-?# \n\tab1", max_size=60))
@settings(max_examples=150)
def test_no_text_breaks_the_reader(text):
    document = parse_yaml(text, "f")
    assert document.complete or document.problems
    assert all(problem.message and problem.file == "f" for problem in document.problems)


@given(st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_damaged_spec_gives_problems_with_places(tmp_path, validator, data):
    text = _yaml(SPEC, random.Random(0))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        length = data.draw(st.integers(0, 6))
        text = text[:start] + data.draw(st.text(string.printable, max_size=3)) + text[start + length :]
    file = tmp_path / "damaged.yaml"
    file.write_text(text, newline="")
    spec, problems = _loaded(file)
    assert (spec is None) == bool(problems)
    assert all(one.message and one.file == str(file) for one in problems)
    assert all(one.line is not None or "is empty" in one.message for one in problems)
    if spec is not None:
        assert Spec.model_validate(spec.canonical()) == spec
        # What we take, an editor with the schema takes.
        assert list(validator.iter_errors(parse_yaml(text).value)) == []


@given(st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_the_order_of_keys_and_the_spelling_of_sizes_do_not_matter(shuffler):
    document = parse_yaml(_yaml(SPEC, shuffler))
    assert document.problems == []
    assert Spec.model_validate(document.value).canonical() == Spec.model_validate(SPEC).canonical()


@pytest.mark.parametrize(
    "path", ["shape.head_dim", "sweeps[0].masks[1].sliding_window_causal.window", "sweeps.0.seqlen"]
)
@given(value=JSON)
@settings(max_examples=25)
def test_an_override_is_as_if_the_file_said_so(path, value):
    document = parse_yaml(json.dumps(SPEC))
    apply_override(document, f"{path}={json.dumps(value, ensure_ascii=False)}")
    assert document.problems == []
    expected = copy.deepcopy(SPEC)
    held = expected
    *around, last = path.replace("[", ".").replace("]", "").split(".")
    for part in around:
        held = held[int(part)] if isinstance(held, list) else held[part]
    held[last] = value
    assert json.dumps(document.value) == json.dumps(expected)


def _loaded(file: Path) -> tuple[Spec | None, tuple[Problem, ...]]:
    try:
        return load_spec(file), ()
    except SpecError as error:
        return None, error.problems


def _yaml(value: object, shuffler: random.Random) -> str:
    """Flow style with keys in any order and sizes in either spelling."""
    if isinstance(value, dict):
        items = list(value.items())
        shuffler.shuffle(items)
        return "{" + ", ".join(f"{key}: {_yaml(one, shuffler)}" for key, one in items) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_yaml(one, shuffler) for one in value) + "]"
    if isinstance(value, int) and value >= 512 and shuffler.random() < 0.5:
        return format_count(value)
    return json.dumps(value)
