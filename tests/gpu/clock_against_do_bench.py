"""Our clock beside triton.testing.do_bench, on the same calls in turns; writes a table.

python tests/gpu/clock_against_do_bench.py OUT.parquet
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnspec.execute.cuda_clock import CudaClock, CudaTimer
from attnspec.execute.prepared import Step
from attnspec.execute.rounds import settling
from attnspec.stats import median

SEQLENS = tuple(2**power for power in range(10, 16))
TURNS = 9
REP_MS = 15
OVERHEAD_MS = 0.2
"""What an iteration costs beside the call: emptying L2, holding the queue, reading the clock."""
MS = 1e6


class NoHold(CudaClock):
    """The clock without the spin that keeps the queue until an iteration is enqueued whole."""

    def hold(self, duration_ns: float) -> None:
        """Nothing."""


def attention(seqlen: int, *, causal: bool, backend: SDPBackend) -> Callable[[], Any]:
    """A forward of torch's attention: batch 1, heads 64:8, head_dim 128, bfloat16."""
    q, k, v = (torch.randn(1, heads, seqlen, 128, dtype=torch.bfloat16, device="cuda") for heads in (64, 8, 8))

    def run() -> Any:
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)

    return run


def compare(run: Callable[[], Any], clock: CudaClock, unheld: CudaClock, turns: int = TURNS) -> dict[str, float]:
    """Medians over turns in ms: ours, ours without holding the queue, do_bench's; and the median ratio within a turn.

    In short turns and in changing order, each begun by 25 ms of the same calls, so that all find the chip alike.
    """
    from triton.testing import do_bench

    timers = clock.timer(Step(run=run)), unheld.timer(Step(run=run))
    timers[1].held = False
    iteration_ms = do_bench(run, warmup=25, rep=25, return_mode="median")
    iterations = max(3, min(20, round(REP_MS / iteration_ms)))
    ahead = settling(clock.settle_ns / MS, iteration_ms + OVERHEAD_MS)

    def ours(timer: CudaTimer) -> float:
        return median([sample.elapsed_ns for sample in timer.round(iterations, ahead=ahead)]) / MS

    ways: Sequence[Callable[[], float]] = (
        lambda: ours(timers[0]),
        lambda: ours(timers[1]),
        lambda: float(do_bench(run, warmup=25, rep=REP_MS, return_mode="median")),
    )
    orders = [sorted(range(3), key=lambda one, turn=turn: (one + turn) % 3) for turn in range(turns)]
    taken = [{which: ways[which]() for which in order} for order in orders]
    hosts = [sample.host_ns / MS for sample in timers[0].round(20)]
    held, without, theirs = (median([one[which] for one in taken]) for which in range(3))
    return {
        "ours_ms": held,
        "unheld_ms": without,
        "do_bench_ms": theirs,
        "ours_over_do_bench": median([one[0] / one[2] for one in taken]),
        "unheld_over_do_bench": median([one[1] / one[2] for one in taken]),
        "host_ms": median(hosts),
    }


def main(path: str) -> None:
    """Measure and write."""
    device = torch.device("cuda", 0)
    clock, unheld = CudaClock(device), NoHold(device)
    rows = [
        {
            "device": torch.cuda.get_device_name(device),
            "torch": torch.__version__,
            "backend": backend.name,
            "mask": "causal" if causal else "full",
            "seqlen": seqlen,
            **compare(attention(seqlen, causal=causal, backend=backend), clock, unheld),
        }
        for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION)
        for causal in (False, True)
        for seqlen in SEQLENS
    ]
    pq.write_table(pa.Table.from_pylist(rows), path)
    for row in rows:
        print(" ".join(f"{value:.4f}" if isinstance(value, float) else str(value) for value in row.values()))


if __name__ == "__main__":
    main(sys.argv[1])
