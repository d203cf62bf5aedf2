"""The CUDA clock: events time the device and not the launch.

Per iteration, on the current stream: the untimed part; a write over a buffer larger than L2; a spin kernel that holds
the queue until the whole iteration is enqueued, unless iterations that together last longer have yet to begin; with
several ranks a one-element all-reduce; the start event; the iteration; the end event; and a short spin of known cycles
whose duration gives the SM clock. Whatever other streams the iteration uses, it has the current one wait for them
before it returns (as attnspec.support.bound asks), so the end event comes after all. An iteration whose start event had
passed before it was enqueued is taken again with a longer hold.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from attnspec.execute.clock import Sample, no_garbage_collection
from attnspec.execute.nvml import Nvml
from attnspec.execute.prepared import Step
from attnspec.stats import median

CLOCK_CYCLES = 100_000
"""Length of the spin that measures the SM clock: 50 microseconds at 2 GHz."""
LEAST_HOLD_NS, MOST_HOLD_NS = 40_000, 50_000_000
MAX_RETAKES = 8
MOST_AHEAD, SPARE_AHEAD = 16, 2
"""How many iterations the host may be ahead of the device: as many as spare the hold and these two, 16 at most. A full
queue would make it wait within a launch, and in host_ns."""
SETTLE_NS = 75_000_000
"""A chip at its power limit keeps the clock of what ran before: on an H200 0.6 of the difference after 28 ms, 0.1 after
55 and 0.03 or less after 75."""
_spin: Callable[[int], None] = torch.cuda._sleep
"""Keeps the current stream busy for so many SM cycles."""
_events: Any = torch.cuda.Event


@dataclass(slots=True, kw_only=True)
class _Enqueued:
    started_ns: int
    host_ns: int
    late: bool
    start: Any
    end: Any
    after: Any


class CudaClock:
    """The clock of one CUDA device and its current stream.

    align: enqueues what lines the ranks up right before the start event, never waiting on the host. agree: which of
    some iterations were late on any rank, so that all take the same ones again.
    """

    settle_ns = SETTLE_NS

    def __init__(
        self,
        device: torch.device,
        *,
        align: Callable[[], None] | None = None,
        agree: Callable[[Sequence[bool]], Sequence[bool]] = list,
    ) -> None:
        self.device, self.align, self.agree = device, align, agree
        self.nvml = Nvml.of(device)
        self.flush_bytes = max(2 * int(torch.cuda.get_device_properties(device).L2_cache_size), 2**26)
        self._flushed = torch.empty(self.flush_bytes // 4, dtype=torch.int32, device=device)
        self.cycles_per_ns = 1.0
        self.overhead_ns = 0.0
        self._calibrate()

    def timer(self, step: Step) -> CudaTimer:
        """A timer of one step."""
        return CudaTimer(self, step)

    def synchronize(self) -> None:
        """Wait for all streams of the device."""
        torch.cuda.synchronize(self.device)

    def flush(self) -> None:
        """Write over L2."""
        self._flushed.zero_()

    def hold(self, duration_ns: float) -> None:
        """Keep the stream busy for about so long."""
        _spin(int(duration_ns * self.cycles_per_ns))

    def sm_clock_mhz(self, spin_ns: float) -> float | None:
        """The SM clock from how long the spin of CLOCK_CYCLES took."""
        return CLOCK_CYCLES * 1e3 / (spin_ns - self.overhead_ns) if spin_ns > self.overhead_ns else None

    def _calibrate(self) -> None:
        spins = {cycles: [self._spin_ns(cycles) for _ in range(7)] for cycles in (0, CLOCK_CYCLES)}
        self.overhead_ns = sorted(spins[0])[3]
        self.cycles_per_ns = CLOCK_CYCLES / max(sorted(spins[CLOCK_CYCLES])[3] - self.overhead_ns, 1.0)

    def _spin_ns(self, cycles: int) -> float:
        before, after = (_events(enable_timing=True) for _ in range(2))
        _spin(CLOCK_CYCLES)  # holds the queue, so that the two events time the device alone
        before.record()
        _spin(cycles)
        after.record()
        after.synchronize()
        return float(before.elapsed_time(after)) * 1e6


class CudaTimer:
    """See Timer. `held` is false when the queue could not be held: the step waits for the device itself."""

    settle_ns = CudaClock.settle_ns

    def __init__(self, clock: CudaClock, step: Step) -> None:
        self._clock, self._step = clock, step
        self._hold_ns = float(LEAST_HOLD_NS)
        self._host_ns: deque[int] = deque(maxlen=9)
        self._retakes = 0
        self._enqueued: deque[_Enqueued] = deque()
        self._lasts_ns = 0.0
        self.held = True

    def round(self, iterations: int, *, ahead: int = 0) -> list[Sample]:
        """Enqueue all iterations, then read their events."""
        enqueued: list[_Enqueued] = []
        self._enqueued.clear()
        with no_garbage_collection():
            for _ in range(ahead):
                self._enqueue()
            while len(enqueued) < iterations:
                taken = [self._enqueue() for _ in range(iterations - len(enqueued))]
                late = self._clock.agree([one.late for one in taken])
                enqueued += [one for one, is_late in zip(taken, late, strict=True) if not is_late]
            throttled = None if self._clock.nvml is None else self._clock.nvml.throttled()
            self._clock.synchronize()
        samples = [self._sample(one, throttled) for one in enqueued]
        self._lasts_ns = min((sample.elapsed_ns for sample in samples), default=0.0)
        return samples

    def _enqueue(self) -> _Enqueued:
        clock, step = self._clock, self._step
        while len(self._enqueued) >= self._most_ahead():
            self._enqueued.popleft().after.synchronize()
        start, end, after = (_events(enable_timing=True) for _ in range(3))
        if step.before is not None:
            step.before()
        clock.flush()
        if not self._is_behind():
            clock.hold(self._hold_ns)
        if clock.align is not None:
            clock.align()
        started_ns = time.time_ns()
        start.record()
        begin = time.perf_counter_ns()
        result = step.run()
        host_ns = time.perf_counter_ns() - begin
        end.record()
        _spin(CLOCK_CYCLES)
        after.record()
        late = self._is_late(start, host_ns)
        del result
        one = _Enqueued(started_ns=started_ns, host_ns=host_ns, late=late, start=start, end=end, after=after)
        self._enqueued.append(one)
        return one

    def _is_behind(self) -> bool:
        """Whether the iterations that the device has not begun last longer than the queue would be held.

        Then nothing need rest the chip: at its power limit it would run the faster for it.
        """
        enough = self._enough()
        return enough <= len(self._enqueued) and not self._enqueued[-enough].start.query()

    def _enough(self) -> int:
        """Iterations that together last as long as the queue would be held."""
        return math.ceil(self._hold_ns / self._lasts_ns) if self._lasts_ns > 0 else MOST_AHEAD

    def _most_ahead(self) -> int:
        return min(self._enough() + SPARE_AHEAD, MOST_AHEAD)

    def _is_late(self, start: Any, host_ns: int) -> bool:
        """Whether the host kept the device waiting; then the iteration is taken again, under a longer hold."""
        if not self.held:
            return False
        if not start.query():
            self._host_ns.append(host_ns)
            self._retakes = 0
            self._hold_ns = min(2 * median(self._host_ns) + LEAST_HOLD_NS / 2, MOST_HOLD_NS)
            self._hold_ns = max(self._hold_ns, LEAST_HOLD_NS)
            return False
        self._retakes += 1
        self._hold_ns = min(2 * self._hold_ns, MOST_HOLD_NS)
        if self._retakes <= MAX_RETAKES:
            return True
        self.held, self._hold_ns = False, LEAST_HOLD_NS
        return False

    def _sample(self, one: _Enqueued, throttled: bool | None) -> Sample:
        return Sample(
            started_ns=one.started_ns,
            elapsed_ns=round(one.start.elapsed_time(one.end) * 1e6),
            host_ns=one.host_ns,
            sm_clock_mhz=self._clock.sm_clock_mhz(one.end.elapsed_time(one.after) * 1e6),
            throttled=throttled,
        )
