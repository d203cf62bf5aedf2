"""One workload: its implementations are set up, verified and measured together, pack by pack.

An implementation that runs out of memory beside the others is put aside, freed, and tried once more alone; only then is
that its outcome. Any other failure ends its own cases and leaves the rest in the loop.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from attnspec.errors import AttnspecError
from attnspec.execute.clock import Clock, Sample
from attnspec.execute.device_kernels import check_kernels, device_kernels
from attnspec.execute.joint import Agreement, JointStrategy
from attnspec.execute.memory import allocated_bytes, peak_bytes
from attnspec.execute.prepared import Prepared, Step
from attnspec.execute.rounds import Timed, interleave
from attnspec.execute.sent import Sent
from attnspec.execute.tensors import Tensors
from attnspec.execute.verify import verify
from attnspec.record.status import Status
from attnspec.sharding.sharding import Sharding, comm_bytes
from attnspec.stats import median
from attnspec.wire import Implementation, JobRequest, WorkloadRequest
from attnspec.worker.anchor import Anchor
from attnspec.worker.bench import Bench, Benches, open_benches
from attnspec.worker.environment import Environment
from attnspec.worker.failures import failure_of
from attnspec.worker.identity import identify
from attnspec.worker.lost_device import let_go
from attnspec.worker.reporter import CaseState, Reporter

COMPUTE_ITERATIONS = 5
"""Timed iterations of a strategy's computation alone."""


@dataclass(slots=True, kw_only=True)
class Unit:
    """Cases that share one bound implementation: the same implementation, forward alone or with a backward.

    first_pack: where it goes on after it was put aside.
    """

    implementation: Implementation
    needs_backward: bool
    provider: str
    cases: list[CaseState]
    first_pack: int = 0
    prepared: Prepared | None = None

    @property
    def open_cases(self) -> list[CaseState]:
        """Cases without an outcome."""
        return [case for case in self.cases if not case.ended]


class WorkloadRun:
    """Those cases of one workload that run together."""

    def __init__(
        self,
        request: JobRequest,
        workload: WorkloadRequest,
        environment: Environment,
        clock: Clock,
        reporter: Reporter,
        anchor: Anchor,
        agreement: Agreement,
    ) -> None:
        self.request, self.workload, self.environment = request, workload, environment
        self.clock, self.reporter, self.anchor = clock, reporter, anchor
        self.agreement = agreement
        self._aside: list[Unit] = []

    def run(self, cases: Sequence[CaseState]) -> None:
        """Bring every case to its outcome."""
        self.reporter.spent.on("setup")
        units = self._units(cases)
        if not units:
            return
        self.anchor.between(self.environment, self.clock)
        self.reporter.spent.on("setup")
        try:
            benches = self.agreement.together(self._open, units)
        except Exception as error:  # noqa: BLE001  (without packs or tensors every case has this outcome)
            self._fail([case for unit in units for case in unit.cases], error)
            return
        self._measure(units, benches)
        while self._aside:
            unit = self._aside.pop(0)
            names = ", ".join(case.case_id for case in unit.cases)
            self.reporter.message(f"out of memory beside others, trying alone: {names}")
            self._measure([unit], benches)

    def _open(self, units: Sequence[Unit]) -> Benches:
        needs_backward = any(unit.needs_backward for unit in units)
        return open_benches(
            self.request, self.workload, self.environment, self.agreement, needs_backward=needs_backward
        )

    def _units(self, cases: Sequence[CaseState]) -> list[Unit]:
        """Cases that are to be measured, by bound implementation; all others get their outcome here."""
        units: dict[tuple[str, bool], Unit] = {}
        for case in cases:
            self.reporter.phase(case, "setup")
            try:
                self.agreement.together(self._choose, case)
                self._agree_on_key(case)
            except Exception as error:  # noqa: BLE001  (a broken library is this case's outcome)
                self._fail([case], error)
                continue
            if case.result_key in self.request.done:
                self.reporter.resumed(case)
                self.anchor.resumed(case)
                continue
            assert case.provider is not None
            unit = units.setdefault(
                case.request.binding,
                Unit(
                    implementation=case.request.implementation,
                    needs_backward=case.request.needs_backward,
                    provider=case.provider,
                    cases=[],
                ),
            )
            unit.cases.append(case)
        return list(units.values())

    def _choose(self, case: CaseState) -> None:
        """Find the provider, and with it the key under which results stand."""
        case.provider, case.provider_version, case.result_key = identify(self.request, case.request, self.environment)

    def _agree_on_key(self, case: CaseState) -> None:
        """Raise unless all ranks found the same packages, devices, drivers and environment variables."""
        keys = self.agreement.exchange((case.provider, case.provider_version, case.result_key))
        differing = next((rank for rank, key in enumerate(keys) if key != keys[0]), None)
        if differing is not None:
            theirs, ours = (" ".join(map(str, keys[rank][:2])) for rank in (differing, 0))
            raise AttnspecError(
                f"ranks differ: {case.request.implementation.kernel} is {theirs} on rank {differing} and {ours} on "
                "rank 0, or the device, its driver or an environment variable is another"
            )

    def _measure(self, units: list[Unit], benches: Benches) -> None:
        """All packs of units that run together; those that are left at the end are ok."""
        for number in range(benches.num_packs):
            live = [unit for unit in units if unit.open_cases and unit.first_pack <= number]
            if live:
                self.reporter.spent.on("setup")
                self._measure_pack(live, number, benches.pack(number), alone=len(units) == 1)
        for unit in units:
            for case in unit.open_cases:
                self.reporter.ok(case)

    def _measure_pack(self, units: list[Unit], number: int, bench: Bench, *, alone: bool) -> None:
        for unit in units:
            try:
                self.agreement.together(self._set_up, unit, number, bench, alone=alone)
            except Exception as error:  # noqa: BLE001  (whatever a library raises is its cases' outcome)
                self._end_or_put_aside(unit, unit.open_cases, number, error, alone=alone)
        turns: dict[str, tuple[Unit, CaseState]] = {}
        timed: list[Timed] = []
        for unit in units:
            for case in unit.open_cases if unit.prepared is not None else ():
                turns[case.case_id] = unit, case
                timed.append(self._timed(unit, case, number, bench))
        spent = self.reporter.spent
        spent.on("measure")
        spent.under_way_s = lambda: sum(one.warm_s + one.spent_s for one in timed)
        try:
            interleave(
                timed,
                self.request.measure,
                on_turn=lambda one: self.reporter.phase(turns[one.case_id][1], "measure"),
                on_round=lambda one, samples: self._journal_round(one, turns[one.case_id][1], number, samples),
                on_failure=lambda one: self._end_or_put_aside(
                    turns[one.case_id][0], [turns[one.case_id][1]], number, one.error, alone=alone
                ),
                agree=self.agreement.largest,
            )
        finally:
            spent.timed_s += spent.under_way_s()
            spent.under_way_s = float
        for one in timed:
            case = turns[one.case_id][1]
            case.packs[number].setup_s += one.warm_s
            if one.error is None:
                if not one.timer.held:
                    self.reporter.message(
                        f"{case.case_id}: waits for the device itself, so its time holds launches too"
                    )
                self.anchor.measured(case, number, one.samples_ns)
        for one in timed:
            unit, case = turns[one.case_id]
            plan = bench.plan(unit.implementation)
            if one.error is None and plan is not None:
                self._measure_compute(unit, case, one, number, bench)
                self._count_bytes(unit, case, number, plan)
        timed.clear()
        turns.clear()
        for unit in units:
            unit.prepared = None

    def _timed(self, unit: Unit, case: CaseState, number: int, bench: Bench) -> Timed:
        assert unit.prepared is not None and case.result_key is not None
        before = self.request.rounds_done.get(case.result_key, {}).get(str(number), 0)
        return Timed(
            case_id=case.case_id,
            timer=bench.timer(self.clock, unit.prepared, unit.prepared.step(case.request.pass_)),
            rounds_done=before + case.rounds_done[number],
        )

    def _journal_round(self, one: Timed, case: CaseState, number: int, samples: Sequence[Sample]) -> None:
        self.reporter.round(case, number, one.next_round, samples)

    def _set_up(self, unit: Unit, number: int, bench: Bench, *, alone: bool) -> None:
        """Lower, bind, verify, look at what one iteration does. Leaves `unit.prepared`, or outcomes."""
        device, cases = self.environment.device, unit.open_cases
        self.reporter.phase(cases[0], "verify")
        self.reporter.spent.on("oracle")
        checks = bench.checks(unit.implementation)
        self.reporter.phase(cases[0], "setup")
        self.reporter.spent.on("setup")
        started, before_bytes = time.perf_counter(), allocated_bytes(device)
        prepared, tensors = self.agreement.together(
            bench.prepare, unit.implementation, unit.provider, needs_backward=unit.needs_backward
        )
        self.reporter.phase(cases[0], "verify")
        self.reporter.spent.on("verify")
        found = verify(prepared, checks, tensors, synchronize=self.clock.synchronize, agree=bench.agree)
        plan = bench.plan(unit.implementation)
        for case in cases:
            case.backend = next(filter(None, self.agreement.exchange(prepared.backend)), None)
            case.set_up(number, found, prepared.lower_s, plan)
        own_bytes = allocated_bytes(device) - before_bytes
        self.reporter.spent.on("inspect")
        for case in cases:
            try:
                if found.status is Status.WRONG:
                    self.reporter.wrong(case, found)
                else:
                    self.agreement.together(self._inspect, prepared, case, tensors, own_bytes, first=number == 0)
            except Exception as error:  # noqa: BLE001  (what one pass raises is that case's outcome)
                self._end_or_put_aside(unit, [case], number, error, alone=alone)
            case.packs[number].setup_s = time.perf_counter() - started
        self.reporter.spent.on("setup")
        if unit.open_cases:
            unit.prepared = prepared

    def _inspect(self, prepared: Prepared, case: CaseState, tensors: Tensors, own_bytes: int, *, first: bool) -> None:
        """Peak memory, and on the first pack which device kernels run. Nothing to see on the CPU."""
        device, step = self.environment.device, prepared.step(case.request.pass_)
        inputs_bytes = tensors.num_bytes if prepared.needs_backward else tensors.num_bytes_forward
        found_bytes = peak_bytes(step, device, inputs_bytes + own_bytes)
        of_ranks = [one for one in self.agreement.exchange(found_bytes) if one is not None]
        if of_ranks:
            case.peak_memory_bytes = max(*of_ranks, case.peak_memory_bytes or 0)
        if first:
            case.kernel_names = device_kernels(step, device)
            check_kernels(case.kernel_names, prepared.bound.expected_kernels, case.request.pass_)
            if case.kernel_names == ():
                self.reporter.message(f"{case.case_id}: the profiler saw no device kernel: which ones ran is not shown")

    def _measure_compute(self, unit: Unit, case: CaseState, one: Timed, number: int, bench: Bench) -> None:
        """What of the time is not computation: a few iterations more, with nothing sent."""
        prepared = unit.prepared
        assert prepared is not None and isinstance(prepared.bound, JointStrategy)
        if not prepared.bound.can_be_silent:
            return
        try:
            with prepared.bound.silent():
                timer = bench.timer(self.clock, prepared, prepared.step(case.request.pass_))
                timer.round(1)
                taken = timer.round(COMPUTE_ITERATIONS, ahead=one.ahead)
        except Exception as error:  # noqa: BLE001  (the case is measured; this figure of it is missing then)
            self.reporter.message(f"{case.case_id}: the computation alone could not be timed: {error}")
            return
        (compute_ns,) = self.agreement.largest([median([sample.elapsed_ns for sample in taken])])
        elapsed_ns = median([sample_ns for held in one.samples_ns for sample_ns in held])
        case.packs[number].exposed_comm_ms = max(elapsed_ns - compute_ns, 0.0) / 1e6

    def _count_bytes(self, unit: Unit, case: CaseState, number: int, plan: Sharding) -> None:
        """What one iteration really asks torch.distributed for, beside what the plan says of it: a note."""
        prepared = unit.prepared
        assert prepared is not None and isinstance(prepared.bound, JointStrategy)
        try:
            step = prepared.step(case.request.pass_)
            if step.before is not None:
                step.before()
            sent = self.agreement.together(_count, prepared.bound, step)
        except Exception as error:  # noqa: BLE001  (the case is measured; this note of it is missing then)
            self.reporter.message(f"{case.case_id}: what is sent could not be counted: {error}")
            return
        (counted,) = self.agreement.largest([float(sent.num_bytes)])
        if self.agreement.ranks.rank == 0:
            note = {
                "case_id": case.case_id,
                "pack": number,
                "planned_bytes": comm_bytes(plan, case.request.pass_),
                "counted_bytes": int(counted),
                "calls": dict(sorted(sent.calls.items())),
                "not_counted": sorted(sent.unknown),
            }
            self.reporter.note("communication", note)

    def _end_or_put_aside(
        self, unit: Unit, cases: Sequence[CaseState], number: int, error: Exception | None, *, alone: bool
    ) -> None:
        """The outcome of a failure; out of memory beside others means another try alone."""
        assert error is not None
        if failure_of(error).status is Status.OOM and not alone:
            held = [case for case in cases if not case.ended]
            unit.cases = [case for case in unit.cases if case not in held]
            self._aside.append(
                Unit(
                    implementation=unit.implementation,
                    needs_backward=unit.needs_backward,
                    provider=unit.provider,
                    cases=held,
                    first_pack=number,
                )
            )
            let_go(error, self.environment.device, self.clock)
        else:
            self._fail(cases, error)

    def _fail(self, cases: Sequence[CaseState], error: Exception) -> None:
        failure = failure_of(error)
        if failure.status is Status.ERROR:
            self.reporter.trace(", ".join(case.case_id for case in cases), error)
        if failure.status is not Status.UNSUPPORTED:
            let_go(error, self.environment.device, self.clock)
        for case in cases:
            if not case.ended:
                self.reporter.failed(case, failure)


def _count(bound: JointStrategy, step: Step) -> Sent:
    with bound.counted() as sent:
        step.run()
    return sent
