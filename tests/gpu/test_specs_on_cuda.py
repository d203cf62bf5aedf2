"""Every kernel of a shipped spec, verified with its backward on one GPU at one small size."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pyarrow.parquet as pq
import pytest
import torch

from attnspec.resources import shipped

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
BRIEF = ("--set", "measure.min_iters=3", "--set", "measure.max_seconds=0.05")


def test_no_kernel_is_accused(tmp_path):
    """Those that are not installed here are unsupported; none may be wrong or fail."""
    spec, out = shipped("specs") / "h200_kernel.yaml", tmp_path / "run"
    argv = [sys.executable, "-m", "attnspec", "run", str(spec), "--runner", "local", *BRIEF]
    argv += ["--only", "seqlen=2K,pass=bwd", "--out", str(out)]
    ran = subprocess.run(argv, text=True, capture_output=True, check=False)
    assert ran.returncode in (0, 1), ran.stdout + ran.stderr
    cells = [one for one in pq.read_table(out / "cells.parquet").to_pylist() if one["status"] != "skipped"]
    told = Counter((one["kernel"], one["backend"], one["mask"], one["status"], one["reason"]) for one in cells)
    assert {one["status"] for one in cells} <= {"ok", "unsupported"}, told
    assert any(one["status"] == "ok" for one in cells), told
