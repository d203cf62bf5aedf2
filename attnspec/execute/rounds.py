"""The timing loop of kernels and strategies: a workload's cases interleaved in rounds, so that drift hits all alike.

Each case warms up until two turns agree or a tenth of its budget is spent, then takes rounds of a few iterations in an
order drawn anew each time, at least min_iters in all, until its median's interval is narrow or its budget is spent.
Before each round it runs untimed until the device has settled under its own load: whatever ran before leaves the chip
hot or cool, so that the same kernel differed by 12 percent behind different neighbours on an H200 at its power limit.
A fifth of that is enough where the chip was left at the clock that the case is known to run at.
Nothing here knows a device or a file. Outside it run the few rounds of the anchor between workloads, which change no
outcome (`attnspec.worker.anchor`), and one of a strategy's computation alone.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from attnspec.execute.clock import Sample, Timer, checked
from attnspec.stats import block_bootstrap_median, median, relative_half_width, seed_of
from attnspec.wire import Measure

LEAST_ROUNDS = 5
"""What min_iters is dealt out to, one iteration or more each: the bootstrap draws rounds, so there must be some."""
FEWEST_ROUNDS = 2
"""Where min_iters is less than that: one round has no interval."""
TURN_NS = 40_000_000
"""A turn of a short case is made about this long: at its power limit a chip's clock wanders within some 20 ms."""
MOST_ITERATIONS = 50
WARM_AGREEMENT = 0.05
WARM_SHARE = 0.1
WARM_ITERATIONS = 3
"""In a turn of the warm-up that is not the first; only long iterations are alone."""
MOST_SETTLE_SHARE = 4
"""An iteration of so many times the settling time has little of it that is not settled."""
SAME_CLOCK = 0.005
BRIEF_SHARE = 0.2
"""Of the settling, where the last round left the chip at the clock that the case had in its own rounds."""
NUM_RESAMPLES = 300


@dataclass(slots=True, kw_only=True)
class Timed:
    """A case in the loop. rounds_done: journaled by earlier attempts, for this pack.

    samples_ns: elapsed times of this attempt by round. warm_s, spent_s: wall time of the warm-up and of the rounds.
    ahead: untimed iterations before a round, behind a case at another clock. clocks_mhz: the SM clock by round, where
    it could be read. error: what ended it early.
    """

    case_id: str
    timer: Timer
    rounds_done: int = 0
    samples_ns: list[list[float]] = field(default_factory=list)
    warm_s: float = 0.0
    spent_s: float = 0.0
    ahead: int = 0
    clocks_mhz: list[float] = field(default_factory=list)
    error: Exception | None = None
    _budgeted_s: float = 0.0
    _iterations: int = 1
    _next_check: int = 0

    @property
    def next_round(self) -> int:
        """Number of the next round, counted on over attempts."""
        return self.rounds_done + len(self.samples_ns)


Agree = Callable[[Sequence[float]], list[float]]
"""Makes ranks agree on numbers (elementwise maximum), so that they all take the same decisions."""


def interleave(
    cases: Sequence[Timed],
    measure: Measure,
    *,
    on_turn: Callable[[Timed], None],
    on_round: Callable[[Timed, list[Sample]], None],
    on_failure: Callable[[Timed], None] = lambda case: None,
    agree: Agree = list,
    now_s: Callable[[], float] = time.perf_counter,
) -> None:
    """Measure all cases. A case whose iteration raises leaves the loop with its `error`; the others go on.

    on_turn: before each turn, warm-up too. on_round: the samples of a finished round, before the next turn. on_failure:
    right after a case failed; may raise to end the loop.
    """
    loop = _Loop(measure, on_turn, on_round, on_failure, agree, now_s)
    for case in cases:
        loop.warm_up(case)
    running = [case for case in cases if case.error is None]
    order = random.Random(seed_of(",".join(case.case_id for case in cases)))  # the same on all ranks
    while running:
        for case in order.sample(running, len(running)):
            loop.take_round(case)
        running = [case for case in running if case.error is None and not loop.finished(case)]


class _Turn(NamedTuple):
    """Of all ranks: each iteration's time, what the turn cost, what the case's warm-up has cost so far, and the SM
    clock, if all could read it."""

    elapsed_ns: list[float]
    cost_s: float
    warm_s: float
    clock_mhz: float | None


class _Loop:
    def __init__(
        self,
        measure: Measure,
        on_turn: Callable[[Timed], None],
        on_round: Callable[[Timed, list[Sample]], None],
        on_failure: Callable[[Timed], None],
        agree: Agree,
        now_s: Callable[[], float],
    ) -> None:
        self.measure, self.agree, self.now_s = measure, agree, now_s
        self.on_turn, self.on_round, self.on_failure = on_turn, on_round, on_failure
        self.least_iterations = min(max(1, -(-measure.min_iters // LEAST_ROUNDS)), MOST_ITERATIONS)
        self.least_rounds = max(-(-measure.min_iters // self.least_iterations), FEWEST_ROUNDS)
        self._clock_before_mhz: float | None = None

    def warm_up(self, case: Timed) -> None:
        """Turns until two agree or a share of the budget is spent. Verification ran the same calls a moment ago."""
        before: float | None = None
        iterations = 1
        while case.error is None:
            started = self.now_s()
            taken = self._turn(case, iterations)
            if taken is None:
                return
            case.warm_s += self.now_s() - started
            turn = self._agreed(case, taken, self.now_s() - started)
            now = median(turn.elapsed_ns)
            self._learn(case, turn.cost_s / iterations)
            stationary = before is not None and abs(now - before) <= WARM_AGREEMENT * before
            if stationary or turn.warm_s >= WARM_SHARE * self.measure.max_seconds:
                return
            before, iterations = now, min(case._iterations, max(self.least_iterations, WARM_ITERATIONS))

    def take_round(self, case: Timed) -> None:
        """One round, handed to `on_round`."""
        started = self.now_s()
        ahead = self._ahead(case)
        self._clock_before_mhz = None
        taken = self._turn(case, case._iterations, ahead)
        if taken is None:
            return
        turn = self._agreed(case, taken, self.now_s() - started)
        self._clock_before_mhz = turn.clock_mhz
        if self._clock_before_mhz is not None:
            case.clocks_mhz.append(self._clock_before_mhz)
        self.on_round(case, taken)
        case.samples_ns.append(turn.elapsed_ns)
        case.spent_s += turn.cost_s
        per_iteration_s = turn.cost_s / (ahead + case._iterations)
        case._budgeted_s += per_iteration_s * case._iterations
        self._learn(case, per_iteration_s)

    def finished(self, case: Timed) -> bool:
        """Enough samples, and a narrow interval or no budget left."""
        if case.next_round < self.least_rounds:
            return False
        if case._budgeted_s >= self.measure.max_seconds:
            return True
        if len(case.samples_ns) < max(case._next_check, 2):
            return False
        # The interval costs about as much as a round, so it is looked at ever more rarely.
        case._next_check = len(case.samples_ns) + 1 + len(case.samples_ns) // 4
        seed = seed_of(f"{case.case_id}:stop")
        bounds = block_bootstrap_median(case.samples_ns, seed=seed, num_resamples=NUM_RESAMPLES)
        every = [one for held in case.samples_ns for one in held]
        return relative_half_width(bounds, median(every)) <= self.measure.ci

    def _ahead(self, case: Timed) -> int:
        """Iterations until the clock that the last round left has become the case's own."""
        before, own = self._clock_before_mhz, median(case.clocks_mhz) if case.clocks_mhz else None
        if before is None or own is None or abs(before - own) > SAME_CLOCK * own:
            return case.ahead
        return int(BRIEF_SHARE * case.ahead)

    def _learn(self, case: Timed, per_iteration_s: float) -> None:
        """How many iterations a turn takes, from what one of the last turn cost."""
        case._iterations = self._iterations_for(per_iteration_s)
        case.ahead = settling(case.timer.settle_ns / 1e9, per_iteration_s)

    def _turn(self, case: Timed, iterations: int, ahead: int = 0) -> list[Sample] | None:
        self.on_turn(case)
        try:
            taken = checked(case.timer.round(iterations, ahead=ahead))
        except Exception as error:  # noqa: BLE001  (any failure of a library is this case's outcome, not the loop's)
            case.error = error
            self.on_failure(case)
            return None
        return taken

    def _agreed(self, case: Timed, taken: list[Sample], cost_s: float) -> _Turn:
        """A turn as all ranks see it."""
        clocks = [sample.sm_clock_mhz for sample in taken if sample.sm_clock_mhz is not None]
        slowness = 1 / median(clocks) if clocks else math.inf
        elapsed_ns = [float(sample.elapsed_ns) for sample in taken]
        *elapsed_ns, cost_s, warm_s, slowness = self.agree([*elapsed_ns, cost_s, case.warm_s, slowness])
        return _Turn(elapsed_ns, cost_s, warm_s, None if math.isinf(slowness) else 1 / slowness)

    def _iterations_for(self, cost_s: float) -> int:
        fitting = int(TURN_NS / 1e9 / cost_s) if cost_s > 0 else MOST_ITERATIONS
        return max(self.least_iterations, min(fitting, MOST_ITERATIONS))


def settling(settle_s: float, cost_s: float) -> int:
    """Iterations that fill the settling time; none of those that are much longer than that.

    >>> settling(0.075, 0.001), settling(0.075, 0.05), settling(0.075, 0.3), settling(0.0, 0.001)
    (75, 2, 0, 0)
    """
    if cost_s <= 0 or cost_s >= MOST_SETTLE_SHARE * settle_s:
        return 0
    return math.ceil(settle_s / cost_s)
