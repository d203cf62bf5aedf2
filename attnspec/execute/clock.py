"""Clocks: what takes the time of iterations. One interface for CPU and CUDA, and for fake clocks in tests."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from attnspec.errors import AttnspecError
from attnspec.execute.prepared import Step


class InvalidTimeError(AttnspecError):
    """The clock gave a time that cannot be."""


class NoSamplesError(AttnspecError):
    """A round without samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One timed iteration. started_ns: Unix time when it was enqueued. elapsed_ns: device time (host time on the CPU).
    host_ns: host time to enqueue it."""

    started_ns: int
    elapsed_ns: int
    host_ns: int
    sm_clock_mhz: float | None = None
    throttled: bool | None = None


class Timer(Protocol):
    """Takes the time of one step, and keeps what it learnt about it (how long the queue must be held).

    settle_ns: how long a step runs untimed before each round, until the device's clock is that under the step's own
    load; 0 where nothing has to settle. held: false where the step waits for the device itself, so that its times hold
    launches too.
    """

    @property
    def settle_ns(self) -> int:
        """See above."""
        ...

    @property
    def held(self) -> bool:
        """See above."""
        ...

    def round(self, iterations: int, *, ahead: int = 0) -> list[Sample]:
        """So many iterations, one after another, right behind `ahead` iterations that are not timed."""
        ...


class Clock(Protocol):
    """The clock of one device."""

    flush_bytes: int
    """Size of the buffer that is written before each iteration to empty the L2 cache; 0 for none."""
    settle_ns: int
    """Of its timers."""

    def timer(self, step: Step) -> Timer:
        """A timer of one step. It holds the step's tensors alive."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has done everything."""
        ...


class CpuClock:
    """Host time around each call. Caches are left as the previous iteration leaves them.

    align: waits for the other ranks right before each call.
    """

    flush_bytes, settle_ns = 0, 0

    def __init__(
        self,
        *,
        now_ns: Callable[[], int] = time.perf_counter_ns,
        unix_ns: Callable[[], int] = time.time_ns,
        align: Callable[[], None] | None = None,
    ) -> None:
        self.now_ns, self.unix_ns, self.align = now_ns, unix_ns, align

    def timer(self, step: Step) -> CpuTimer:
        """A timer of one step."""
        return CpuTimer(self, step)

    def synchronize(self) -> None:
        """Nothing runs behind the host's back."""


class CpuTimer:
    """See Timer."""

    settle_ns, held = CpuClock.settle_ns, True

    def __init__(self, clock: CpuClock, step: Step) -> None:
        self._clock, self._step = clock, step

    def round(self, iterations: int, *, ahead: int = 0) -> list[Sample]:
        """Time so many calls; the untimed part and freeing of results lie outside."""
        samples = []
        with no_garbage_collection():
            for _ in range(ahead + iterations):
                if self._step.before is not None:
                    self._step.before()
                if self._clock.align is not None:
                    self._clock.align()
                started = self._clock.unix_ns()
                begin = self._clock.now_ns()
                result = self._step.run()
                elapsed = self._clock.now_ns() - begin
                del result
                samples.append(Sample(started_ns=started, elapsed_ns=elapsed, host_ns=elapsed))
        return samples[ahead:]


def checked(taken: list[Sample]) -> list[Sample]:
    """The samples of a round. Raises NoSamplesError, InvalidTimeError.

    >>> checked([])
    Traceback (most recent call last):
    attnspec.execute.clock.NoSamplesError: the clock gave no samples
    """
    if not taken:
        raise NoSamplesError("the clock gave no samples")
    for sample in taken:
        if sample.elapsed_ns <= 0:
            raise InvalidTimeError(f"an iteration took {sample.elapsed_ns} ns by the device's own clock")
    return taken


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Keep Python's collector out of timed calls."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
