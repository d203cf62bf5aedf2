"""The anchor: one case that a job measures again, between workloads and at its end, so that a machine's drift shows.

What it says is how far a comparison of two runs can be trusted; the more often it speaks, the better that is known.
It has a small loop of its own beside that of `attnspec.execute.rounds`: one case, as many iterations as its warm-up
leaves time for, and no interval to be narrowed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from attnspec.execute.clock import Clock, Timer
from attnspec.execute.joint import Agreement
from attnspec.execute.memory import release
from attnspec.execute.rounds import LEAST_ROUNDS, WARM_ITERATIONS, settling
from attnspec.stats import median
from attnspec.wire import JobRequest
from attnspec.worker.bench import open_benches
from attnspec.worker.environment import Environment
from attnspec.worker.lost_device import let_go
from attnspec.worker.reporter import CaseState, Reporter

MOST_SECONDS = 1.0
"""Of timed work each time."""
FREE_SECONDS = 2.0
"""What measuring it between workloads may cost at first, set-up included, so that short runs do it too."""
MOST_SHARE = 0.02
"""What it may cost beyond that, of the job's time."""


class Anchor:
    """Notes the anchor's first pack when it is measured in its place, between workloads, and at the end.

    Where an earlier attempt measured it in its place, this one measures it again before anything else, so that the
    drift between attempts shows too; where nothing else is left to measure, not at all.
    """

    def __init__(self, request: JobRequest, reporter: Reporter, agreement: Agreement) -> None:
        self._request, self._reporter, self._agreement = request, reporter, agreement
        self._case: CaseState | None = None
        self._began_s = time.perf_counter()
        self._cost_s = self._spent_s = 0.0
        self._again: list[list[list[float]]] = []
        self._others = False

    def measured(self, case: CaseState, pack: int, samples_ns: Sequence[Sequence[float]]) -> None:
        """A case was measured on a pack; if it is the anchor on its first one, note it."""
        if case.case_id == self._request.anchor and pack == 0:
            self._case = case
            self._note(case, "start", [one for held in samples_ns for one in held])

    def resumed(self, case: CaseState) -> None:
        """A case has an ok record of an earlier attempt; if it is the anchor, it bears witness all the same."""
        if case.case_id == self._request.anchor:
            self._case = case

    def between(self, environment: Environment, clock: Clock) -> None:
        """Before cases are measured: once more, where that is cheap beside the rest.

        As far as the last time tells, or its own set-up; of one that was resumed neither is known the first time.
        """
        case, self._others = self._case, True
        if case is None:
            return
        cost_s = self._cost_s or case.setup_s
        allowed_s = FREE_SECONDS + MOST_SHARE * (time.perf_counter() - self._began_s)
        (over_s,) = self._agreement.largest([self._spent_s + cost_s - allowed_s])
        if over_s <= 0:
            self._measure(environment, clock)

    def again(self, environment: Environment, clock: Clock) -> None:
        """Measure it at the end, where anything was measured."""
        case = self._case
        if case is not None and self._others and self._measure(environment, clock):
            self._note(case, "end", [one for held in self._again[-1] for one in held])

    def _measure(self, environment: Environment, clock: Clock) -> bool:
        """Once more, without verification, and note all so far; a failure is noted and changes no outcome."""
        case = self._case
        if case is None or case.provider is None:
            return False
        started_s = time.perf_counter()
        self._reporter.spent.on("anchor")
        self._reporter.phase(case, "measure")
        try:
            self._again.append(self._agreement.together(self._times, case, case.provider, environment, clock))
        except Exception as error:  # noqa: BLE001  (the anchor is a witness; its case has its outcome already)
            self._reporter.message(f"the anchor {case.case_id} could not be measured again: {error}")
            self._case = None  # it would fail each time
            let_go(error, environment.device, clock)
        else:
            found = {"case_id": case.case_id, "result_key": case.result_key, "pack": 0, "again_ns": self._again}
            self._reporter.note("anchor_again", found)
        release(environment.device)
        self._cost_s = time.perf_counter() - started_s
        self._spent_s += self._cost_s
        return self._case is not None

    def _times(self, case: CaseState, provider: str, environment: Environment, clock: Clock) -> list[list[float]]:
        """Elapsed ns by round."""
        asked, needs_backward = case.request.implementation, case.request.needs_backward
        benches = open_benches(
            self._request, case.workload, environment, self._agreement, needs_backward=needs_backward
        )
        bench = benches.pack(0)
        prepared, tensors = bench.prepare(asked, provider, needs_backward=needs_backward)
        prepared.load(tensors)
        timer = bench.timer(clock, prepared, prepared.step(case.request.pass_))
        timer.round(1)
        warm_s = self._cost_of_one(timer, 1)
        if settling(timer.settle_ns / 1e9, warm_s):
            warm_s = self._cost_of_one(timer, WARM_ITERATIONS)
        least = self._request.measure.min_iters
        fitting = int(MOST_SECONDS / warm_s) if warm_s > 0 else least
        iterations = max(2, min(least, fitting))
        rounds = min(LEAST_ROUNDS, iterations)
        ahead = settling(timer.settle_ns / 1e9, warm_s)
        return [
            self._agreement.largest(
                [float(one.elapsed_ns) for one in timer.round(-(-iterations // rounds), ahead=ahead)]
            )
            for _ in range(rounds)
        ]

    def _cost_of_one(self, timer: Timer, iterations: int) -> float:
        """Seconds that an iteration costs among so many."""
        started = time.perf_counter()
        timer.round(iterations)
        (cost_s,) = self._agreement.largest([(time.perf_counter() - started) / iterations])
        return cost_s

    def _note(self, case: CaseState, when: str, samples_ns: Sequence[float]) -> None:
        found = {
            "case_id": case.case_id,
            "result_key": case.result_key,
            "when": when,
            "pack": 0,
            "median_ns": median(samples_ns),
            "num_samples": len(samples_ns),
        }
        self._reporter.note("anchor", found)
