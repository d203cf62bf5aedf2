"""One job: every case of a request to its outcome, those to be tried alone last."""

from __future__ import annotations

from attnspec.execute.clock import Clock
from attnspec.execute.joint import Agreement
from attnspec.execute.links import link_facts
from attnspec.wire import JobRequest, WorkloadRequest
from attnspec.worker.anchor import Anchor
from attnspec.worker.choosing import Choosing
from attnspec.worker.compile_ahead import compile_ahead
from attnspec.worker.environment import Environment, conditions
from attnspec.worker.reporter import CaseState, Reporter
from attnspec.worker.workload_run import WorkloadRun


def run_job(
    request: JobRequest, environment: Environment, clock: Clock, reporter: Reporter, agreement: Agreement
) -> None:
    """Say hello, measure, say bye. Raises DeviceLostError and JournalError; everything else is an outcome."""
    reporter.hello()
    try:
        _run_cases(request, environment, clock, reporter, agreement)
    finally:
        reporter.note("spent", reporter.spent.facts())
    reporter.bye()


def _run_cases(
    request: JobRequest, environment: Environment, clock: Clock, reporter: Reporter, agreement: Agreement
) -> None:
    of_clock = {"flush_bytes": clock.flush_bytes, "settle_ns": clock.settle_ns}
    reporter.note("conditions", {"when": "start", **conditions(environment), **of_clock})
    if agreement.ranks.size > 1:
        facts = agreement.together(link_facts, agreement.ranks, environment.device, clock.synchronize)
        reporter.note("bandwidth", facts)
    reporter.spent.on("setup")
    choosing = Choosing(request, environment, reporter, agreement)
    choosing.ahead(case for one in request.workloads for case in one.cases if case.case_id not in request.solo)
    reporter.spent.on("compile_ahead")
    compile_ahead(request, environment, reporter)
    reporter.spent.on("start")
    anchor = Anchor(request, reporter, agreement)

    def run(workload: WorkloadRequest, cases: list[CaseState]) -> None:
        WorkloadRun(request, workload, environment, clock, reporter, anchor, agreement).run(cases)

    solo: list[CaseState] = []
    for workload in request.workloads:
        cases = [CaseState(request=case, workload=workload) for case in workload.cases]
        solo += [case for case in cases if case.case_id in request.solo]
        run(workload, [case for case in cases if case.case_id not in request.solo])
    for case in solo:
        reporter.spent.on("setup")
        choosing.ahead([case.request])
        run(case.workload, [case])
    anchor.again(environment, clock)
    reporter.spent.on("end")
    reporter.note("conditions", {"when": "end", **conditions(environment), **of_clock})
