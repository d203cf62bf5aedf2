"""The host is stopped, killed, refused or out of disk: what was measured stays, and running again completes."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from fake_run import LENGTHS, NUM_PACKS, NUM_ROUNDS, SMALL, Host, wait_for, workers_of

from attnspec.errors import JournalError, LockedError
from attnspec.launch.artifacts import prepare_artifacts
from attnspec.launch.run_folder import RunFolder
from attnspec.launch.run_lock import RunLock, holder, is_held
from attnspec.record.journal import JournalWriter, read_journal


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "run")


def started(host: Host, rounds: int, round_s: float = 0.05):
    """A run in a process of its own that has journaled some rounds."""
    process = host.start(FAKE_ROUND_S=str(round_s))
    wait_for(lambda: host.num_rounds() >= rounds or not process.is_alive())
    assert process.is_alive(), "the run ended too early"
    return process


def finish(host: Host) -> None:
    """Run again, to the end, with nothing measured twice and nothing left behind."""
    host.env.pop("FAKE_ROUND_S", None)
    before = host.num_rounds()
    assert host.run().exit_code == 0
    host.check_complete()
    assert host.num_rounds() <= NUM_PACKS * NUM_ROUNDS * len(host.plan.cases)
    assert host.num_rounds() >= before
    assert workers_of(host.folder.path) == []


@pytest.mark.parametrize(
    ("number", "code"),
    [
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow),
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.slow),
    ],
)
def test_a_signal_ends_the_run_in_good_order(tmp_path: Path, number: int, code: int) -> None:
    host = Host(tmp_path / "run", SMALL)
    process = started(host, 3)
    os.kill(process.pid, number)
    process.join(20)
    assert process.exitcode == code
    assert workers_of(host.folder.path) == []
    assert not is_held(host.folder.path)
    cells = pq.read_table(host.folder.cells)
    assert cells.num_rows == len(host.plan.cases)
    assert json.loads(host.folder.provenance.read_text())["runs"][-1]["signal"] == number
    finish(host)


def test_a_killed_host_takes_its_worker_along_and_loses_at_most_a_round(host: Host) -> None:
    process = started(host, 5)
    os.kill(process.pid, signal.SIGKILL)
    process.join(20)
    wait_for(lambda: not workers_of(host.folder.path))
    kept = host.num_rounds()
    assert kept >= 5
    finish(host)
    whole = NUM_PACKS * NUM_ROUNDS * len(host.plan.cases)
    assert host.num_rounds() == whole  # so none of the kept ones was measured again


@pytest.mark.slow
def test_a_stopped_run_tells_what_is_done_and_resumes_exactly_the_rest(tmp_path: Path) -> None:
    """As a preempted batch job: some cases done, then SIGTERM."""
    host = Host(tmp_path / "run")
    process = host.start(FAKE_ROUND_S="0.01")
    wait_for(lambda: len(read_journal(host.folder.journal).outcomes) >= 4)
    os.kill(process.pid, signal.SIGTERM)
    process.join(20)
    assert process.exitcode == 143
    statuses = [row["status"] for row in host.rows()]
    done = statuses.count("ok")
    assert 4 <= done < 8
    assert statuses.count("skipped") == 8 - done
    host.env.pop("FAKE_ROUND_S")
    host.run()
    assert (len(host.resumed), len(host.measured)) == (done, 8 - done)
    host.check_complete()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_worker_is_survived(tmp_path: Path, number: int) -> None:
    host = Host(tmp_path / "run", SMALL)
    process = started(host, 3, round_s=0.02)
    for pid in workers_of(host.folder.path):
        if pid != process.pid:
            os.kill(pid, number)
    process.join(30)
    assert process.exitcode == 0
    host.check_complete()
    assert workers_of(host.folder.path) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_kills_at_random_moments(tmp_path: Path, seed: int) -> None:
    """Of the host or of its worker, again and again, until a run gets through."""
    random.seed(seed)
    host = Host(tmp_path / "run")
    for _ in range(5):
        process = host.start(FAKE_ROUND_S="0.02")
        time.sleep(random.uniform(0, 1.5))
        victims = [pid for pid in (process.pid, *workers_of(host.folder.path)) if pid is not None]
        number = random.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
        with suppress(ProcessLookupError):
            os.kill(random.choice(victims), number)
        process.join(30)
        assert process.exitcode is not None
        wait_for(lambda: not workers_of(host.folder.path))
    finish(host)


def test_a_second_run_is_refused(host: Host) -> None:
    process = started(host, 1)
    try:
        with pytest.raises(LockedError, match=rf"process {process.pid} on .* works in this run folder; wait for it"):
            host.run()
        assert holder(host.folder.path).pid == process.pid
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.join(20)
    assert not is_held(host.folder.path)
    assert holder(host.folder.path) is None
    finish(host)


def test_a_lock_file_left_by_the_dead_locks_nothing(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text('{"pid": 1, "host": "elsewhere", "started_ns": 1}')
    assert holder(tmp_path) is None
    with RunLock(tmp_path):
        assert holder(tmp_path).pid == os.getpid()
        with pytest.raises(LockedError), RunLock(tmp_path):
            pass
    assert holder(tmp_path) is None


def test_a_full_disk_keeps_what_was_written(tmp_path: Path) -> None:
    """Files may grow to a limit only, as on a full disk: the write that fails leaves no half of a batch."""
    script = """
import resource, sys
from attnspec.errors import JournalError
from attnspec.record.journal import JournalWriter
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
with JournalWriter(sys.argv[1], "w", 1) as writer:
    for number in range(1000):
        try:
            writer.append_note("n", {"number": number})
        except JournalError as error:
            print(number, error)
            sys.exit()
"""
    answer = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    written, _, message = answer.stdout.partition(" ")
    assert message.startswith(f"{tmp_path}/w-1.notes.arrows: no space left (File too large)")
    assert "running again goes on from there once there is room" in message
    journal = read_journal(tmp_path)
    assert [note.data["number"] for note in journal.notes] == list(range(int(written)))
    assert int(written) > 10
    assert journal.damaged == ()


def test_slices_on_a_full_disk_are_told_of_like_everything_else(host: Host) -> None:
    """Packs still fit, slices do not."""
    packs, slices = (host.folder.path / "artifacts").glob("packs-*"), (host.folder.path / "artifacts").glob("slices-*")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, hard))
    try:
        with pytest.raises(
            JournalError, match=r"slices-\w+\.arrow: no space left \(File too large\); .* there is room"
        ):
            prepare_artifacts(host.plan, host.folder.path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(packs) and not list(slices)
    assert not list(host.folder.path.rglob(".*.partial"))
    finish(host)


def test_a_host_whose_disk_is_full_keeps_the_old_tables(host: Host) -> None:
    host.run()
    before = host.folder.cells.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, hard))
    try:
        with pytest.raises(JournalError, match="no space left"):
            host.run()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert host.folder.cells.read_bytes() == before
    assert not list(host.folder.path.glob(".*.partial"))
    finish(host)


@pytest.fixture
def unwritable(monkeypatch: pytest.MonkeyPatch):
    """Root may write anywhere, so the refusal is the kernel's answer put in by hand."""

    def refuse(*args: object, **rest: object) -> int:
        raise PermissionError(13, "Permission denied", "somewhere")

    return lambda module, name: monkeypatch.setattr(module, name, refuse)


def test_a_read_only_folder_is_reported(tmp_path: Path, unwritable) -> None:
    unwritable(os, "open")
    with pytest.raises(JournalError, match=r"not writable \(Permission denied\); choose another with --out"):
        JournalWriter(tmp_path, "w", 1).append_note("n", {})
    with pytest.raises(JournalError, match="not writable"), RunLock(tmp_path):
        pass


def test_a_read_only_parent_is_reported(tmp_path: Path, unwritable) -> None:
    unwritable(Path, "mkdir")
    with pytest.raises(JournalError, match="not writable"):
        RunFolder(tmp_path / "run").prepare()


def test_what_was_measured_is_readable_in_a_read_only_folder(host: Host, unwritable) -> None:
    from attnspec.report.run import open_run

    host.run()
    unwritable(Path, "mkdir")
    opened = open_run(host.folder.path)
    assert set(opened.cells["status"].to_pylist()) == {"ok"}
    assert opened.timings.num_rows == pq.read_table(host.folder.timings).num_rows


def test_open_run_reads_a_run_that_has_no_tables_yet(tmp_path: Path) -> None:
    from attnspec.report.run import open_run

    host = Host(tmp_path / "run", SMALL)
    host.run()
    cells = pq.read_table(host.folder.cells)
    host.folder.cells.unlink()
    (host.folder.path / "lengths.csv").write_text(LENGTHS)
    opened = open_run(host.folder.path)
    assert opened.cells.equals(cells)
    assert opened.spec.name == "fake"
    assert opened.provenance["runner"]["name"] == "fake"


def test_a_file_system_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(handle: int, kind: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(JournalError, match="keeps no locks.*choose another with --out"), RunLock(tmp_path):
        pass
