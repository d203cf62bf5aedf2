"""`attnspec run`, `status` and `cancel` as commands, with the fake worker behind them."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from fake_run import LAUNCHER, LENGTHS, SMALL, SPEC, Host, wait_for, workers_of

from attnspec import plugins
from attnspec.cli import run as run_command
from attnspec.cli.main import exit_code
from attnspec.errors import InputError
from attnspec.launch.run_lock import RunLock, holder, is_held, mark_cancelled
from attnspec.launch.runner_profile import load_runner
from attnspec.launch.stop_signals import STOPPING
from attnspec.report.run import open_run

PROBE = (
    '{"python": "3.12.1", "versions": {"torch": "2.11.0"}, "missing": {}, "packages": {}, "cuda": null, "devices": []}'
)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A folder with a spec and a runner `fake` whose interpreter answers the probe and runs the fake worker."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plugins, "_extra", {kind: {} for kind in plugins.KINDS})
    monkeypatch.setattr(sys, "argv", ["attnspec", "run"])
    (tmp_path / "runs").mkdir()
    host = Host(tmp_path / "runs" / "spec", SMALL)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nif [ "$1" = -c ]; then echo \'{PROBE}\'; else exec {sys.executable} "$@"; fi\n')
    python.chmod(0o755)
    (tmp_path / "lengths.csv").write_text(LENGTHS)
    (tmp_path / "spec.yaml").write_text(SMALL)
    (tmp_path / "runners").mkdir()
    profile = {"launcher": LAUNCHER.stem, "python": str(python), "env": host.env}
    (tmp_path / "runners" / "fake.yaml").write_text(json.dumps(profile))
    plugins.load_file(LAUNCHER)
    return host


@pytest.fixture
def no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """No page is drawn: that takes seconds, and one test looks at it."""
    from attnspec.report import page

    monkeypatch.setattr(page, "write_report", lambda runs, out, **_: out / "index.html")


def run(*options: str) -> int:
    return exit_code(["run", "spec.yaml", "--runner", "fake", *options])


def test_a_run_from_spec_to_page(work: Host, capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    work.check_complete()
    out = capsys.readouterr().out
    assert "fake: 2 cases on runner fake, into runs/spec" in out
    assert "job 1 of 1: 2 cases, 1 rank" in out
    assert "ok  reference, varlen_causal 64 bwd  1/2" in out
    assert "2 cases: 2 ok" in out
    for line in ("cases: runs/spec/cells.parquet", "raw samples: runs/spec/timings.parquet"):
        assert line in out
    assert Path("runs/spec/report/index.html").is_file()
    for name in ("spec.yaml", "plan.json", "provenance.json", "cells.parquet", "timings.parquet"):
        assert Path("runs/spec", name).is_file()
    provenance = json.loads(Path("runs/spec/provenance.json").read_text())
    assert provenance["settings"]["runner"] == "fake"
    content = Path(LAUNCHER).read_bytes()
    assert provenance["plugins"] == {Path(LAUNCHER).name: hashlib.sha256(content).hexdigest()}
    assert provenance["workers"]["environment"]
    assert provenance["runs"][0]["ended_ns"] >= provenance["runs"][0]["started_ns"]
    assert all(provenance["runs"][0][name] == provenance[name] for name in ("git_commit", "code_sha256"))
    assert run() == 0
    assert "2 cases have an ok record under the same conditions: not measured again" in capsys.readouterr().out
    opened = open_run("runs/spec")
    assert opened.cells.num_rows == 2
    assert opened.spec.runner == "fake"
    assert set(opened.plan.case_by_id) == set(work.plan.case_by_id)


@pytest.mark.usefixtures("no_page", "work")
def test_a_run_of_which_nothing_can_be_measured_says_so_last(capsys: pytest.CaptureFixture[str]) -> None:
    kernels = "[{sdpa: {backend: efficient}}, {sdpa: {backend: cudnn}}]"
    assert run("--set", f"sweeps.0.kernels={kernels}") == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("nothing can be measured: 2 of 2 cases are unsupported: 1 x sdpa efficient: ")
    assert "; 1 x sdpa cudnn: torch's cudnn backend runs on CUDA only" in last
    assert run("--set", "sweeps.0.kernels=[{sdpa: {backend: efficient}}, reference]", "--fresh") == 0
    assert "nothing can be measured" not in capsys.readouterr().out


@pytest.fixture
def rehearsing(work: Host, monkeypatch: pytest.MonkeyPatch) -> Host:
    """The fake runner stands in for the one that a rehearsal brings."""
    runner = load_runner("runners/fake.yaml", ())
    monkeypatch.setattr(run_command, "rehearsal_runner", lambda local: runner)
    return work


def cases_of_a_rehearsal(*options: str) -> int:
    return exit_code(["run", "spec.yaml", "--rehearse", *options])


@pytest.mark.usefixtures("no_page", "rehearsing")
def test_a_rehearsal_names_no_winners(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(run_command, "rehearsal", lambda spec: spec)  # the fake worker knows the spec's own cases
    assert cases_of_a_rehearsal() == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("rehearsed 2 of 2 cases") for line in lines)
    assert any(line.startswith("the figures of a rehearsal mean nothing; ") for line in lines)
    assert not [line for line in lines if "*" in line or "~" in line or "fastest" in line]
    figures = [line.split("│")[2].strip() for line in lines if line.startswith("│")]
    assert len(figures) == 2
    assert all(float(one) > 0 for one in figures)
    assert run() == 0
    out = capsys.readouterr().out
    assert "fastest, of 1 comparison" in out
    assert "* highest, ~ not told apart from it" in out


@pytest.mark.usefixtures("no_page", "rehearsing")
def test_what_a_rehearsal_does_not_hold_is_said_to_be_shrunk(capsys: pytest.CaptureFixture[str]) -> None:
    hint = "; --rehearse shrinks the spec, and --only chooses from what is left of it"
    for only in ("seqlen=64", "seqlen=256,seqlen=8K"):
        assert cases_of_a_rehearsal("--only", only) == 2
        told = capsys.readouterr().err
        assert "--only: no case has seqlen=" in told
        assert told.rstrip().endswith(f"allowed: 256{hint}")
    assert run("--only", "seqlen=8K") == 2
    assert "shrinks" not in capsys.readouterr().err


@pytest.mark.usefixtures("no_page")
def test_only_and_limit_choose_cases_and_later_runs_add_the_rest(work: Host) -> None:
    assert run("--only", "kernel=sdpa") == 0
    assert {row["kernel"]: row["status"] for row in work.rows()} == {"reference": "skipped", "sdpa": "ok"}
    assert run("--limit", "1") == 0
    assert {row["kernel"]: row["status"] for row in work.rows()} == {"reference": "ok", "sdpa": "ok"}
    assert work.rows("reference")[0]["tflops"] is not None


def test_the_help_names_the_exit_code_of_every_signal_that_stops_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(["run", "--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "130, 143 or 129 when stopped by SIGINT, SIGTERM or SIGHUP" in said
    assert [128 + number for number in STOPPING] == [130, 143, 129]


@pytest.mark.usefixtures("no_page")
@pytest.mark.parametrize("options", [("--only", "kernel=sdpa"), ("--limit", "1")])
def test_status_counts_what_the_run_asked_for(
    work: Host, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    assert run(*options) == 0
    (work.folder.path / "lengths.csv").write_text(LENGTHS)
    capsys.readouterr()
    assert exit_code(["status", "runs/spec"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "runs/spec: 1 case: 1 ok",
        "the spec has 1 more that the last run did not ask for: 1 not measured yet",
    ]
    assert [line.partition(": ")[2] for line in lines if line.startswith("job ")] == ["1 of 1 cases ok, 1 rank"]
    assert exit_code(["status", "runs/spec", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["cases"], told["statuses"]) == (1, {"ok": 1})
    assert told["not_asked"] == {"cases": 1, "statuses": {"skipped": 1}}
    assert told["last_activity_unix_s"] == pytest.approx(time.time(), abs=600)
    assert run() == 0
    capsys.readouterr()
    assert exit_code(["status", "runs/spec"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("runs/spec: 2 cases: 2 ok\n")
    assert "the spec has" not in out


@pytest.mark.usefixtures("no_page")
def test_a_failed_case_is_exit_code_1_and_told(work: Host, capsys: pytest.CaptureFixture[str]) -> None:
    work.behave(sdpa={"do": "wrong"})
    assert run() == 1
    out = capsys.readouterr().out
    assert "wrong  sdpa, varlen_causal 64 bwd: fake: wrong" in out
    assert "sdpa: wrong (out), 1 x: fake: wrong" in out
    assert "2 cases: 1 ok, 1 wrong" in out or "2 cases: 1 wrong, 1 ok" in out
    assert run("--only", "kernel=reference") == 0  # the run was not about the failed one


@pytest.mark.usefixtures("no_page")
def test_overrides_are_kept_in_the_run_folder(work: Host) -> None:
    assert run("--set", "shape.head_dim=32", "--set", "data.num_packs=2", "--out", "elsewhere") == 1
    # the fake worker knows no such cases, so it dies; the folder is complete all the same
    assert open_run("elsewhere").spec.shape.head_dim == 32
    assert set(pq.read_table("elsewhere/cells.parquet")["head_dim"].to_pylist()) == {32}


@pytest.mark.usefixtures("no_page")
def test_another_spec_text_is_kept_as_it_is_and_a_change_is_told(
    work: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    text = SMALL.replace("data: {lengths: lengths.csv, num_packs: 2}\n", "").replace("varlen_causal", "causal")
    Path("spec.yaml").write_text("# a comment\n" + text + "runner: fake\n")
    exit_code(["run", "spec.yaml", "--limit", "1"])
    assert Path("runs/spec/spec.yaml").read_text() == Path("spec.yaml").read_text()
    assert "the spec has changed" not in capsys.readouterr().out
    Path("spec.yaml").write_text("# another comment\n" + text + "runner: fake\n")
    exit_code(["run", "spec.yaml", "--limit", "1"])
    assert "the spec has changed since the last run here" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--only", "kernel=sdpaa"], 2, "--only: no case has kernel=sdpaa (did you mean 'sdpa'?)"),
        (["--limit", "0"], 2, "0 is not in the range"),
        (["--out", "spec.yaml"], 2, "a file is in the way of the run folder"),
        (["--rehearse"], 2, "--rehearse brings its own runner; leave out --runner"),
        (["--set", "shape.head_dim=none"], 2, "head_dim"),
    ],
)
@pytest.mark.usefixtures("no_page")
def test_bad_input_is_exit_code_2(
    work: Host, capsys: pytest.CaptureFixture[str], options: list[str], code: int, words: str
) -> None:
    assert run(*options) == code
    assert words in capsys.readouterr().err


@pytest.mark.usefixtures("no_page")
def test_a_launcher_that_is_not_there_is_exit_code_2_with_its_line(
    work: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("runners/far.yaml").write_text("description: far\nlauncher: podmann\n")
    assert exit_code(["run", "spec.yaml", "--runner", "far"]) == 2
    err = capsys.readouterr().err
    assert "runners/far.yaml:2" in err
    assert "launcher: got 'podmann' (did you mean 'podman'?); allowed: apptainer, docker, fake_launcher, " in err
    assert "--plugin FILE" in err


@pytest.mark.usefixtures("no_page")
def test_a_runner_for_other_devices_is_exit_code_3_and_makes_nothing(
    work: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = json.loads(Path("runners/fake.yaml").read_text())
    profile["device"] = {"type": "cuda", "model": "B200", "capability": "10.0"}
    Path("runners/fake.yaml").write_text(json.dumps(profile))
    assert run() == 3
    err = capsys.readouterr().err
    assert "runner fake expects a CUDA device named B200 with compute capability 10.0" in err
    assert "Found: no CUDA device (torch 2.11.0, Python 3.12.1)." in err
    assert not Path("runs/spec/plan.json").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("no_page")
def test_status_and_cancel_of_a_run_that_works(work: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host = Host(work.folder.path.parent / "long", SPEC)
    process = host.start(FAKE_ROUND_S="0.05")
    wait_for(lambda: host.num_rounds() >= 2)
    (host.folder.path / "lengths.csv").write_text(LENGTHS)
    assert exit_code(["status", str(host.folder.path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["running"], told["pid"], told["cases"]) == (True, process.pid, 8)
    assert sum(told["statuses"].values()) == 8
    assert [(job["cases"], job["world_size"]) for job in told["jobs"]] == [(8, 1)]
    assert exit_code(["status", str(host.folder.path)]) == 0
    out = capsys.readouterr().out
    assert f"running: process {process.pid}" in out
    assert " begun" in out
    assert "interrupted" not in out
    assert exit_code(["cancel", str(host.folder.path)]) == 0
    assert f"process {process.pid} on" in capsys.readouterr().out
    process.join(20)
    assert process.exitcode == 128 + signal.SIGTERM
    assert workers_of(host.folder.path) == []
    assert exit_code(["status", str(host.folder.path)]) == 0
    out = capsys.readouterr().out
    assert "not running" in out
    counted = out.splitlines()[0].rpartition("8 cases: ")[2].split(", ")
    words = {one.partition(" ")[2]: int(one.partition(" ")[0]) for one in counted}
    assert words.keys() <= {"ok", "interrupted", "not measured yet"}
    assert (words["not measured yet"] >= 1, sum(words.values())) == (True, 8)
    assert "last activity: " in out
    assert exit_code(["cancel", str(host.folder.path)]) == 0
    assert "nothing runs here" in capsys.readouterr().out


@pytest.mark.parametrize("by_cancel", [True, False])
@pytest.mark.usefixtures("no_page")
def test_a_run_says_that_it_was_cancelled_where_it_was(
    work: Host, capsys: pytest.CaptureFixture[str], by_cancel: bool
) -> None:
    work.behave(reference={"do": "hang"}, sdpa={"do": "hang"})
    codes = []

    def stop() -> None:
        wait_for(lambda: is_held(work.folder.path) and workers_of(work.folder.path))
        if by_cancel:
            codes.append(exit_code(["cancel", str(work.folder.path)]))
        else:
            os.kill(os.getpid(), signal.SIGTERM)

    stopping = threading.Thread(target=stop)
    stopping.start()
    assert run() == 128 + signal.SIGTERM
    stopping.join()
    out = capsys.readouterr().out
    how = "cancelled" if by_cancel else "stopped by a signal"
    assert f"\n{how}; 2 cases: 2 not measured yet; run the same again to go on" in out
    assert codes == [0] * by_cancel
    assert not (work.folder.path / ".cancelled").exists()


def test_a_mark_of_another_run_cancels_nothing(tmp_path: Path) -> None:
    with RunLock(tmp_path) as lock:
        works = holder(tmp_path)
        assert works is not None
        mark_cancelled(tmp_path, works)
        assert lock.cancelled
    mark_cancelled(tmp_path, works)  # by somebody who was late
    with RunLock(tmp_path) as lock:
        assert not lock.cancelled


@pytest.mark.slow
@pytest.mark.usefixtures("no_page")
def test_cancel_ends_a_host_that_does_not_listen(
    work: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from attnspec.cli import cancel

    monkeypatch.setattr(cancel, "_PATIENCE_S", 0.3)
    host = Host(work.folder.path.parent / "long", SPEC)
    process = host.start(FAKE_ROUND_S="0.05")
    wait_for(lambda: host.num_rounds() >= 1)
    os.kill(process.pid, signal.SIGSTOP)
    assert exit_code(["cancel", str(host.folder.path)]) == 0
    process.join(20)
    assert process.exitcode == -signal.SIGKILL
    wait_for(lambda: workers_of(host.folder.path) == [])


@pytest.mark.parametrize("command", ["status", "cancel"])
@pytest.mark.usefixtures("no_page")
def test_a_folder_that_is_no_run_folder(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code([command, str(tmp_path / "nowhere")]) == 2
    assert "no such folder; `attnspec run` makes run folders" in capsys.readouterr().err
    assert exit_code([command, str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert "no run folder (neither cells.parquet" in told and "in it" not in told
    for name in ("d", "c", "b", "a", "empty"):
        (tmp_path / name).mkdir()
        for file in ("spec.yaml", "provenance.json") if name != "empty" else ():
            (tmp_path / name / file).touch()
    assert exit_code([command, str(tmp_path)]) == 2
    inside = ", ".join(str(tmp_path / name) for name in "abc")
    assert capsys.readouterr().err.endswith(f"; run folders in it: {inside} and 1 more\n")


@pytest.mark.usefixtures("no_page")
def test_open_run_refuses_damaged_tables(work: Host) -> None:
    work.run()
    for journal in work.folder.journal.glob("*.arrows"):
        journal.unlink()
    state = work.folder.cells.read_bytes()
    work.folder.timings.write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"timings\.parquet: cannot be read"):
        _ = open_run(work.folder.path).timings
    assert work.folder.cells.read_bytes() == state


@pytest.mark.usefixtures("no_page")
@pytest.mark.parametrize("name", ["cells", "timings"])
@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1 no footer PAR1"])
def test_damaged_tables_are_collected_anew(work: Host, name: str, content: bytes) -> None:
    work.run()
    (work.folder.path / "lengths.csv").write_text(LENGTHS)
    before = open_run(work.folder.path)
    cells, timings = before.cells, before.timings
    getattr(work.folder, name).write_bytes(content)
    again = open_run(work.folder.path)
    assert again.cells.equals(cells) and again.timings.equals(timings)
