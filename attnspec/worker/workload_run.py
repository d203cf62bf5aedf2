"""One workload: its implementations are set up, verified and measured together, pack by pack.

An implementation that runs out of memory beside the others is put aside, freed, and tried once more alone; only then is
that its outcome. Any other failure ends its own cases and leaves the rest in the loop.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from attnspec import plugins
from attnspec.errors import AttnspecError
from attnspec.execute.clock import Clock, Sample
from attnspec.execute.device_kernels import check_kernels, device_kernels
from attnspec.execute.memory import allocated_bytes, peak_bytes, release
from attnspec.execute.prepared import Prepared, prepare_kernel
from attnspec.execute.providers import choose
from attnspec.execute.rounds import Timed, interleave
from attnspec.execute.tensors import Tensors
from attnspec.execute.verify import Checks, verify
from attnspec.record.keys import result_key
from attnspec.record.status import Status
from attnspec.slices import AttnSlices
from attnspec.support import Problem
from attnspec.wire import Implementation, JobRequest, WorkloadRequest
from attnspec.worker.environment import Environment
from attnspec.worker.failures import failure_of
from attnspec.worker.inputs import read_slices, tensors_of
from attnspec.worker.reporter import CaseState, Reporter


class DeviceLostError(AttnspecError):
    """The device answers nothing any more; only a fresh process can go on."""


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


Measured = Callable[[CaseState, int, Sequence[Sequence[float]]], None]
"""Told after each pack: the case, the pack, elapsed ns by round."""


class WorkloadRun:
    """Those cases of one workload that run together."""

    def __init__(
        self,
        request: JobRequest,
        workload: WorkloadRequest,
        environment: Environment,
        clock: Clock,
        reporter: Reporter,
        on_measured: Measured,
    ) -> None:
        self.request, self.workload, self.environment = request, workload, environment
        self.clock, self.reporter, self.on_measured = clock, reporter, on_measured
        self._aside: list[Unit] = []

    def run(self, cases: Sequence[CaseState]) -> None:
        """Bring every case to its outcome."""
        units = self._units(cases)
        if not units:
            return
        try:
            packs = read_slices(self.request.run_dir, self.workload)
            needs_backward = any(unit.needs_backward for unit in units)
            tensors = tensors_of(self.workload, self.environment.device, needs_backward=needs_backward)
        except Exception as error:  # noqa: BLE001  (without packs or tensors every case has this outcome)
            self._fail([case for unit in units for case in unit.cases], error)
            return
        self._measure(units, packs, tensors)
        while self._aside:
            unit = self._aside.pop(0)
            names = ", ".join(case.case_id for case in unit.cases)
            self.reporter.message(f"out of memory beside others, trying alone: {names}")
            self._measure([unit], packs, tensors)

    def _units(self, cases: Sequence[CaseState]) -> list[Unit]:
        """Cases that are to be measured, by bound implementation; all others get their outcome here."""
        units: dict[tuple[str, bool], Unit] = {}
        for case in cases:
            implementation = case.request.implementation
            self.reporter.phase(case, "setup")
            try:
                self._choose(case)
            except Exception as error:  # noqa: BLE001  (a broken library is this case's outcome)
                self._fail([case], error)
                continue
            if case.result_key in self.request.done:
                self.reporter.resumed(case)
                continue
            assert case.provider is not None
            needs_backward = case.request.pass_ != "fwd"
            unit = units.setdefault(
                (repr(implementation), needs_backward),
                Unit(implementation=implementation, needs_backward=needs_backward, provider=case.provider, cases=[]),
            )
            unit.cases.append(case)
        return list(units.values())

    def _choose(self, case: CaseState) -> None:
        """Find the provider, and with it the key under which results stand."""
        implementation = case.request.implementation
        if implementation.strategy is not None:
            plugins.load("strategies", implementation.strategy)
            raise AttnspecError("this worker measures kernels, not context-parallel strategies")
        module = plugins.load("kernels", implementation.kernel)
        case.provider, case.provider_version = choose(module, implementation.provider, self.environment.support)
        distribution = next(one.distribution for one in module.PROVIDERS if one.name == case.provider)
        case.result_key = result_key(
            case.case_id,
            self.request.image_id,
            {distribution: case.provider_version},
            self.environment.driver,
            self.environment.support.model,
        )

    def _measure(self, units: list[Unit], packs: Sequence[AttnSlices], tensors: Tensors) -> None:
        """All packs of units that run together; those that are left at the end are ok."""
        for number, slices in enumerate(packs):
            live = [unit for unit in units if unit.open_cases and unit.first_pack <= number]
            if live:
                self._measure_pack(live, number, slices, tensors, alone=len(units) == 1)
        for unit in units:
            for case in unit.open_cases:
                self.reporter.ok(case)

    def _measure_pack(
        self, units: list[Unit], number: int, slices: AttnSlices, tensors: Tensors, *, alone: bool
    ) -> None:
        checks = Checks.of(self.workload.workload_id, self.workload.shape, slices, tensors)
        for unit in units:
            try:
                self._set_up(unit, number, slices, checks, tensors, alone=alone)
            except Exception as error:  # noqa: BLE001  (whatever a library raises is its cases' outcome)
                self._end_or_put_aside(unit, unit.open_cases, number, error, alone=alone)
        del checks
        turns: dict[str, tuple[Unit, CaseState]] = {}
        timed: list[Timed] = []
        for unit in units:
            for case in unit.open_cases if unit.prepared is not None else ():
                turns[case.case_id] = unit, case
                timed.append(self._timed(unit, case, number))
        interleave(
            timed,
            self.request.measure,
            on_turn=lambda one: self.reporter.phase(turns[one.case_id][1], "measure"),
            on_round=lambda one, samples: self._journal_round(one, turns[one.case_id][1], number, samples),
            on_failure=lambda one: self._end_or_put_aside(
                turns[one.case_id][0], [turns[one.case_id][1]], number, one.error, alone=alone
            ),
        )
        for one in timed:
            case = turns[one.case_id][1]
            case.setup_s += one.warm_s
            if one.error is None:
                if not getattr(one.timer, "held", True):
                    self.reporter.message(
                        f"{case.case_id}: waits for the device itself, so its time holds launches too"
                    )
                self.on_measured(case, number, one.samples_ns)
        timed.clear()
        turns.clear()
        for unit in units:
            unit.prepared = None

    def _timed(self, unit: Unit, case: CaseState, number: int) -> Timed:
        assert unit.prepared is not None and case.result_key is not None
        return Timed(
            case_id=case.case_id,
            timer=self.clock.timer(unit.prepared.step(case.request.pass_)),
            rounds_done=self.request.rounds_done.get(case.result_key, {}).get(str(number), 0),
        )

    def _journal_round(self, one: Timed, case: CaseState, number: int, samples: Sequence[Sample]) -> None:
        self.reporter.round(case, number, one.next_round, samples)

    def _set_up(
        self, unit: Unit, number: int, slices: AttnSlices, checks: Checks, tensors: Tensors, *, alone: bool
    ) -> None:
        """Lower, bind, verify, look at what one iteration does. Leaves `unit.prepared`, or outcomes."""
        device, cases = self.environment.device, unit.open_cases
        self.reporter.phase(cases[0], "verify")
        checks.ready(partials=1)
        self.reporter.phase(cases[0], "setup")
        started, before_bytes = time.perf_counter(), allocated_bytes(device)
        problem = Problem(
            shape=self.workload.shape,
            slices=slices,
            needs_backward=unit.needs_backward,
            device=self.environment.support,
        )
        prepared = prepare_kernel(unit.implementation, problem, unit.provider)
        self.reporter.phase(cases[0], "verify")
        found = verify(prepared, checks, tensors, synchronize=self.clock.synchronize)
        for case in cases:
            case.lower_s += prepared.lower_s
            case.backend = prepared.backend
            case.verifications.append(found)
        own_bytes = allocated_bytes(device) - before_bytes
        for case in cases:
            try:
                if found.status is Status.WRONG:
                    self.reporter.wrong(case, found)
                else:
                    self._inspect(prepared, case, tensors, own_bytes, first=number == 0)
            except Exception as error:  # noqa: BLE001  (what one pass raises is that case's outcome)
                self._end_or_put_aside(unit, [case], number, error, alone=alone)
            case.setup_s += time.perf_counter() - started
        if unit.open_cases:
            unit.prepared = prepared

    def _inspect(self, prepared: Prepared, case: CaseState, tensors: Tensors, own_bytes: int, *, first: bool) -> None:
        """Peak memory, and on the first pack which device kernels run. Nothing to see on the CPU."""
        device, step = self.environment.device, prepared.step(case.request.pass_)
        inputs_bytes = tensors.num_bytes if prepared.needs_backward else tensors.num_bytes_forward
        found_bytes = peak_bytes(step, device, inputs_bytes + own_bytes)
        if found_bytes is not None:
            case.peak_memory_bytes = max(found_bytes, case.peak_memory_bytes or 0)
        if first:
            case.kernel_names = device_kernels(step, device)
            check_kernels(case.kernel_names, prepared.bound.expected_kernels)

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
            self._let_go(error)
        else:
            self._fail(cases, error)

    def _fail(self, cases: Sequence[CaseState], error: Exception) -> None:
        failure = failure_of(error)
        if failure.status is Status.ERROR:
            self.reporter.trace(", ".join(case.case_id for case in cases), error)
        if failure.status is not Status.UNSUPPORTED:
            self._let_go(error)
        for case in cases:
            if not case.ended:
                self.reporter.failed(case, failure)

    def _let_go(self, error: Exception) -> None:
        """Free what the failed call held, and make sure that the device still answers."""
        held: BaseException | None = error
        while held is not None:
            traceback.clear_frames(held.__traceback__)
            held = held.__cause__ or held.__context__
        release(self.environment.device)
        try:
            self.clock.synchronize()
        except Exception as lost:
            raise DeviceLostError(f"the device does not answer after: {error}") from lost
