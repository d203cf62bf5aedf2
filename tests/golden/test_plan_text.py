"""`attnspec plan` on the shipped quickstart: its text and its JSON; and errors of the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attnspec import load_spec
from attnspec.cli.main import exit_code
from attnspec.plan import base_rows, compile_plan
from attnspec.resources import shipped

HERE = Path(__file__).parent
QUICKSTART = str(shipped("specs") / "quickstart.yaml")


@pytest.fixture
def cpu(tmp_path):
    """A runner on the CPU, by path."""
    path = tmp_path / "runners" / "cpu.yaml"
    path.parent.mkdir()
    path.write_text("launcher: local\ndevice: {type: cpu}\n")
    return path


def test_quickstart_on_the_cpu(cpu, capsys, monkeypatch):
    monkeypatch.chdir(cpu.parent.parent)
    assert exit_code(["plan", QUICKSTART, "--runner", "cpu"]) == 0
    assert capsys.readouterr().out == (HERE / "plan_quickstart_cpu.txt").read_text(encoding="utf-8")


def test_the_time_that_is_expected_is_said_to_be_of_timing_alone(cpu, capsys):
    for runner in ("local", str(cpu), "h100"):
        assert exit_code(["plan", QUICKSTART, "--runner", runner]) == 0
        time, rest = capsys.readouterr().out.splitlines()[-2:]
        assert time.startswith("  time    timing alone: ")
        assert rest.startswith("          not estimated: setting up, compiling, verifying and ")


def test_json_is_the_object_of_the_contract(cpu, capsys):
    assert exit_code(["plan", QUICKSTART, "--runner", str(cpu), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert list(said) == ["cases", "nodes", "jobs", "unsupported", "ids"]
    assert (said["cases"], said["jobs"]) == (96, 1)
    assert said["nodes"] == {"sample": 6, "mask": 18, "run": 96, "collect": 1}
    assert {key: len(ids) for key, ids in said["ids"].items()} == said["nodes"]
    assert len(said["unsupported"]) == 12
    for entry in said["unsupported"]:
        assert set(entry) == {"case", "reason"}
        assert entry["case"] in said["ids"]["run"]
        assert entry["reason"].startswith("FlexAttention does not support backward on CPU")


def test_the_ids_do_not_depend_on_the_runner(cpu, capsys):
    ids = []
    for runner in ("local", str(cpu), "h100"):
        assert exit_code(["plan", QUICKSTART, "--runner", runner, "--json"]) == 0
        ids.append(json.loads(capsys.readouterr().out)["ids"])
    assert ids[0] == ids[1] == ids[2]


def test_python_and_the_command_agree(capsys):
    plan = compile_plan(load_spec(QUICKSTART))
    assert exit_code(["plan", QUICKSTART, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ids"]["run"] == [row.case_id for row in base_rows(plan)]


def test_set_and_only(capsys):
    arguments = ["plan", QUICKSTART, "--set", "data.num_packs=3", "--only", "mask=varlen_causal,kernel=sdpa|reference"]
    assert exit_code([*arguments, "--only", "seqlen=1K", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["cases"], said["nodes"]["mask"], said["nodes"]["sample"]) == (4, 1, 1)


@pytest.mark.parametrize("suffix", [".svg", ".dot", ".json"])
def test_graphs_are_written_beside_the_text(suffix, tmp_path, capsys):
    path = tmp_path / f"graph{suffix}"
    assert exit_code(["plan", QUICKSTART, "--graph", str(path), "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["cases"] == 96
    assert said.err == f"wrote {path}\n"
    start = {".svg": "<svg ", ".dot": 'digraph "quickstart" {', ".json": '{"directed": true'}[suffix]
    assert path.read_text(encoding="utf-8").startswith(start)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--graph", "x.png"], "--graph: got x.png; allowed: a file ending in .svg, .dot, .json"),
        (["--graph", "x.svgg"], "--graph: got x.svgg (did you mean '.svg'?); allowed"),
        (["--graph", "nowhere/x.svg"], "--graph: nowhere/x.svg cannot be written: No such file or directory"),
        (
            ["--only", "kernel=spda"],
            "--only: no case has kernel=spda (did you mean 'sdpa'?); allowed: reference, sdpa, flex",
        ),
        (["--runner", "locl"], "unknown runner 'locl' (did you mean 'local'?); allowed: b200, "),
        (["--set", "runner=h10"], "--set runner=h10: runner: unknown runner 'h10' (did you mean 'h100'?)"),
        (
            ["--set", "data.max_doc_fraction=1/100000"],
            "sweeps[0].masks[2]: varlen_full at 256 tokens: max_doc_fraction: 1/100000 of a seqlen of 256 is less than",
        ),
        (["--set", "data.num_packs=2000000000"], "data.num_packs: got 2000000000; page holds at most "),
    ],
)
def test_bad_input_ends_with_2(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert exit_code(["plan", QUICKSTART, *arguments]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
