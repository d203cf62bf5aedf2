"""A package whose import ends the process costs its own cases, and few workers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.slow

KERNEL = """
PLUGIN_KIND = "kernels"
from attnspec.kernels.sdpa import Params, bind, lower
from attnspec.support import Provider, Support
PROVIDERS = (
    Provider(name="first", distribution="first", module="ends_the_process", fix="pip install first"),
    Provider(name="second", distribution="torch", module="torch"),
)
SUPPORT = Support(devices=("cpu",), dtypes=("float32",), max_head_dim=64)
"""
SPEC = """\
attnspec: 1
name: ends
shape: {num_heads_q: 2, num_heads_kv: 2, head_dim: 16, dtype: float32}
sweeps:
  - {level: kernel, masks: [full, causal], seqlen: [64, 96], passes: [fwd, bwd], kernels: [reference, {own: ASKED}]}
measure: {min_iters: 5, max_seconds: 0.05}
"""

RANKS = """\
attnspec: 1
name: ends
shape: {num_heads_q: 4, num_heads_kv: 4, head_dim: 16, dtype: float32}
sweeps:
  - level: distributed
    masks: [causal]
    seqlen_per_rank: [64]
    cp_size: 2
    passes: [fwd, bwd]
    strategies: [{ring_p2p: {kernel: reference}}, {ulysses: {kernel: own}}, {ring_p2p: {kernel: own}}]
measure: {min_iters: 3, max_seconds: 0.05}
"""


def ran(folder: Path, ends: str, asked: str = "{}", spec: str = SPEC) -> tuple[int, dict[str, list[dict]], int]:
    """Exit code, rows by kernel, and how many workers were started."""
    (folder / "own.py").write_text(KERNEL)
    (folder / "ends_the_process.py").write_text(ends)
    (folder / "spec.yaml").write_text(spec.replace("ASKED", asked))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
    argv = [sys.executable, "-m", "attnspec", "run", "--plugin", "own.py", "spec.yaml"]
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)
    rows: dict[str, list[dict]] = {}
    for row in pq.read_table(folder / "runs" / "spec" / "cells.parquet").to_pylist():
        rows.setdefault(row["kernel"], []).append(row)
    return done.returncode, rows, len(list((folder / "runs" / "spec" / "artifacts" / "jobs").iterdir()))


@pytest.mark.parametrize(
    ("ends", "signal"), [("import os; os.abort()", "SIGABRT"), ("import ctypes; ctypes.string_at(0)", "SIGSEGV")]
)
def test_an_import_that_crashes_costs_two_workers_and_no_other_kernel(tmp_path: Path, ends: str, signal: str) -> None:
    code, rows, num_workers = ran(tmp_path, ends)
    assert code == 1
    assert num_workers == 2
    assert [row["status"] for row in rows["reference"]] == ["ok"] * 8
    assert {(row["status"], row["reason_code"]) for row in rows["own"]} == {("crashed", "signal")}
    (reason,) = {row["reason"] for row in rows["own"]}
    assert reason.startswith(f"the worker was ended by {signal} while importing and trying the packages of case ")


@pytest.mark.parametrize("rank", [0, 1])
def test_an_import_that_crashes_on_one_rank_costs_two_workers_and_no_other_kernel(tmp_path: Path, rank: int) -> None:
    ends = f"import os\nif os.environ['RANK'] == '{rank}':\n    os.abort()"
    code, rows, num_workers = ran(tmp_path, ends, spec=RANKS)
    assert code == 1
    assert [row["status"] for row in rows["reference"]] == ["ok"] * 2
    assert {row["status"] for row in rows["own"]} == {"crashed"}
    (reason,) = {row["reason"] for row in rows["own"]}
    assert "while importing and trying the packages of case " in reason
    assert num_workers == 2


def test_an_import_that_exits_is_a_broken_package_and_the_next_provider_runs(tmp_path: Path) -> None:
    code, rows, num_workers = ran(tmp_path, "import sys; sys.exit(7)")
    assert (code, num_workers) == (0, 1)
    assert {(row["status"], row["provider"]) for row in rows["own"]} == {("ok", "second")}


def test_an_import_that_exits_is_unsupported_where_it_is_asked_for(tmp_path: Path) -> None:
    code, rows, num_workers = ran(tmp_path, "import sys; sys.exit('needs a licence')", "{provider: first}")
    assert (code, num_workers) == (0, 1)
    (found,) = {(row["status"], row["reason_code"], row["reason"]) for row in rows["own"]}
    assert found == ("unsupported", "broken_package", "first: SystemExit: needs a licence (pip install first)")
