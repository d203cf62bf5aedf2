"""The same faults with the real worker, which needs seconds to start."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from queue import SimpleQueue

import pyarrow.parquet as pq
import pytest
from fake_run import wait_for

from attnspec.launch.processes import WorkerProcess
from attnspec.launch.run_folder import RunFolder
from attnspec.launch.supervision import Ended
from attnspec.record.journal import read_journal

pytestmark = pytest.mark.slow

SPEC = """\
attnspec: 1
name: real
shape: {num_heads_q: 2, num_heads_kv: 2, head_dim: 16, dtype: float32}
sweeps:
  - {level: kernel, masks: [full, causal], seqlen: [64, 96], passes: [fwd, bwd], kernels: [reference, sdpa]}
measure: {min_iters: 5, max_seconds: 0.05}
"""
NUM_CASES = 16


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    (tmp_path / "spec.yaml").write_text(SPEC)
    return RunFolder(tmp_path / "runs" / "spec")


def start(folder: RunFolder) -> subprocess.Popen[bytes]:
    root = folder.path.parent.parent
    argv = [sys.executable, "-m", "attnspec", "run", "spec.yaml"]
    with (root / "host.log").open("ab") as log:
        return subprocess.Popen(argv, cwd=root, stdout=log, stderr=log, start_new_session=True)


def started_by(pid: int) -> list[int]:
    """The process and all below it."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parents.setdefault(int((entry / "stat").read_text().rpartition(")")[2].split()[1]), []).append(
                int(entry.name)
            )
        except OSError:
            continue
    found = [pid]
    for one in found:
        found += parents.get(one, [])
    return found


def alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def check_complete(folder: RunFolder) -> None:
    cells = pq.read_table(folder.cells)
    assert cells.num_rows == NUM_CASES
    assert set(cells["status"].to_pylist()) == {"ok"}
    assert min(cells["num_samples"].to_pylist()) >= 5
    assert min(cells["tflops"].to_pylist()) > 0
    names = ("case_id", "pack", "rank", "round", "iteration")
    timings = pq.read_table(folder.timings).select(list(names)).to_pylist()
    assert len({tuple(row.values()) for row in timings}) == len(timings)


@pytest.mark.parametrize("seed", range(2))
def test_kills_at_random_moments_and_then_a_run_to_the_end(folder: RunFolder, seed: int) -> None:
    random.seed(seed)
    for _ in range(3):
        host = start(folder)
        wait_for(lambda host=host: folder.journal.is_dir() or host.poll() is not None, 120)
        time.sleep(random.uniform(0, 15))
        family = started_by(host.pid)
        os.kill(random.choice(family[:2]), random.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
        host.wait(240)
        wait_for(lambda family=family: not any(map(alive, family)), 60)
    assert start(folder).wait(240) == 0
    check_complete(folder)
    ok = [one for one in read_journal(folder.journal).outcomes if one.status == "ok"]
    assert len({one.case_id for one in ok}) == len(ok) == NUM_CASES


def test_ranks_that_ignore_signals_are_ended_with_their_launcher(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(
        "import os, signal, time, pathlib\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"pathlib.Path({str(tmp_path)!r}, os.environ['RANK']).write_text(str(os.getpid()))\n"
        "time.sleep(3600)\n"
    )
    inbox: SimpleQueue = SimpleQueue()
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    worker = WorkerProcess(argv, {"OMP_NUM_THREADS": "1"}, tmp_path / "log", inbox.put)
    wait_for(
        lambda: all((tmp_path / str(rank)).is_file() and (tmp_path / str(rank)).read_text() for rank in (0, 1)), 120
    )
    ranks = [int((tmp_path / str(rank)).read_text()) for rank in (0, 1)]
    assert all(map(alive, ranks))
    worker.end()
    assert isinstance(inbox.get(timeout=60), Ended)
    wait_for(lambda: not any(map(alive, ranks)))


def test_variables_of_the_shell_are_recorded_and_another_is_measured_anew(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def last_words() -> str:
        log = folder.path.parent.parent / "host.log"
        words = log.read_text()
        log.unlink()
        return words

    monkeypatch.setenv("NCCL_ALGO", "Tree")
    assert start(folder).wait(240) == 0
    last_words()
    held = json.loads(folder.provenance.read_text())
    (facts,) = held["workers"]["environment"].values()
    assert facts["variables"]["NCCL_ALGO"] == held["found"]["variables"]["NCCL_ALGO"] == "Tree"
    assert start(folder).wait(240) == 0
    assert f"{NUM_CASES} cases have an ok record under the same conditions" in last_words()
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    assert start(folder).wait(240) == 0
    assert "conditions differ from the last attempt: variables.NCCL_ALGO: Tree -> Ring" in last_words()
    ok = [one for one in read_journal(folder.journal).outcomes if one.status == "ok"]
    assert len(ok) == 2 * NUM_CASES
    check_complete(folder)
