"""How planning grows: 10, 50 and 100 thousand cases over shipped masks and kernels, time and memory."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

BYTES = 2**30
"""The budget for 100,000 cases; that for time is 8 s for all three steps on two quiet cores."""
SIZES = (10_000, 50_000, 100_000)

PLAN = """
import json, resource, sys, time
from attnspec import compile_plan
from attnspec.plan.document import json_chunks
from attnspec.spec import Spec

masks = ["full", "causal", "varlen_full", "varlen_causal", "share_question", "causal_blockwise"]
masks += [{"sliding_window_causal": {"window": 64 << step}} for step in range(8)]
masks += [{"varlen_block_causal": {"block": 256 << step}} for step in range(6)]
kernels = ["reference", "sdpa", "fa2", "fa3", "fa4", "cudnn", "flex"]
lengths = round(int(sys.argv[1]) / (len(masks) * len(kernels) * 2))
spec = Spec.model_validate({
    "attnspec": 1,
    "name": "large",
    "shape": {"batch": 1, "num_heads_q": 64, "num_heads_kv": 8, "head_dim": 128, "dtype": "bfloat16"},
    "sweeps": [{
        "level": "kernel", "masks": masks, "seqlen": [1024 + 256 * step for step in range(lengths)],
        "passes": ["fwd", "bwd"], "kernels": kernels,
    }],
})
began = time.perf_counter()
plan = compile_plan(spec)
compiled = time.perf_counter()
edges = plan.graph.number_of_edges()
drawn = time.perf_counter()
characters = sum(map(len, json_chunks(plan)))
print(json.dumps({
    "cases": len(plan.cases),
    "unsupported": len(plan.unsupported),
    "compile_s": compiled - began,
    "graph_s": drawn - compiled,
    "json_s": time.perf_counter() - drawn,
    "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
}))
"""


def planned(cases):
    done = subprocess.run([sys.executable, "-c", PLAN, str(cases)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("cases", SIZES)
def test_planning(benchmark, cases):
    """A process of its own each time, so that its peak memory is that of one plan."""
    figures = benchmark.pedantic(planned, args=(cases,), rounds=1)
    benchmark.extra_info.update(figures)
    assert figures["cases"] == pytest.approx(cases, rel=0.02)
    assert figures["peak_bytes"] < BYTES
