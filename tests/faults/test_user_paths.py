"""Paths and folders that a user gives to commands: nothing of theirs is overwritten, what is wrong is named."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from fake_run import LENGTHS, SMALL, Host

from attnspec.cli.main import exit_code
from attnspec.cli.report import page_of
from attnspec.errors import AttnspecError, InputError, UnwritableError
from attnspec.launch import run as run_module
from attnspec.launch.run_folder import RunFolder
from attnspec.launch.stop_signals import StopSignals
from attnspec.plan.requests import packs_path
from attnspec.report import page
from attnspec.report.run import open_run

ATTNSPEC = [sys.executable, "-m", "attnspec"]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "run", SMALL)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["run", "x.yaml", "--out", "{}"], "--out"),
        (["run", "{}"], "SPEC"),
        (["plan", "{}"], "SPEC"),
        (["plan", "x.yaml", "--graph", "{}"], "--graph"),
        (["validate", "{}"], "SPEC..."),
        (["status", "{}"], "RUN"),
        (["cancel", "{}"], "RUN"),
        (["report", "{}"], "RUN..."),
        (["report", "x", "--out", "{}"], "--out"),
        (["schema", "--out", "{}"], "--out"),
        (["mask", "full", "--seqlen", "4", "--png", "{}"], "--png"),
    ],
)
@pytest.mark.parametrize(("path", "what"), [("", "got an empty path"), ("a\udcff", "allowed: a path in UTF-8")])
def test_paths_without_a_name_or_outside_utf_8(
    capsys: pytest.CaptureFixture[str], arguments: list[str], name: str, path: str, what: str
) -> None:
    assert exit_code([word.format(path) for word in arguments]) == 2
    said = capsys.readouterr().err
    assert f"Invalid value for '{name}'" in said and what in said


@pytest.mark.parametrize("name", ["spec.yaml", "plan.json", "cells.parquet", "timings.parquet"])
def test_a_run_overwrites_no_file_of_a_folder_that_is_no_run_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(InputError, match=f"{name}: is in the way, and .* is no run folder; choose another with --out"):
        RunFolder(tmp_path).prepare()
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_a_run_may_begin_beside_other_files(host: Host) -> None:
    host.folder.path.mkdir()
    (host.folder.path / "notes.txt").write_text("mine")
    host.run()
    host.check_complete()


def test_tables_whose_journal_is_gone_are_not_replaced(host: Host) -> None:
    host.run()
    for file in host.folder.journal.iterdir():
        file.unlink()
    with pytest.raises(InputError, match="its journal is gone, and a run would replace the tables"):
        host.run()
    assert open_run(host.folder.path).timings.num_rows > 0


def test_tables_without_samples_stand_in_nobodys_way(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "_run_jobs", lambda *_: False)
    host.run()
    monkeypatch.undo()
    host.run()
    host.check_complete()


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENAMETOOLONG])
def test_a_folder_that_cannot_be_made_is_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*args: object, **rest: object) -> None:
        raise OSError(number, os.strerror(number), "somewhere")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(UnwritableError, match=os.strerror(number)) as caught:
        RunFolder(tmp_path / "run").prepare()
    assert caught.value.exit_code == 2


def test_a_damaged_spec_of_a_run_folder_is_replaced(host: Host) -> None:
    host.run()
    host.folder.spec.write_bytes(b"\xff\xfe\x00")
    host.run()
    assert "the spec has changed" in host.told[0]
    assert host.folder.spec.read_text() == SMALL


@pytest.mark.parametrize("content", [b"\xff", b"{", b"[]"])
def test_a_damaged_provenance_is_refused_with_a_way_out(host: Host, content: bytes) -> None:
    host.run()
    host.folder.provenance.write_bytes(content)
    with pytest.raises(InputError, match=r"provenance\.json: .*; the run folder works without it, so move it away"):
        host.run()
    host.folder.provenance.unlink()
    host.run()
    host.check_complete()


def test_damaged_sums_cost_work_only(host: Host) -> None:
    host.run()
    (host.folder.path / "artifacts" / "SHA256SUMS").write_bytes(b"\xff\xfe damaged")
    host.run()
    assert host.measured == []
    host.check_complete()


@pytest.mark.parametrize("damage", [lambda file: file.unlink(), lambda file: file.write_bytes(b"junk")])
def test_ok_cases_whose_samples_are_gone_are_measured_again(host: Host, damage) -> None:
    host.run()
    (host.folder.path / "lengths.csv").write_text(LENGTHS)
    for file in host.folder.journal.glob("*.timings.arrows"):
        damage(file)
    assert {row["reason_code"] for row in open_run(host.folder.path).cells.to_pylist()} == {"no_samples"}
    host.run()
    assert len(host.measured) == len(host.plan.cases)
    host.check_complete()


def test_a_table_of_something_else_is_refused(host: Host) -> None:
    host.run()
    host.folder.cells.write_bytes(host.folder.timings.read_bytes())
    for file in host.folder.journal.iterdir():
        file.unlink()
    with pytest.raises(InputError, match=r"cells\.parquet: has no column result_key, level, "):
        _ = open_run(host.folder.path).cells


def test_a_table_from_before_a_column_was_there_is_read(host: Host) -> None:
    host.run()
    table = pq.read_table(host.folder.cells)
    pq.write_table(table.drop_columns(["kernel_params"]), host.folder.cells)
    for file in host.folder.journal.iterdir():
        file.unlink()
    cells = open_run(host.folder.path).cells
    assert cells.schema.names == table.schema.names
    assert set(cells["kernel_params"].to_pylist()) == {None}
    assert cells["case_id"] == table["case_id"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_sampling_at_once_and_the_tables_are_written(
    host: Host, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def stopped(*_: object, **__: object) -> None:
        os.kill(os.getpid(), number)
        raise AssertionError("went on")

    monkeypatch.setattr("attnspec.launch.artifacts.draw_packs", stopped)
    result = host.run()
    assert result.exit_code == 128 + number
    assert {row["status"] for row in host.rows()} == {"skipped"}
    monkeypatch.undo()
    host.run()
    host.check_complete()
    assert (host.folder.path / packs_path(next(iter(host.plan.samples)))).is_file()


def test_an_interrupt_that_no_signal_made_goes_on() -> None:
    with StopSignals() as signals, pytest.raises(KeyboardInterrupt), signals.obeyed():
        raise KeyboardInterrupt
    assert signals.number is None


@pytest.mark.parametrize(("number", "kind", "code"), [(errno.ENOSPC, AttnspecError, 1), (errno.ENOTDIR, InputError, 2)])
def test_a_page_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[AttnspecError], code: int
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(page, "write_report", refuse)
    with pytest.raises(kind, match=f"{tmp_path}: the page cannot be written: {os.strerror(number)}") as caught:
        page_of([tmp_path], tmp_path)
    assert caught.value.exit_code == code


def test_a_spec_from_a_pipe_is_read_once(tmp_path: Path) -> None:
    text = SMALL.replace("data: {lengths: lengths.csv, num_packs: 2}\n", "")
    asked = [*ATTNSPEC, "plan", "/dev/stdin", "--json"]
    done = subprocess.run(asked, input=text, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert json.loads(done.stdout)["cases"] == 2


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(("name", "code"), [("full", 0), ("ful", 2)])
def test_closed_streams_change_no_ending(closed: str, name: str, code: int) -> None:
    command = f'"$0" -m attnspec mask {name} --seqlen 4 {closed}'
    done = subprocess.run(["sh", "-c", command, sys.executable], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert "internal error" not in done.stderr


def test_a_terminal_without_unicode_gets_escapes(tmp_path: Path) -> None:
    """rich writes what the stream must take; so the entry point makes it take anything."""
    script = (
        "import sys; from attnspec.cli import main; main._ready_streams(); from rich.console import Console; "
        "Console().print('\\u00e9')"
    )
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "\\xe9\n"
