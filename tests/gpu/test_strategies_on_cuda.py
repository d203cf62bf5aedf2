"""Every strategy on two GPUs from a spec to its table, at small sizes."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pyarrow.parquet as pq
import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
]
SPEC = """\
attnspec: 1
name: strategies_on_cuda
runner: local
shape: {{batch: 1, num_heads_q: 64, num_heads_kv: 8, head_dim: 128, dtype: bfloat16}}
data: {{lengths: page, max_doc_fraction: 1/4, num_packs: 1}}
sweeps:
  - level: distributed
    masks: [{masks}]
    cp_size: 2
    seqlen_per_rank: [1K, 2K]
    passes: [fwd, bwd]
    strategies:
{strategies}
measure: {{min_iters: 3, max_seconds: 0.05}}
"""
OURS = ("ulysses", "ring_p2p", "ring_allgather", "usp", "loongtrain", "hybrid_dcp")
LIBRARIES = ("te_p2p", "te_all_gather", "te_a2a")
EVERY_MASK = (
    "full, causal, varlen_full, varlen_causal, varlen_block_causal: {block: 256}, sliding_window_causal: {window: 500}"
)
RUNS = {
    # name: (strategies, what they run over, masks, statuses that may be)
    "sdpa": (OURS, "kernel: sdpa, backend: cudnn", EVERY_MASK, {"ok"}),
    "fa3": (OURS, "kernel: fa3", EVERY_MASK, {"ok"}),
    "cudnn": (
        OURS + LIBRARIES,
        "kernel: cudnn, provider: transformer-engine",
        "full, causal, varlen_causal",
        {"ok", "unsupported"},
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_every_strategy_is_verified(tmp_path, name):
    strategies, over, masks, allowed = RUNS[name]
    degrees = {"usp": ", ulysses_degree: 1", "loongtrain": ", ulysses_degree: 1, window: 1"}
    lines = "\n".join(f"      - {one}: {{{over}{degrees.get(one, '')}}}" for one in strategies)
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC.format(masks=masks, strategies=lines))
    argv = [sys.executable, "-m", "attnspec", "run", str(spec), "--out", str(tmp_path / "run")]
    ran = subprocess.run(argv, text=True, capture_output=True, check=False)
    assert ran.returncode in (0, 1), ran.stdout + ran.stderr
    cells = pq.read_table(tmp_path / "run" / "cells.parquet").to_pylist()
    if all(one["reason_code"] == "missing_package" for one in cells):
        pytest.skip(cells[0]["reason"])
    told = Counter((one["strategy"], one["mask"], one["status"], one["reason"]) for one in cells)
    assert {one["status"] for one in cells} <= allowed, told
    assert {one["strategy"] for one in cells if one["status"] == "ok"} == set(strategies), told
