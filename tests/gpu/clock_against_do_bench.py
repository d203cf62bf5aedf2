"""Our clock beside triton.testing.do_bench, on the same calls in turns; writes a table, or goes on with one.

python tests/gpu/clock_against_do_bench.py OUT.parquet
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnspec.execute.cuda_clock import CLOCK_CYCLES, CudaClock, CudaTimer
from attnspec.execute.prepared import Step
from attnspec.execute.rounds import settling
from attnspec.launch.provenance import code_sha256
from attnspec.stats import median, percentile

SEQLENS = tuple(2**power for power in range(10, 16))
TURNS = 9
REP_MS = 75
OVERHEAD_MS = 0.1
"""What an iteration costs beside the call: emptying L2 and reading the clock."""
MS = 1e6


class NoHold(CudaClock):
    """The clock without the spin that keeps the queue until an iteration is enqueued whole."""

    def hold(self, duration_ns: float) -> None:
        """Nothing."""


@dataclass
class Way:
    """One way to take times. by_turn: times in ms; clocks_mhz: the SM clock beside each, where it was read."""

    take: Callable[[], tuple[list[float], list[float]]]
    by_turn: list[list[float]] = field(default_factory=list)
    clocks_mhz: list[float] = field(default_factory=list)

    def turn(self) -> None:
        """One more."""
        times, clocks = self.take()
        self.by_turn.append(times)
        self.clocks_mhz += clocks

    @property
    def times_ms(self) -> list[float]:
        """All of them."""
        return [one for turn in self.by_turn for one in turn]

    @property
    def spread(self) -> float:
        """(p80 - p20) / median."""
        times = self.times_ms
        return (percentile(times, 80) - percentile(times, 20)) / median(times)

    def over(self, other: Way) -> float:
        """The median over turns of this one's median over the other's."""
        pairs = zip(self.by_turn, other.by_turn, strict=True)
        return median([median(mine) / median(theirs) for mine, theirs in pairs])


def attention(seqlen: int, *, causal: bool, backend: SDPBackend) -> Callable[[], Any]:
    """A forward of torch's attention: batch 1, heads 64:8, head_dim 128, bfloat16."""
    q, k, v = (torch.randn(1, heads, seqlen, 128, dtype=torch.bfloat16, device="cuda") for heads in (64, 8, 8))

    def run() -> Any:
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)

    return run


@contextmanager
def clock_read_in_do_bench(clock: CudaClock) -> Iterator[list[float]]:
    """Inside, do_bench reads the SM clock before each iteration, by a spin that also gives the host time to go ahead."""
    from triton import runtime

    driver, read, events = runtime.driver.active, [], []
    clear = driver.clear_cache

    def clear_cache(cache: Any) -> None:
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        torch.cuda._sleep(CLOCK_CYCLES)
        after.record()
        events.append((before, after))
        clear(cache)

    driver.clear_cache = clear_cache
    try:
        yield read
    finally:
        driver.clear_cache = clear
        torch.cuda.synchronize()
        found = (clock.sm_clock_mhz(before.elapsed_time(after) * MS) for before, after in events)
        read += [one for one in found if one is not None]


def compare(run: Callable[[], Any], clock: CudaClock, unheld: CudaClock, turns: int = TURNS) -> dict[str, float]:
    """Medians in ms of ours, ours without holding the queue, do_bench, and do_bench with the SM clock read.

    In turns of changing order, each begun by the settling time of the same calls, so that all find the chip alike.
    Ratios are medians over turns; `spread` is (p80 - p20) / median of all samples.
    """
    from triton.testing import do_bench

    timers = clock.timer(Step(run=run)), unheld.timer(Step(run=run))
    timers[1].held = False
    settle_ms = clock.settle_ns / MS
    iteration_ms = do_bench(run, warmup=25, rep=25, return_mode="median")
    iterations = max(3, min(100, round(REP_MS / iteration_ms)))
    ahead = settling(settle_ms, iteration_ms + OVERHEAD_MS)
    for timer in timers:
        timer.round(3)

    def ours(timer: CudaTimer) -> tuple[list[float], list[float]]:
        samples = timer.round(iterations, ahead=ahead)
        return [one.elapsed_ns / MS for one in samples], [one.sm_clock_mhz for one in samples if one.sm_clock_mhz]

    def theirs() -> tuple[list[float], list[float]]:
        return list(do_bench(run, warmup=settle_ms, rep=REP_MS, return_mode="all")), []

    def theirs_with_clock() -> tuple[list[float], list[float]]:
        with clock_read_in_do_bench(clock) as read:
            times, _ = theirs()
        return times, read[-len(times) :]

    held, without, bench, clocked = ways = (
        Way(lambda: ours(timers[0])),
        Way(lambda: ours(timers[1])),
        Way(theirs),
        Way(theirs_with_clock),
    )
    for turn in range(turns):
        for at in range(len(ways)):
            ways[(at + turn) % len(ways)].turn()
    hosts = [sample.host_ns / MS for sample in timers[0].round(20)]
    ours_mhz, clocked_mhz = median(held.clocks_mhz), median(clocked.clocks_mhz)
    return {
        "ours_ms": median(held.times_ms),
        "unheld_ms": median(without.times_ms),
        "do_bench_ms": median(bench.times_ms),
        "clocked_do_bench_ms": median(clocked.times_ms),
        "ours_over_do_bench": held.over(bench),
        "unheld_over_do_bench": without.over(bench),
        "ours_over_clocked_do_bench": held.over(clocked),
        "ours_over_clocked_do_bench_in_cycles": held.over(clocked) * ours_mhz / clocked_mhz,
        "ours_mhz": ours_mhz,
        "clocked_do_bench_mhz": clocked_mhz,
        "ours_spread": held.spread,
        "do_bench_spread": bench.spread,
        "host_ms": median(hosts),
    }


def rows_of(device: torch.device, held: Sequence[Mapping[str, Any]] = ()) -> Iterator[dict[str, Any]]:
    """A row for each backend, mask and length that no row held has."""
    clock, unheld = CudaClock(device), NoHold(device)
    taken = {(row["backend"], row["mask"], row["seqlen"]) for row in held}
    for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):
        for mask in ("full", "causal"):
            for seqlen in SEQLENS:
                if (backend.name, mask, seqlen) not in taken:
                    yield {
                        "device": torch.cuda.get_device_name(device),
                        "torch": torch.__version__,
                        "code_sha256": code_sha256(),
                        "backend": backend.name,
                        "mask": mask,
                        "seqlen": seqlen,
                        **compare(attention(seqlen, causal=mask == "causal", backend=backend), clock, unheld),
                    }


def main(path: str) -> None:
    """Measure and write; the table holds what was measured so far at any time."""
    rows = pq.read_table(path).to_pylist() if Path(path).exists() else []
    for row in rows_of(torch.device("cuda", 0), rows):
        rows.append(row)
        pq.write_table(pa.Table.from_pylist([dict.fromkeys(row) | one for one in rows]), path)
        print(
            " ".join(f"{value:.4f}" if isinstance(value, float) else str(value) for value in row.values()), flush=True
        )


if __name__ == "__main__":
    main(sys.argv[1])
