"""Distributed specs from the command line to the tables, over torchrun and gloo."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from attnspec.resources import shipped

pytestmark = pytest.mark.slow
FAULTY = Path(__file__).parents[1] / "faults" / "faulty_rank.py"
TINY = """\
attnspec: 1
name: tiny
shape: {num_heads_q: 4, num_heads_kv: 4, head_dim: 16, dtype: float32}
data: {lengths: page, num_packs: 2}
sweeps:
  - level: distributed
    masks: [causal, varlen_full]
    cp_size: 2
    seqlen_per_rank: 64
    passes: [fwd, bwd]
    strategies:
      - ring_p2p: {kernel: reference}
      - ulysses: {kernel: sdpa}
      - magi_attn_a2av: {kernel: ffa}
measure: {min_iters: 3, max_seconds: 0.05}
"""
FAULTS = """\
attnspec: 1
name: faults
shape: {num_heads_q: 4, num_heads_kv: 4, head_dim: 16, dtype: float32}
sweeps:
  - level: distributed
    masks: [causal]
    cp_size: 2
    seqlen_per_rank: 64
    passes: [fwd]
    strategies:
      - ring_p2p: {kernel: reference}
      - ring_p2p: {kernel: {faulty_rank: {fault: "die:forward:3"}}}
      - ulysses: {kernel: {faulty_rank: {fault: "hang:forward:5"}}}
      - ring_allgather: {kernel: {faulty_rank: {fault: "oom:backward"}}}
measure: {min_iters: 3, max_seconds: 0.05, setup_timeout_s: 20, measure_timeout_s: 20}
"""


def start(folder: Path, text: str, *options: str) -> subprocess.Popen[str]:
    folder.mkdir()
    spec = folder / "spec.yaml"
    spec.write_text(text)
    argv = [sys.executable, "-m", "attnspec", "--plugin", str(FAULTY), "run", str(spec), "--out", str(folder / "run")]
    return subprocess.Popen(
        [*argv, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def finished(process: subprocess.Popen[str], code: int, folder: Path):
    said, _ = process.communicate(timeout=400)
    assert process.returncode == code, said
    return pq.read_table(folder / "run" / "cells.parquet").to_pylist()


def test_two_runs_at_once_do_not_collide(tmp_path):
    folders = [tmp_path / name for name in ("one", "two")]
    processes = [start(folder, TINY) for folder in folders]
    for folder, process in zip(folders, processes, strict=True):
        cells = finished(process, 0, folder)
        assert sorted(cell["status"] for cell in cells) == ["ok"] * 8 + ["unsupported"] * 4
        for cell in (cell for cell in cells if cell["status"] == "ok"):
            assert cell["tflops_per_gpu"] == pytest.approx(cell["tflops"] / 2)
            assert cell["verified_error"] <= cell["verified_bound"]
            assert cell["comm_bytes"] > 0
            assert cell["load_imbalance"] >= 1
            assert cell["padding_tokens"] >= 0
            assert cell["exposed_comm_ms"] >= 0
            assert cell["mesh"]
        timings = pq.read_table(folder / "run" / "timings.parquet").to_pylist()
        assert {row["rank"] for row in timings} == {0, 1}
        by_rank = [[row for row in timings if row["rank"] == rank] for rank in (0, 1)]
        assert len(by_rank[0]) == len(by_rank[1])
        assert list((folder / "run" / "report" / "figures").glob("distributed_*.svg"))


def test_a_rank_that_dies_or_hangs_ends_its_case_alone(tmp_path):
    process = start(tmp_path / "run", FAULTS)
    cells = {(cell["strategy"], cell["kernel"]): cell for cell in finished(process, 1, tmp_path / "run")}
    assert cells["ring_p2p", "reference"]["status"] == "ok"
    assert cells["ring_p2p", "faulty_rank"]["status"] == "crashed"
    assert cells["ulysses", "faulty_rank"]["status"] == "timeout"
    assert (
        cells["ring_allgather", "faulty_rank"]["status"] == "ok"
    )  # its fault is in the backward, which nobody asks for


def test_a_second_run_measures_nothing_anew(tmp_path):
    folder = tmp_path / "run"
    finished(start(folder, TINY), 0, folder)
    before = pq.read_table(folder / "run" / "timings.parquet").num_rows
    argv = [sys.executable, "-m", "attnspec", "run", str(folder / "spec.yaml"), "--out", str(folder / "run")]
    subprocess.run(argv, check=True, timeout=300, capture_output=True)
    assert pq.read_table(folder / "run" / "timings.parquet").num_rows == before


@pytest.mark.parametrize("name", ["h200_distributed"])
def test_a_shipped_spec_is_rehearsed_on_cpu_ranks(tmp_path, name):
    folder = tmp_path / name
    text = (shipped("specs") / f"{name}.yaml").read_text()
    process = start(
        folder, text, "--rehearse", "--only", "kernel=reference|ffa,mask=varlen_causal,pass=bwd,seqlen_per_rank=128"
    )
    cells = [cell for cell in finished(process, 0, folder) if cell["status"] != "skipped"]
    assert {cell["strategy"] for cell in cells if cell["status"] == "ok"} == {
        "ulysses",
        "ring_p2p",
        "ring_allgather",
        "usp",
        "loongtrain",
        "hybrid_dcp",
    }
