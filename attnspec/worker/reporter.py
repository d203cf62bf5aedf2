"""Everything a worker says: measurements into its journal, then the event that they are there."""

from __future__ import annotations

import statistics
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from attnspec.execute.clock import Sample
from attnspec.execute.verify import Verification, worst_of
from attnspec.ids import canonical_json
from attnspec.record.journal import JournalWriter
from attnspec.record.status import Status
from attnspec.sharding.sharding import Sharding, comm_bytes
from attnspec.wire import CaseRequest, Event, WorkloadRequest
from attnspec.worker.control import EventStream, Stop
from attnspec.worker.environment import Environment
from attnspec.worker.failures import Failure
from attnspec.worker.spent import Spent

SPENT_NOTED_EVERY_S = 5.0


@dataclass(slots=True, kw_only=True)
class PackState:
    """What the last try of a case on one pack told: one that ran out of memory beside others is tried again alone.

    areas: of each rank, by the strategy's plan; none for a kernel alone.
    """

    verification: Verification
    lower_s: float
    setup_s: float = 0.0
    padding_tokens: int = 0
    areas: Sequence[int] = ()
    exposed_comm_ms: float | None = None


@dataclass(slots=True, kw_only=True)
class CaseState:
    """One case on its way: what is known of it so far. rounds_done: journaled by this attempt, by pack, over tries."""

    request: CaseRequest
    workload: WorkloadRequest
    alone: bool = False
    provider: str | None = None
    provider_version: str | None = None
    backend: str | None = None
    mesh: str | None = None
    result_key: str | None = None
    packs: dict[int, PackState] = field(default_factory=dict)
    rounds_done: Counter[int] = field(default_factory=Counter)
    kernel_names: tuple[str, ...] | None = None
    peak_memory_bytes: int | None = None
    comm_bytes: int | None = None
    ended: bool = False

    @property
    def case_id(self) -> str:
        """The case."""
        return self.request.case_id

    @property
    def lower_s(self) -> float:
        """Over all packs."""
        return sum(one.lower_s for one in self.packs.values())

    @property
    def setup_s(self) -> float:
        """Over all packs."""
        return sum(one.setup_s for one in self.packs.values())

    @property
    def padding_tokens(self) -> int | None:
        """Over all packs; None for a kernel alone."""
        return None if self.mesh is None else sum(one.padding_tokens for one in self.packs.values())

    @property
    def load_imbalance(self) -> float | None:
        """Over all packs; None for a kernel alone."""
        if self.mesh is None:
            return None
        most = sum(max(one.areas) for one in self.packs.values())
        mean = sum(statistics.fmean(one.areas) for one in self.packs.values())
        return most / mean if mean else 1.0

    @property
    def exposed_comm_ms(self) -> float | None:
        """Mean over packs; None where no pack has one."""
        held = [one.exposed_comm_ms for one in self.packs.values() if one.exposed_comm_ms is not None]
        return statistics.fmean(held) if held else None

    def set_up(self, pack: int, verification: Verification, lower_s: float, plan: Sharding | None) -> None:
        """A pack is verified; what an earlier try of it told is dropped. plan: of a strategy."""
        made = self.packs[pack] = PackState(verification=verification, lower_s=lower_s)
        if plan is not None:
            made.padding_tokens, made.areas = plan.padding_tokens, plan.areas
            self.mesh = canonical_json(dict(plan.mesh))
            self.comm_bytes = max(self.comm_bytes or 0, comm_bytes(plan, self.request.pass_))


class Reporter:
    """The voice of one rank. Only rank 0 sends events; every rank journals its own samples."""

    def __init__(
        self, events: EventStream, journal: JournalWriter, stop: Stop, environment: Environment, *, rank: int
    ) -> None:
        self._events, self._journal, self._stop, self._environment, self._rank = (
            events,
            journal,
            stop,
            environment,
            rank,
        )
        self.spent = Spent()
        self._spent_noted_s = time.monotonic()

    def hello(self) -> None:
        """The job begins."""
        self.note("environment", self._environment.facts)
        self._send(Event(kind="hello", data=self._environment.facts))

    def bye(self) -> None:
        """The job ended in good order."""
        self._send(Event(kind="bye"))

    def message(self, text: str) -> None:
        """Something for people; kept as a note too."""
        self.note("message", {"text": text})
        self._send(Event(kind="message", text=text))

    def note(self, kind: str, data: Any) -> None:
        """Something for the record."""
        with self._stop.deferred():
            self._journal.append_note(kind, data)

    def phase(self, case: CaseState, phase: str) -> None:
        """A case's turn begins."""
        data = {} if case.result_key is None else {"result_key": case.result_key}
        self._send(Event(kind="phase", case_id=case.case_id, phase=phase, data=data))

    def choosing(self, case_id: str, alike: Sequence[str]) -> None:
        """What a case needs is imported and tried; `alike` need the same."""
        self._send(Event(kind="phase", case_id=case_id, phase="choose", data={"alike": list(alike)}))

    def nobody(self) -> None:
        """It is no case's turn."""
        self._send(Event(kind="phase"))

    def round(self, case: CaseState, pack: int, number: int, samples: Sequence[Sample]) -> None:
        """Journal a round, then say so."""
        rows = [
            {
                "case_id": case.case_id,
                "result_key": case.result_key,
                "pack": pack,
                "rank": self._rank,
                "round": number,
                "iteration": iteration,
                "started_ns": sample.started_ns,
                "elapsed_ns": sample.elapsed_ns,
                "host_ns": sample.host_ns,
                "sm_clock_mhz": sample.sm_clock_mhz,
                "throttled": sample.throttled,
            }
            for iteration, sample in enumerate(samples)
        ]
        with self._stop.deferred():
            self._journal.append_round(rows)
            case.rounds_done[pack] += 1
        self._note_spent()
        self._send(Event(kind="round", case_id=case.case_id, data={"pack": pack, "round": number}))

    def resumed(self, case: CaseState) -> None:
        """A case that has an ok record under this result_key."""
        case.ended = True
        data = {"result_key": case.result_key, "resumed": True}
        self._send(Event(kind="outcome", case_id=case.case_id, status=Status.OK.value, data=data))

    def ok(self, case: CaseState) -> None:
        """A case was verified and measured on every pack."""
        self._outcome(case, Status.OK, None, None)

    def wrong(self, case: CaseState, verification: Verification) -> None:
        """A case did not verify."""
        self._outcome(case, Status.WRONG, verification.reason_code, verification.reason)

    def failed(self, case: CaseState, failure: Failure) -> None:
        """A case ended otherwise."""
        self._outcome(case, failure.status, failure.reason_code, failure.reason)

    def trace(self, case_id: str, error: BaseException) -> None:
        """An exception with where it came from, into the log."""
        print(f"case {case_id}:", file=sys.stderr)
        traceback.print_exception(error, file=sys.stderr)

    def _outcome(self, case: CaseState, status: Status, code: str | None, reason: str | None) -> None:
        case.ended = True
        found = worst_of([one.verification for one in case.packs.values()]) if case.packs else None
        row = {
            "case_id": case.case_id,
            "result_key": case.result_key,
            "status": status.value,
            "reason_code": code,
            "reason": reason,
            "device": self._environment.support.model,
            "provider": case.provider,
            "provider_version": case.provider_version,
            "backend": case.backend,
            "mesh": case.mesh,
            "kernel_names": None if case.kernel_names is None else list(case.kernel_names),
            "lower_s": case.lower_s,
            "compile_s": None if found is None else found.compile_s,
            "verify_s": None if found is None else found.verify_s,
            "setup_s": case.setup_s,
            "verified_error": None if found is None else found.error,
            "verified_bound": None if found is None else found.bound,
            "peak_memory_bytes": case.peak_memory_bytes,
            "comm_bytes": case.comm_bytes,
            "load_imbalance": case.load_imbalance,
            "exposed_comm_ms": case.exposed_comm_ms,
            "padding_tokens": case.padding_tokens,
            "image_digest": self._environment.facts["image_id"],
        }
        if self._rank == 0:
            with self._stop.deferred():
                self._journal.append_outcome(row)
        self._note_spent()
        data = {} if case.result_key is None else {"result_key": case.result_key}
        self._send(Event(kind="outcome", case_id=case.case_id, status=status.value, text=reason or "", data=data))

    def _note_spent(self) -> None:
        """Now and then; the newest stands. Who is killed cannot note it at the end."""
        now_s = time.monotonic()
        if self._rank == 0 and now_s - self._spent_noted_s >= SPENT_NOTED_EVERY_S:
            self.note("spent", self.spent.facts())
            self._spent_noted_s = now_s

    def _send(self, event: Event) -> None:
        if self._rank == 0:
            self._events.send(event)
