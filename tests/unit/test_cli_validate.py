"""attnspec validate and attnspec schema."""

from __future__ import annotations

import json

import pytest

from attnspec.cli._plan_text import nothing_measured
from attnspec.cli.main import exit_code
from attnspec.spec.schema import schema_text

GOOD = """\
attnspec: 1
name: small
shape: {num_heads_q: 8, num_heads_kv: 2, head_dim: 64}
sweeps: [{level: kernel, masks: [full], seqlen: 1K, kernels: [reference]}]
"""


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.yaml").write_text(GOOD)
    (tmp_path / "bad.yaml").write_text(GOOD.replace("head_dim: 64", "head_dim: yes") + "seed: on\nrunner: loca\n")
    (tmp_path / "worse.yaml").write_text(GOOD + "widnow: 128\n")
    return tmp_path


def test_good_specs_are_said_to_be_good(files, capsys):
    assert exit_code(["validate", "good.yaml", "good.yaml"]) == 0
    assert capsys.readouterr().out == "good.yaml: ok\ngood.yaml: ok\n"
    assert exit_code(["validate", "--json", "good.yaml"]) == 0
    assert json.loads(capsys.readouterr().out) == {"ok": True, "errors": []}


def test_all_problems_of_all_files_are_said(files, capsys):
    assert exit_code(["validate", "bad.yaml", "good.yaml", "worse.yaml", "none.yaml"]) == 2
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0] == "bad.yaml:3: shape.head_dim: got 'yes'; allowed: an integer"
    assert lines[1] == "bad.yaml:5: seed: got 'on'; allowed: an integer"
    assert lines[2].startswith("bad.yaml:6: runner: unknown runner 'loca' (did you mean 'local'?); allowed: ")
    assert lines[3] == "good.yaml: ok"
    assert lines[4].startswith("worse.yaml:5: widnow: unknown key 'widnow'")
    assert lines[5:] == ["none.yaml: cannot be read: No such file or directory"]
    assert captured.err == "attnspec: 5 problems found\n"


def test_problems_as_json(files, capsys):
    assert exit_code(["validate", "bad.yaml", "none.yaml", "--json"]) == 2
    captured = capsys.readouterr()
    answer = json.loads(captured.out)
    assert captured.err == ""
    assert answer["ok"] is False
    assert answer["errors"][0] == {
        "file": "bad.yaml",
        "line": 3,
        "path": "shape.head_dim",
        "message": "got 'yes'; allowed: an integer",
    }
    assert answer["errors"][-1] == {
        "file": "none.yaml",
        "line": None,
        "path": "",
        "message": "cannot be read: No such file or directory",
    }


def test_overrides_are_validated_too(files, capsys):
    assert exit_code(["validate", "good.yaml", "--set", "shape.head_dim=yes", "--set", "seed=-1"]) == 2
    assert capsys.readouterr().out.splitlines() == [
        "--set seed=-1: seed: got -1; allowed: at least 0",
        "--set shape.head_dim=yes: shape.head_dim: got 'yes'; allowed: an integer",
    ]
    assert (
        exit_code(["validate", "bad.yaml", "--set", "shape.head_dim=8", "--set", "seed=1", "--set", "runner=local"])
        == 0
    )


def test_masks_that_refuse_their_lengths_are_named(files, capsys):
    mask = "slices: {slices: [[0, 1024, 0, 1024, full], [0, 1024, 512, 1024, causal]]}"
    (files / "slices.yaml").write_text(
        GOOD.replace(
            "masks: [full], seqlen: 1K", f"masks: [full, {mask}, sliding_window: {{window: 8}}], seqlen: [1K, 2K]"
        )
    )
    assert exit_code(["validate", "slices.yaml"]) == 2
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("slices.yaml:4: sweeps[0].masks[1]: slices at 1K tokens: ")


def test_cases_that_cannot_run_are_counted_with_their_most_frequent_reason(files, capsys):
    ranks = "level: distributed, masks: [full, causal], cp_size: [2, 3, 16], seqlen_per_rank: 1K"
    (files / "ranks.yaml").write_text(
        GOOD.replace("num_heads_kv: 2", "num_heads_kv: 8").split("sweeps")[0]
        + f"sweeps: [{{{ranks}, strategies: [ulysses: {{kernel: sdpa}}]}}]\n"
    )
    place = "ranks.yaml:4: sweeps[0].strategies[0]"
    for given, told in (
        (
            ["cp_size=[2,3]"],
            f"4 of 8 cases are unsupported, {place}: ulysses (sdpa): 8 query heads cannot be split over 3",
        ),
        (["cp_size=2"], None),
    ):
        assert exit_code(["validate", "ranks.yaml", *(f"--set=sweeps.0.{one}" for one in given)]) == 0
        first, *rest = capsys.readouterr().out.splitlines()
        assert first == "ranks.yaml: ok"
        assert [line.startswith(f"  {told}") for line in rest] == ([] if told is None else [True])
    assert exit_code(["validate", "ranks.yaml"]) == 0
    line = capsys.readouterr().out.splitlines()[1]
    assert line.startswith(f"  8 of 12 cases are unsupported, 4 of them {place}: ulysses (sdpa): 8 query heads")
    assert line.endswith("; all reasons: attnspec plan ranks.yaml")
    assert exit_code(["validate", "ranks.yaml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"ok": True, "errors": []}


def test_a_spec_of_which_nothing_can_be_measured_is_told_by_every_command_that_plans_it(files, capsys):
    ranks = "level: distributed, masks: [full, causal], cp_size: [3, 5], seqlen_per_rank: 1K, passes: fwd"
    (files / "ranks.yaml").write_text(
        GOOD.split("sweeps")[0] + f"sweeps: [{{{ranks}, strategies: [ulysses: {{kernel: sdpa}}]}}]\n"
    )
    reasons = [f"2 x ulysses (sdpa): 8 query heads cannot be split over {ranks} ranks" for ranks in (3, 5)]
    for command in (["validate"], ["plan"], ["plan", "--only", "mask=full|causal"]):
        assert exit_code([*command, "ranks.yaml"]) == 0
        last = capsys.readouterr().out.splitlines()[-1].strip()
        assert last.startswith("nothing can be measured: 4 of 4 cases are unsupported: 2 x ")
        place = "ranks.yaml:4: sweeps[0].strategies[0]: " if command == ["validate"] else ""
        assert all(reason.replace("x ", f"x {place}") in last for reason in reasons)
    assert exit_code(["plan", "ranks.yaml", "--only", "mask=full,cp_size=3"]) == 0
    assert "nothing can be measured: 1 of 1 case is unsupported: 1 x ulysses" in capsys.readouterr().out
    for command in ("validate", "plan"):
        assert exit_code([command, "ranks.yaml", "--set", "sweeps.0.cp_size=[2,3]"]) == 0
        assert "nothing" not in capsys.readouterr().out.replace("nothing is sampled", "")


def test_a_reason_names_the_item_of_its_sweep_or_the_option_that_gave_it(files, capsys):
    text = """\
sweeps:
  - {level: kernel, masks: [full], seqlen: 1K, passes: fwd, kernels: [reference, sdpa]}
  - level: kernel
    masks: [full]
    seqlen: 1K
    passes: fwd
    kernels:
      - reference: {env: {A: "1"}}
      - sdpa
      - fa2
"""
    (files / "kernels.yaml").write_text(GOOD.replace("head_dim: 64", "head_dim: 20").split("sweeps")[0] + text)
    assert exit_code(["validate", "kernels.yaml"]) == 0
    assert ", kernels.yaml:13: sweeps[1].kernels[2]: fa2: " in capsys.readouterr().out
    option = "sweeps.1.kernels=[fa2]"
    assert exit_code(["validate", "kernels.yaml", "--set", option]) == 0
    assert f", --set {option}: sweeps[1].kernels[0]: fa2: " in capsys.readouterr().out


def test_of_many_reasons_for_which_nothing_can_be_measured_the_most_frequent_are_named():
    line = nothing_measured([("fa2", "often")] * 3 + [("fa2", f"reason {number}") for number in range(6)])
    assert line.startswith("nothing can be measured: 9 of 9 cases are unsupported: 3 x fa2: often; 1 x fa2: reason 0; ")
    assert line.endswith("; 1 x fa2: reason 2; and 3 more reasons")


def test_a_bad_runner_file_is_named(files, capsys):
    (files / "mine.yaml").write_text("launcher: local\ngpu: 8\n")
    assert exit_code(["validate", "good.yaml", "--set", "runner=mine.yaml"]) == 2
    assert "runner: mine.yaml:2: gpu: unknown key 'gpu'" in capsys.readouterr().out


def test_schema_is_printed_or_written(files, capsys):
    assert exit_code(["schema"]) == 0
    assert capsys.readouterr().out == schema_text()
    assert exit_code(["schema", "--out", "schema.json"]) == 0
    assert (files / "schema.json").read_text() == schema_text()
    assert exit_code(["schema", "--out", "none/schema.json"]) == 2
    assert "attnspec: --out: none/schema.json cannot be written: No such file or directory" in capsys.readouterr().err
