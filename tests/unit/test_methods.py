"""The methods paragraph: every fact comes from the run, and what the run lacks is left out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from attnspec.cli.main import exit_code
from attnspec.errors import InputError
from attnspec.report.methods import methods_text
from attnspec.report.run import open_run

MEASURED = Path(__file__).parents[2] / "data" / "measured"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MEASURED / "h200_check", tmp_path / "run"))


def test_facts_of_a_recorded_run() -> None:
    text = methods_text(open_run(MEASURED / "h200_check"))
    for fact in (
        "We measured 126 cases with attnspec 0.1.0.dev0.",
        "batch size 1, 64 query and 8 key/value heads, head dimension 128 and type bfloat16",
        "sliding window causal (window 1024)",
        "1K, 2K, 4K, 8K, 16K and 32K tokens",
        "over 4 packs of documents each.",
        "L2 flushed",
        "20 to 485 iterations per case in 5 to 16 rounds per pack",
        "every case was verified",
        "63 unsupported",
        "NVIDIA H200 (driver 580.159.04, CUDA 13.0",
        "52 cases had samples that the device reported as throttled",
        "fa3 from xformers 0.0.34",
        "torch 2.11.0",
    ):
        assert fact in text, fact
    assert "ranks" not in text
    assert "seed 42" not in text  # the recorded folder has no spec


def test_a_spec_adds_seed_data_and_stopping_rule(run: Path) -> None:
    shutil.copy(MEASURED.parents[1] / "specs" / "h200_kernel.yaml", run / "spec.yaml")
    text = methods_text(open_run(run))
    spec = open_run(run).spec
    assert f"length distribution {spec.data.lengths} with seed {spec.seed}" in text
    assert f"at least {spec.measure.min_iters} iterations" in text


def test_what_a_run_lacks_is_left_out(run: Path) -> None:
    (run / "provenance.json").unlink()
    text = methods_text(open_run(run))
    assert "driver" not in text
    assert "Software" not in text
    assert "NVIDIA H200" in text  # the tables know it


def test_how_rounds_begin_is_told_where_it_was_recorded(run: Path) -> None:
    assert "in rounds of changing order; we took" in methods_text(open_run(run))
    provenance = json.loads((run / "provenance.json").read_text())
    provenance["workers"]["conditions"] = {"job-rank0": {"settle_ns": 25_000_000}}
    (run / "provenance.json").write_text(json.dumps(provenance))
    assert "each begun by up to 25 ms of the same iterations untimed; we took" in methods_text(open_run(run))


def test_a_rehearsal_is_called_one_first(run: Path) -> None:
    assert "rehearsal" not in methods_text(open_run(run))
    provenance = json.loads((run / "provenance.json").read_text())
    provenance["settings"] = {"rehearse": True}
    (run / "provenance.json").write_text(json.dumps(provenance))
    assert methods_text(open_run(run)).startswith(
        "This was a rehearsal of a shrunk spec on the CPU, whose times say noth"
    )


def test_environment_variables_are_told_where_they_were_recorded(run: Path) -> None:
    assert "Environment variables" not in methods_text(open_run(run))
    provenance = json.loads((run / "provenance.json").read_text())
    (worker,) = provenance["workers"]["environment"].values()
    other = {**worker, "env": {"OWN": "1"}, "variables": {"NCCL_ALGO": "Ring"}}
    worker["variables"] = {"NCCL_ALGO": "Tree"}
    provenance["workers"]["environment"]["other"] = other
    (run / "provenance.json").write_text(json.dumps(provenance))
    assert "Environment variables: NCCL_ALGO=Ring or Tree and OWN=1." in methods_text(open_run(run))


def test_other_shapes_of_provenance_do_no_harm(run: Path) -> None:
    (run / "provenance.json").write_text(json.dumps({"workers": 3, "host": [], "runner": None, "attnspec": "9"}))
    assert "with attnspec 9." in methods_text(open_run(run))


def test_every_state_of_the_code_that_measured_is_told(run: Path) -> None:
    held = json.loads((MEASURED / "h200_distributed" / "provenance.json").read_text())
    states = list(dict.fromkeys(one["code_sha256"] for one in held["workers"]["environment"].values()))
    text = methods_text(open_run(MEASURED / "h200_distributed"))
    assert f"{len(states)} states of attnspec's own code" in text
    assert all(state in text for state in states)
    second, last = states[1], states[-1]
    held["workers"].pop("code")
    held["runs"] = [{"code_sha256": second, "git_commit": "1234"}]
    (run / "provenance.json").write_text(json.dumps(held))
    told = f"SHA-256 {', '.join(states[:-1])} and {last}.".replace(second, f"{second} (commit 1234)")
    assert told in methods_text(open_run(run))
    for one in held["workers"]["environment"].values():
        one |= {"code_sha256": second, "attnspec": "0.7"}
    (run / "provenance.json").write_text(json.dumps(held))
    text = methods_text(open_run(run))
    assert f"attnspec's own code: commit 1234 and SHA-256 {second}." in text
    assert "with attnspec 0.7." in text


def test_a_run_without_an_ok_case_is_refused(run: Path) -> None:
    cells = pq.read_table(run / "cells.parquet")
    pq.write_table(cells.filter(pc.not_equal(cells["status"], "ok")), run / "cells.parquet")
    with pytest.raises(InputError, match="no case is ok"):
        methods_text(open_run(run))


def test_command_fills_lines(capfd) -> None:
    assert exit_code(["methods", str(MEASURED / "h200_quickstart")]) == 0
    out = capfd.readouterr().out
    assert out.startswith("We measured 96 cases")
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize(("width", "most"), [(80, 80), (200, 100)])
def test_text_fits_the_terminal(width: int, most: int, monkeypatch, capsys) -> None:
    console = Console(width=width, force_terminal=True)
    monkeypatch.setattr("attnspec.cli._console.plain_or_terminal", lambda: console)
    assert exit_code(["methods", str(MEASURED / "h200_quickstart")]) == 0
    assert most - 20 < max(map(len, capsys.readouterr().out.splitlines())) <= most
