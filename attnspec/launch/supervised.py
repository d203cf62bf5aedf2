"""The shell around supervision: starts workers for one job, feeds the state machine, carries out its instructions.

Knows nothing of plans and launchers: a job is a request to be narrowed for every worker, and starting a worker is an
argument. So it runs on the host and, inside an allocation, on the node that a batch script starts on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Protocol

from attnspec.errors import EnvironmentMissingError
from attnspec.launch.run_folder import RunFolder
from attnspec.launch.supervision import (
    Ended,
    EndWorker,
    Finish,
    Input,
    Instruction,
    Interrupted,
    RecordOutcome,
    Said,
    StartWorker,
    Supervision,
    Tell,
    Tick,
)
from attnspec.plan.requests import narrowed
from attnspec.record.entries import Outcome
from attnspec.record.journal import Journal, JournalWriter, read_journal
from attnspec.record.rounds import rounds_done, sound_samples
from attnspec.record.status import Status
from attnspec.wire import JobRequest, WorkloadRequest

GONE_WITHIN_S = 60.0


class Worker(Protocol):
    """A worker that was started; it says Ended once, at last."""

    pid: int

    def end(self, *, force: bool = False) -> None:
        """End it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What a worker is started with. journal: as it stood before. path: the file that holds the request."""

    request: JobRequest
    path: Path
    log: Path
    journal: Journal


class SupervisedJob:
    """Runs one job to its end.

    template: the request with all cases of the job. num_packs: case_id -> packs that an ok record needs samples of.
    start: starts a worker, which is heard through the callable given. watch: what the worker says, the outcomes that
    had to be recorded for it, and sentences for people.
    """

    def __init__(
        self,
        template: JobRequest,
        folder: RunFolder,
        *,
        num_packs: Mapping[str, int],
        start: Callable[[Start, Callable[[Said | Ended], None]], Worker],
        watch: Callable[[Said | RecordOutcome | Tell], None],
    ) -> None:
        self._template = template
        self._folder = folder
        self._num_packs = num_packs
        self._start_worker = start
        self._watch = watch
        self._inbox: SimpleQueue[Input] = SimpleQueue()
        self._worker: Worker | None = None
        self._gone_by: float | None = None
        self._attempt = template.attempt
        self._writer: JournalWriter | None = None

    def stop(self) -> None:
        """End the worker in good order; called again, at once. For signal handlers and other threads."""
        self._inbox.put(Interrupted())

    def run(self) -> Finish:
        """Supervise until the job is over. Raises EnvironmentMissingError when a worker cannot be started or ended."""
        groups = [[case.case_id for case in workload.cases] for workload in self._template.workloads]
        machine = Supervision(groups, self._template.measure, mates_of(self._template.workloads))
        try:
            return self._loop(machine)
        finally:
            self._close_writer()
            if self._worker is not None:  # an error of ours: leave nothing behind
                self._worker.end(force=True)
                with suppress(Empty):
                    while not isinstance(self._inbox.get(timeout=GONE_WITHIN_S), Ended):
                        pass

    def record(self, record: RecordOutcome) -> None:
        """Journal an outcome that no worker could."""
        if self._writer is None:
            writer = f"{self._template.job_id}-host"
            self._writer = JournalWriter(self._folder.journal, writer, self._attempt)
        self._writer.append_outcome(
            {
                "case_id": record.case_id,
                "result_key": record.result_key,
                "status": record.status.value,
                "reason_code": record.reason_code,
                "reason": record.reason,
            }
        )
        self._watch(record)

    def _loop(self, machine: Supervision) -> Finish:
        instructions = machine.begin(time.monotonic())
        while True:
            for instruction in instructions:
                if isinstance(instruction, Finish):
                    return instruction
                self._carry_out(instruction)
            dues = [due for due in (machine.deadline, self._gone_by) if due is not None]
            try:
                happened = self._inbox.get(timeout=max(0.0, min(dues) - time.monotonic()) if dues else None)
            except Empty:
                self._check_gone()
                happened = Tick()
            if isinstance(happened, Said):
                self._watch(happened)
            elif isinstance(happened, Ended):
                self._worker = self._gone_by = None
            instructions = machine.handle(happened, time.monotonic())

    def _check_gone(self) -> None:
        if self._worker is not None and self._gone_by is not None and time.monotonic() >= self._gone_by:
            pid, self._worker = self._worker.pid, None
            raise EnvironmentMissingError(
                f"worker process {pid} was killed and does not go away; it hangs in a driver, "
                "and this machine may need a restart"
            )

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case StartWorker():
                self._start(instruction)
            case EndWorker(force=force):
                if self._worker is not None:
                    self._worker.end(force=force)
                    self._gone_by = time.monotonic() + GONE_WITHIN_S
            case RecordOutcome():
                self.record(instruction)
            case Tell():
                self._watch(instruction)

    def _start(self, asked: StartWorker) -> None:
        journal = read_journal(self._folder.journal)
        self._close_writer()
        self._attempt = self._folder.next_attempt()
        sizes = {case.case_id: case.cp_size for workload in self._template.workloads for case in workload.cases}
        rounds = rounds_done(sound_samples(journal.timings, journal.outcomes), sizes)
        request = narrowed(
            self._template,
            attempt=self._attempt,
            only=frozenset(asked.case_ids),
            solo=asked.solo,
            done=ok_keys(journal.outcomes, self._num_packs, rounds),
            rounds_done=rounds,
        )
        path = self._folder.write_request(request)
        log = self._folder.log(request.job_id, request.attempt)
        start = Start(request=request, path=path, log=log, journal=journal)
        self._worker = self._start_worker(start, self._inbox.put)

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def mates_of(workloads: Iterable[WorkloadRequest]) -> dict[str, list[str]]:
    """case_id -> the cases of its workload with the same implementation that have a backward, or have none. Pure."""
    found: dict[str, list[str]] = {}
    for workload in workloads:
        units: dict[tuple[str, bool], list[str]] = {}
        for case in workload.cases:
            unit = units.setdefault(case.binding, [])
            unit.append(case.case_id)
            found[case.case_id] = unit
    return found


def ok_keys(
    outcomes: Iterable[Outcome], num_packs: Mapping[str, int], rounds: Mapping[str, Mapping[str, int]]
) -> tuple[str, ...]:
    """result_keys under which one of these cases has an ok record and samples of every pack. Pure.

    Samples may be gone: damaged on the disk, or voided by a later outcome.
    """
    return tuple(
        dict.fromkeys(
            one.result_key
            for one in outcomes
            if one.status == Status.OK
            and one.result_key is not None
            and one.case_id in num_packs
            and len(rounds.get(one.result_key, ())) == num_packs[one.case_id]
        )
    )
