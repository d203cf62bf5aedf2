"""What is said about a spec in which everything is wrong, word for word."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnspec.errors import SpecError
from attnspec.spec import load_spec

SPECS = Path(__file__).parent / "specs"


@pytest.mark.usefixtures("toys")
def test_every_problem_of_a_bad_spec_word_for_word(monkeypatch):
    # The names of real kernels and masks change as plug-ins are added.
    monkeypatch.setattr("attnspec.catalog.names", _names)
    monkeypatch.chdir(SPECS)
    with pytest.raises(SpecError) as caught:
        load_spec("bad.yaml")
    assert f"{caught.value}\n" == (SPECS / "bad.txt").read_text()


def _names(kind: str) -> tuple[str, ...]:
    return {
        "masks": ("full", "sliding_window_causal", "varlen_block_causal"),
        "kernels": ("toy_kernel", "toy_plain"),
        "strategies": ("toy_bound", "toy_ring"),
    }[kind]
