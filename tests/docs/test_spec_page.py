"""What the page on specs says of its two examples holds: they are valid and complete, their labels and ids as told."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from attnspec.cli.main import exit_code
from attnspec.drawing.look import labelled
from attnspec.plan.compile import compile_spec
from attnspec.plan.rows import base_rows
from attnspec.record.schema import Cell, to_table
from attnspec.sample.reading import read_lengths
from attnspec.spec import load_spec
from attnspec.spec.models import DEFAULT_NUM_PACKS, Data, MeasureSection, ShapeSection, Spec
from attnspec.spec.schema import json_schema
from attnspec.spec.sweeps import LEVELS
from attnspec.spec.yaml_text import parse_yaml

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/spec.md").read_text()
EXAMPLES = dict(zip(LEVELS, re.findall(r"^```yaml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE), strict=True))
CHANGES = re.findall(r"^\| `([^`]+=[^`]*)` \| ([a-z, ]+) \|", PAGE, re.MULTILINE)
READMES = re.findall(r"^```yaml\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture
def example(tmp_path):
    def written(level: str) -> Path:
        path = tmp_path / f"{level}.yaml"
        path.write_text(EXAMPLES[level])
        return path

    return written


def plan(path: Path, *overrides: str):
    spec = load_spec(path, overrides)
    return compile_spec(spec, read_lengths(spec.data.lengths))


@pytest.mark.parametrize("level", LEVELS)
def test_an_example_is_valid(level, example, capsys):
    assert exit_code(["validate", str(example(level))]) == 0
    assert [sweep.level for sweep in load_spec(example(level)).sweeps] == [level]
    jsonschema.Draft202012Validator(json_schema()).validate(parse_yaml(EXAMPLES[level]).value)


@pytest.mark.parametrize("text", READMES)
def test_the_readmes_spec_is_valid(text, tmp_path, capsys):
    (tmp_path / "readme.yaml").write_text(text)
    assert exit_code(["validate", str(tmp_path / "readme.yaml")]) == 0


def test_the_examples_show_every_field():
    kernel, distributed = (parse_yaml(text).value for text in EXAMPLES.values())
    assert set(kernel) == set(Spec.about())
    for key, section in (("shape", ShapeSection), ("data", Data), ("measure", MeasureSection)):
        assert set(kernel[key]) == set(section.about()), key
    for level, spec in zip(LEVELS.values(), (kernel, distributed), strict=True):
        assert set(spec["sweeps"][0]) == set(level.about())


def test_the_kernel_example_writes_defaults():
    written: dict[str, Any] = parse_yaml(EXAMPLES["kernel"]).value
    (sweep,) = written["sweeps"]
    required = {
        "attnspec": written["attnspec"],
        "name": written["name"],
        "shape": {key: value for key, value in written["shape"].items() if key not in ("batch", "dtype")},
        "sweeps": [{key: value for key, value in sweep.items() if key != "passes"}],
    }
    full, short = (Spec.model_validate(one).canonical() for one in (written, required))
    num_packs = {"num_packs": DEFAULT_NUM_PACKS["kernel"]}
    assert full == {**short, "description": full["description"], "data": {**short["data"], **num_packs}}


def test_the_default_number_of_packs_is_told():
    kernel, distributed = DEFAULT_NUM_PACKS.values()
    assert f"has {distributed} packs here, not {kernel}." in PAGE
    assert (
        f"by default {kernel} at the kernel level, {distributed} at the distributed level" in Data.about()["num_packs"]
    )


def test_the_labels_are_those_of_the_examples(example):
    told = set(re.findall(r"`([^`]+)`", re.sub(r"\s+", " ", PAGE.partition("## Labels")[2].partition("\n## ")[0])))
    told = {text for text in told if " " in text} - {"strategy (kernel ...)"}
    assert len(told) == 7
    for level in LEVELS:
        rows = to_table(Cell, list(base_rows(plan(example(level))))).to_pylist()
        told -= {label for label, _ in labelled(rows)}
    assert told == set()


def test_the_ids_change_as_the_page_says(example):
    before = {case.case_id for case in plan(example("kernel")).cases}
    assert len(CHANGES) == 15
    for change, told in CHANGES:
        after = {case.case_id for case in plan(example("kernel"), change).cases}
        found = {
            after == before: "same",
            before < after: "same, and more",
            before.isdisjoint(after): "new",
        }.get(True, "some new")
        assert found == told, change
