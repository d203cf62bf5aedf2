"""The shell around supervision: starts workers for one job, feeds the state machine, carries out its instructions."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Literal

from attnspec import plugins
from attnspec.errors import EnvironmentMissingError, JournalError
from attnspec.launch import happenings
from attnspec.launch.happenings import Watcher
from attnspec.launch.processes import WorkerProcess
from attnspec.launch.provenance import PACKAGE, differences
from attnspec.launch.run_folder import RunFolder, refused
from attnspec.launch.runner_profile import Runner
from attnspec.launch.stop_signals import StopSignals
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
    Verdict,
)
from attnspec.plan import Case, Job, Plan, job_request
from attnspec.record.entries import Outcome
from attnspec.record.journal import Journal, JournalWriter, read_journal
from attnspec.record.rounds import rounds_done, sound_samples
from attnspec.record.status import FAILED, Status

GONE_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What all jobs of one run share."""

    plan: Plan
    folder: RunFolder
    runner: Runner
    python: str
    device: Literal["cpu", "cuda"]
    code_sha256: str
    plugins: tuple[str, ...] = ()
    image_id: str | None = None


class JobRunner:
    """Runs one job to its end. `failed` tells whether the host had to record a failure itself."""

    def __init__(self, launch: Launch, job: Job, cases: Sequence[Case], watch: Watcher, signals: StopSignals) -> None:
        self._launch = launch
        self._job = job
        self._cases = {case.case_id: case for case in cases}
        self._watch = watch
        self._signals = signals
        self._inbox: SimpleQueue[Input] = SimpleQueue()
        self._worker: WorkerProcess | None = None
        self._gone_by: float | None = None
        self._attempt = 0
        self._writer: JournalWriter | None = None
        self._last_environment: Mapping[str, Any] | None = None
        self.failed = False

    def run(self) -> Verdict:
        """Supervise until the job is over.

        Raises EnvironmentMissingError and JournalError as the worker reports them, and when it cannot be ended.
        """
        groups = [[case.case_id for case in group.cases if case.case_id in self._cases] for group in self._job.groups]
        machine = Supervision((group for group in groups if group), self._launch.plan.measure)
        self._signals.on_stop = lambda: self._inbox.put(Interrupted())
        if self._signals.number is not None:
            self._inbox.put(Interrupted())
        try:
            return self._loop(machine)
        finally:
            self._signals.on_stop = None
            self._close_writer()
            if self._worker is not None:  # an error of ours: leave nothing behind
                self._worker.end(force=True)
                with suppress(Empty):
                    while not isinstance(self._inbox.get(timeout=GONE_WITHIN_S), Ended):
                        pass

    def _loop(self, machine: Supervision) -> Verdict:
        instructions = machine.begin(time.monotonic())
        while True:
            for instruction in instructions:
                if isinstance(instruction, Finish):
                    return self._finish(instruction)
                self._carry_out(instruction)
            dues = [due for due in (machine.deadline, self._gone_by) if due is not None]
            try:
                happened = self._inbox.get(timeout=max(0.0, min(dues) - time.monotonic()) if dues else None)
            except Empty:
                self._check_gone()
                happened = Tick()
            if isinstance(happened, Said):
                self._tell(happened)
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
                self._record(instruction)
            case Tell(text=text):
                self._watch(happenings.Said(text=text))

    def _start(self, asked: StartWorker) -> None:
        launch, folder = self._launch, self._launch.folder
        journal = read_journal(folder.journal)
        self._last_environment = _newest_environment(journal, self._job)
        self._close_writer()
        self._attempt = folder.next_attempt()
        rounds = _rounds_done(journal, self._cases.values())
        request = job_request(
            launch.plan,
            self._job,
            run_dir=str(folder.path.resolve()),
            attempt=self._attempt,
            device=launch.device,
            only=frozenset(asked.case_ids),
            env=launch.runner.env,
            done=_ok_keys(journal.outcomes, self._cases, rounds),
            rounds_done=rounds,
            solo=asked.solo,
            plugins=launch.plugins,
            image_id=launch.image_id,
            code_sha256=launch.code_sha256,
        )
        path = folder.write_request(request)
        launcher = plugins.load("launchers", launch.runner.launcher)
        held = os.environ.get("PYTHONPATH")
        argv, env = launcher.command(
            path.resolve(),
            python=launch.python,
            world_size=self._job.world_size,
            env={**({"PYTHONPATH": held} if held else {}), **request.env},
            code_path=code_path(folder),
        )
        log = folder.log(self._job.job_id, self._attempt)
        try:
            self._worker = WorkerProcess(argv, env, log, self._inbox.put)
        except OSError as error:
            raise refused(log, error) from error

    def _tell(self, said: Said) -> None:
        event = said.event
        case = self._cases.get(event.case_id or "")
        match event.kind:
            case "hello" if self._last_environment is not None:
                for line in changed_conditions(self._last_environment, event.data):
                    self._watch(happenings.Said(text=f"conditions differ from the last attempt: {line}"))
            case "phase" if case is not None:
                self._watch(happenings.TurnBegan(case=case, phase=event.phase or ""))
            case "outcome" if case is not None:
                resumed = event.data.get("resumed") is True
                self._watch(
                    happenings.CaseEnded(
                        case=case, status=event.status or "", reason=event.text or None, resumed=resumed
                    )
                )

    def _record(self, record: RecordOutcome) -> None:
        self.failed = self.failed or record.status in FAILED
        if self._writer is None:
            self._writer = JournalWriter(self._launch.folder.journal, f"{self._job.job_id}-host", self._attempt)
        self._writer.append_outcome(
            {
                "case_id": record.case_id,
                "result_key": record.result_key,
                "status": record.status.value,
                "reason_code": record.reason_code,
                "reason": record.reason,
            }
        )
        case = self._cases[record.case_id]
        self._watch(happenings.CaseEnded(case=case, status=record.status.value, reason=record.reason, resumed=False))

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _finish(self, finish: Finish) -> Verdict:
        if finish.verdict is Verdict.MISSING:
            raise EnvironmentMissingError(
                f"the worker of runner {self._launch.runner.name} cannot start:\n{finish.text}"
            )
        if finish.verdict is Verdict.JOURNAL:
            raise JournalError(finish.text)
        return finish.verdict


def _ok_keys(
    outcomes: Iterable[Outcome], cases: Mapping[str, Case], rounds: Mapping[str, Mapping[str, int]]
) -> tuple[str, ...]:
    """result_keys under which one of these cases has an ok record and samples of every pack.

    Samples may be gone: damaged on the disk, or voided by a later outcome.
    """
    return tuple(
        dict.fromkeys(
            one.result_key
            for one in outcomes
            if one.status == Status.OK
            and one.result_key is not None
            and one.case_id in cases
            and len(rounds.get(one.result_key, ())) == cases[one.case_id].workload.mask_node.sample.num_packs
        )
    )


def code_path(folder: RunFolder) -> Path:
    """A folder that holds the package attnspec and nothing else, for the worker's import path.

    The package's own parent may hold other packages, which the worker's interpreter must not take from there.
    """
    path = folder.path.resolve() / "artifacts" / "code"
    link = path / "attnspec"
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not (link.is_symlink() and link.resolve() == PACKAGE):
            link.unlink(missing_ok=True)
            link.symlink_to(PACKAGE, target_is_directory=True)
    except OSError as error:
        raise refused(link, error) from error
    return path


def _rounds_done(journal: Journal, cases: Iterable[Case]) -> dict[str, dict[str, int]]:
    sound = sound_samples(journal.timings, journal.outcomes)
    return rounds_done(sound, {case.case_id: case.cp_size for case in cases})


def changed_conditions(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What changed among the things that a result_key covers, one line each. Pure.

    Versions count where both environments tell them, for each tells those that its cases need.

    >>> old = {"driver": "1", "device": "H200", "versions": {"torch": "2.11", "xformers": "0.1"}}
    >>> changed_conditions(old, {"driver": "2", "device": "H200", "versions": {"torch": "2.12"}, "load": 3})
    ['driver: 1 -> 2', 'versions.torch: 2.11 -> 2.12']
    """
    names = ("device", "driver", "image_id")
    lines = differences({name: before.get(name) for name in names}, {name: now.get(name) for name in names})
    old, new = before.get("versions", {}), now.get("versions", {})
    both = old.keys() & new.keys()
    return lines + differences({name: old[name] for name in both}, {name: new[name] for name in both}, "versions.")


def _newest_environment(journal: Journal, job: Job) -> Mapping[str, Any] | None:
    notes = [note for note in journal.notes if note.kind == "environment" and note.writer.startswith(job.job_id)]
    return max(notes, key=lambda one: one.created_ns).data if notes else None
