"""Supervising a job as a pure state machine: what the worker says and does comes in, instructions come out.

No process, file or clock is touched here; times are arguments (seconds of any steady clock). The rules:

- Each phase of a case has its limit. A worker that passes it, or dies, has a culprit: the case whose turn it was.
- A culprit that was measured interleaved with others is tried once more, alone, after all others; then it stands. Cases
  that are set up and verified by the same calls are set aside with it.
- A worker that ends while packages are imported and tried has as culprits all cases of the job that need the same. They
  are set aside together, and what ends a worker once more there stands for all of them.
- The others go on in a fresh worker. Each death either ends a case, marks a culprit, or counts as a stray; two strays
  without an outcome between them end the job, so no loop is endless.
- A worker that dies twice before it greets ends the job as well.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from attnspec.record.status import REASON_CODES, Status
from attnspec.units import counted
from attnspec.wire import EXIT_JOURNAL, EXIT_MISSING, Event, Measure

MAX_STRAYS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """The worker sent an event."""

    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The worker is gone, with its whole process group.

    returncode: as of subprocess, negative for a signal. last_lines: the end of its standard error. oom_killed: whether
    the kernel killed a process for memory meanwhile. not_started: why its command ran nowhere and what to do, where
    what should have started it says so; a worker that greeted ran all the same.
    """

    returncode: int
    last_lines: str = ""
    oom_killed: bool = False
    not_started: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time went by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    """The host was told to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartWorker:
    """Start a worker on these cases; those in `solo` alone, after the others."""

    case_ids: tuple[str, ...]
    solo: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EndWorker:
    """End the worker and its group; `Ended` is to follow. force: without the chance to end by itself."""

    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOutcome:
    """Journal an outcome that no worker could."""

    case_id: str
    status: Status
    reason_code: str
    reason: str
    result_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tell:
    """Say something to people."""

    text: str


class Verdict(Enum):
    """How a job ended."""

    DONE = "done"
    INTERRUPTED = "interrupted"
    MISSING = "missing"
    JOURNAL = "journal"


NOT_STARTED = (125, 126, 127, 255)
"""Exit codes of shells and container programs whose command could not be started: nothing that a case has done.

255 is apptainer's, and srun's for what it is not asked rightly.
"""
_PHASES = REASON_CODES[Status.TIMEOUT]
_VERDICTS = {EXIT_MISSING: Verdict.MISSING, EXIT_JOURNAL: Verdict.JOURNAL}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The job is over. `text`: what the environment lacks for `MISSING`, what the disk refused for `JOURNAL`."""

    verdict: Verdict
    text: str = ""


Input = Said | Ended | Tick | Interrupted
Instruction = StartWorker | EndWorker | RecordOutcome | Tell | Finish


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    """Whose turn it is, and in which phase. alike: cases that choose the same, where that is the phase."""

    case_id: str
    phase: str
    alike: tuple[str, ...] = ()


class Supervision:
    """One job. `groups`: case_ids that are measured interleaved, group by group, in order.

    mates: case_id -> others that are set up and verified by the same calls: what ends a worker in one ends it in all.
    """

    def __init__(
        self, groups: Iterable[Sequence[str]], measure: Measure, mates: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        self._mates = mates or {}
        self._group_of = {case_id: tuple(group) for group in groups for case_id in group}
        self._measure = measure
        self._pending = dict.fromkeys(self._group_of)
        self._solo: dict[str, None] = {}
        self._started: tuple[str, ...] = ()
        self._keys: dict[str, str] = {}
        self._turn: _Turn | None = None
        self._since = 0.0
        self._alive = self._greeted = self._said_bye = self._overdue = self._interrupted = False
        self._false_starts = 0
        self._strays = 0

    @property
    def pending(self) -> tuple[str, ...]:
        """Cases without an outcome so far."""
        return tuple(self._pending)

    @property
    def deadline(self) -> float | None:
        """When a Tick is due; None while nothing runs against a limit."""
        return self._since + self._limit() if self._alive and not (self._overdue or self._interrupted) else None

    def begin(self, now: float) -> list[Instruction]:
        """The first instructions."""
        return self._go_on(now)

    def handle(self, happened: Input, now: float) -> list[Instruction]:
        """What to do about one input."""
        match happened:
            case Said(event=event):
                return self._said(event, now)
            case Ended():
                return self._ended(happened, now)
            case Interrupted():
                force, self._interrupted = self._interrupted, True
                return [EndWorker(force=force)] if self._alive else [Finish(verdict=Verdict.INTERRUPTED)]
            case Tick():
                due = self.deadline
                if due is None or now < due:
                    return []
                self._overdue = True
                return [Tell(text=f"{self._whose()} passed its limit of {self._limit():g} s"), EndWorker()]

    def _said(self, event: Event, now: float) -> list[Instruction]:
        case_id = event.case_id
        if not self._overdue:
            self._since = now
        if case_id is not None and isinstance(event.data.get("result_key"), str):
            self._keys[case_id] = event.data["result_key"]
        match event.kind:
            case "hello":
                self._greeted = True
                self._false_starts = 0
            case "phase" if not self._overdue:
                self._turn = None if case_id is None else _turn_of(case_id, event)
            case "outcome" if case_id is not None:
                self._pending.pop(case_id, None)
                self._solo.pop(case_id, None)
                self._strays = 0
                if not self._overdue:
                    self._turn = None
            case "message":
                return [Tell(text=event.text)]
            case "bye":
                self._said_bye = True
        return []

    def _ended(self, end: Ended, now: float) -> list[Instruction]:
        self._alive = False
        if self._interrupted:
            return [Finish(verdict=Verdict.INTERRUPTED)]
        if not self._pending:
            return [Finish(verdict=Verdict.DONE)]
        if end.returncode in _VERDICTS:
            return [Finish(verdict=_VERDICTS[end.returncode], text=end.last_lines)]
        if self._said_bye:
            return self._give_up(Status.CRASHED, "lost_worker", "the worker ended without a record of this case")
        status, code, reason = self._verdict(end)
        culprit = self._turn.case_id if self._turn is not None and self._turn.case_id in self._pending else None
        if culprit is not None:
            return [*self._blame(culprit, status, code, reason), *self._go_on(now)]
        if self._greeted:
            self._strays += 1
        else:
            self._false_starts += 1
        if not self._greeted and (end.not_started or end.returncode in NOT_STARTED):
            reason = f"the worker could not be started: {end.not_started or reason}"
            if self._false_starts >= MAX_STRAYS:
                return [Finish(verdict=Verdict.MISSING, text=reason)]
        if self._strays >= MAX_STRAYS or self._false_starts >= MAX_STRAYS:
            return self._give_up(status, code, reason)
        return [Tell(text=f"{reason}; starting a fresh worker"), *self._go_on(now)]

    def _blame(self, culprit: str, status: Status, code: str, reason: str) -> list[Instruction]:
        if self._turn is not None and self._turn.phase == "choose":
            return self._blame_packages(culprit, self._turn.alike, status, code, reason)
        others = [one for one in self._group_of[culprit] if one in self._pending and one not in self._solo]
        if culprit in self._solo or others == [culprit]:
            self._pending.pop(culprit)
            self._solo.pop(culprit, None)
            return [self._record(culprit, status, code, reason)]
        self._solo[culprit] = None
        told = "it is tried once more, alone, after the others"
        measured = self._turn is not None and self._turn.phase == "measure"
        mates = [] if measured else [one for one in self._mates.get(culprit, ()) if one in others and one != culprit]
        if mates:
            self._solo.update(dict.fromkeys(mates))
            are, do = ("is", "does") if len(mates) == 1 else ("are", "do")
            told += f", and so {are} {', '.join(mates)}, which {do} the same"
        return [Tell(text=f"case {culprit}: {reason}; {told}")]

    def _blame_packages(
        self, culprit: str, alike: Sequence[str], status: Status, code: str, reason: str
    ) -> list[Instruction]:
        held = list(dict.fromkeys([culprit, *(one for one in alike if one in self._pending)]))
        if culprit in self._solo or set(self._started) <= set(held):
            for one in held:
                self._pending.pop(one)
                self._solo.pop(one, None)
            return [self._record(one, status, code, reason) for one in held]
        self._solo.update(dict.fromkeys(held))
        others = f" with the {counted(len(held) - 1, 'case')} that need the same" if len(held) > 1 else ""
        return [Tell(text=f"case {culprit}: {reason}; it is tried once more{others}, after the others")]

    def _give_up(self, status: Status, code: str, reason: str) -> list[Instruction]:
        records: list[Instruction] = [self._record(case_id, status, code, reason) for case_id in self._pending]
        self._pending.clear()
        return [*records, Finish(verdict=Verdict.DONE)]

    def _record(self, case_id: str, status: Status, code: str, reason: str) -> RecordOutcome:
        return RecordOutcome(
            case_id=case_id, status=status, reason_code=code, reason=reason, result_key=self._keys.get(case_id)
        )

    def _go_on(self, now: float) -> list[Instruction]:
        if not self._pending:
            return [Finish(verdict=Verdict.DONE)]
        self._turn = None
        self._since = now
        self._alive = True
        self._greeted = self._said_bye = self._overdue = False
        first = tuple(case_id for case_id in self._pending if case_id not in self._solo)
        self._started = (*first, *self._solo)
        return [StartWorker(case_ids=self._started, solo=tuple(self._solo))]

    def _verdict(self, end: Ended) -> tuple[Status, str, str]:
        tail = f"; its last words: {end.last_lines}" if end.last_lines else ""
        if self._overdue:
            code = self._turn.phase if self._turn is not None and self._turn.phase in _PHASES else "setup"
            return Status.TIMEOUT, code, f"{self._whose()} passed its limit of {self._limit():g} s and was ended{tail}"
        if end.oom_killed:
            return Status.OOM, "host_memory", f"the kernel ended the worker for want of host memory{tail}"
        name = signal_name(end.returncode)
        when = self._whose() if self._greeted else "starting up"
        if name is not None:
            return Status.CRASHED, "signal", f"the worker was ended by {name} while {when}{tail}"
        return Status.CRASHED, "exit", f"the worker ended with exit code {end.returncode} while {when}{tail}"

    def _limit(self) -> float:
        measuring = self._turn is not None and self._turn.phase == "measure"
        return self._measure.measure_timeout_s if measuring else self._measure.setup_timeout_s

    def _whose(self) -> str:
        if self._turn is None:
            return "between cases" if self._greeted else "starting up"
        if self._turn.phase == "choose":
            return f"importing and trying the packages of case {self._turn.case_id}"
        return f"in {self._turn.phase} of case {self._turn.case_id}"


def _turn_of(case_id: str, event: Event) -> _Turn:
    if event.phase == "choose":
        return _Turn(case_id=case_id, phase="choose", alike=tuple(event.data.get("alike", ())))
    return _Turn(case_id=case_id, phase=event.phase if event.phase in _PHASES else "setup")


def signal_name(returncode: int) -> str | None:
    """The signal that a return code tells of, also in the form 128 + number that shells and containers use.

    >>> signal_name(-9), signal_name(139), signal_name(1)
    ('SIGKILL', 'SIGSEGV', None)
    """
    number = -returncode if returncode < 0 else returncode - 128
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}" if returncode < 0 else None
