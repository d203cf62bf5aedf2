"""The anchor: one case that a job measures again at its end, so that drift inside and between jobs shows."""

from __future__ import annotations

import time
from collections.abc import Sequence

from attnspec.execute.clock import Clock
from attnspec.execute.joint import Agreement
from attnspec.execute.memory import release
from attnspec.execute.rounds import settling
from attnspec.stats import median
from attnspec.wire import JobRequest
from attnspec.worker.bench import open_benches
from attnspec.worker.environment import Environment
from attnspec.worker.reporter import CaseState, Reporter

MOST_SECONDS = 1.0


class Anchor:
    """Notes the anchor's first pack when it is measured in its place, and once more at the end."""

    def __init__(self, request: JobRequest, reporter: Reporter, agreement: Agreement) -> None:
        self._request, self._reporter, self._agreement = request, reporter, agreement
        self._case: CaseState | None = None

    def measured(self, case: CaseState, pack: int, samples_ns: Sequence[Sequence[float]]) -> None:
        """A case was measured on a pack; if it is the anchor on its first one, note it."""
        if case.case_id == self._request.anchor and pack == 0:
            self._case = case
            self._note(case, "start", [one for held in samples_ns for one in held])

    def again(self, environment: Environment, clock: Clock) -> None:
        """Measure it once more, without verification; a failure is noted and changes no outcome."""
        case = self._case
        if case is None or case.provider is None:
            return
        self._reporter.phase(case, "measure")
        try:
            times = self._agreement.together(self._times, case, case.provider, environment, clock)
            self._note(case, "end", times)
        except Exception as error:  # noqa: BLE001  (the anchor is a witness; its case has its outcome already)
            self._reporter.message(f"the anchor {case.case_id} could not be measured again: {error}")
        release(environment.device)

    def _times(self, case: CaseState, provider: str, environment: Environment, clock: Clock) -> list[float]:
        pass_, asked = case.request.pass_, case.request.implementation
        needs_backward = pass_ != "fwd"
        benches = open_benches(
            self._request, case.workload, environment, self._agreement, needs_backward=needs_backward
        )
        bench = benches.pack(0)
        prepared, tensors = bench.prepare(asked, provider, needs_backward=needs_backward)
        prepared.load(tensors)
        timer = bench.timer(clock, prepared, prepared.step(pass_))
        timer.round(1)
        started = time.perf_counter()
        timer.round(1)
        (warm_s,) = self._agreement.largest([time.perf_counter() - started])
        fitting = int(MOST_SECONDS / warm_s) if warm_s > 0 else self._request.measure.min_iters
        iterations = max(2, min(self._request.measure.min_iters, fitting))
        taken = timer.round(iterations, ahead=settling(timer.settle_ns / 1e9, warm_s))
        return self._agreement.largest([float(sample.elapsed_ns) for sample in taken])

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
