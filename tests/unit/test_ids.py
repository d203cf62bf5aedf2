"""Content ids depend on content alone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnspec.ids import content_id

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=5), json_values, max_size=5), st.randoms())
def test_key_order_does_not_matter(content, random):
    keys = list(content)
    random.shuffle(keys)
    assert content_id("x", {key: content[key] for key in keys}) == content_id("x", content)


def test_kind_and_content_matter():
    assert (
        len({content_id("a", 1), content_id("b", 1), content_id("a", 2), content_id("a", "1"), content_id("a", True)})
        == 5
    )


def test_a_golden_id_guards_the_function():
    assert content_id("case", {"b": [1, "é", None], "a": {"y": False}}) == "217eb6b7e3b7522e"


@pytest.mark.parametrize("hash_seed", ["0", "1", "random"])
def test_same_in_another_process(hash_seed):
    code = "from attnspec.ids import content_id; print(content_id('x', {'b': 1, 'a': ['q', 2]}))"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert other.stdout.strip() == content_id("x", {"a": ["q", 2], "b": 1})


def test_not_a_number_is_refused():
    with pytest.raises(ValueError, match="not JSON compliant"):
        content_id("x", float("nan"))
