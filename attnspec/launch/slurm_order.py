"""What the host leaves for the supervisor of a Slurm job, and what that leaves for the host: files of one submission.

    artifacts/slurm/<job id>-<number>/
        submission.json   written before and after sbatch: which job, its token, its number in Slurm
        order.json        what the supervisor is to do; job.sh: the batch script; slurm.log: what Slurm says
        claim-<n>         the nth start of the supervisor; or, in the place of claim-0, `void`: the host gave it up
        events.jsonl      what the worker says, for whoever watches
        verdict.json      how it ended, from the supervisor; absent when it was killed

A claim is a symbolic link, which appears with its content and only once on network file systems too. Who makes it first
has it, so a submission is either run or given up, never both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from attnspec.errors import WireError
from attnspec.launchers.slurm import Step
from attnspec.record.whole_file import refused, replacing
from attnspec.wire import Event, JobRequest, dumps, loads

T = TypeVar("T")
VOID = "void"
MAX_STARTS = 3
"""Starts without a round or an outcome between them that end a job: something that it does loses its allocation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The device that a runner expects, as its profile says."""

    runner: str
    type: str
    model: str | None = None
    capability: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmOrder:
    """One job for a supervisor.

    request: with all cases. num_packs: case_id -> packs that it is measured on. import_path: PYTHONPATH of the host,
    which counts outside containers.
    """

    request: JobRequest
    num_packs: Mapping[str, int]
    step: Step
    expected: Expected
    import_path: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One submission as the host knows it.

    token: the job's name in Slurm, given to no other job. slurm_id: None until sbatch has answered. ended: how the
    host judged it in the end; None while it may still run or nobody has looked.
    """

    job_id: str
    number: int
    token: str
    case_ids: tuple[str, ...]
    submitted_ns: int
    slurm_id: int | None = None
    ended: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobVerdict:
    """How a supervisor ended: done, interrupted, time_limit, missing, journal, failed.

    recorded_failure: whether it had to record a case's failure itself.
    """

    verdict: str
    text: str = ""
    recorded_failure: bool = False

    @property
    def final(self) -> bool:
        """Whether it holds whatever Slurm says of the job: the others may be followed by another start."""
        return self.verdict in ("done", "missing", "journal")


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionFolder:
    """The files of one submission."""

    path: Path

    @property
    def order(self) -> Path:
        """What the supervisor is to do."""
        return self.path / "order.json"

    @property
    def script(self) -> Path:
        """The batch script."""
        return self.path / "job.sh"

    @property
    def slurm_log(self) -> Path:
        """What Slurm and the supervisor print."""
        return self.path / "slurm.log"

    @property
    def events(self) -> Path:
        """What the worker said, one line each."""
        return self.path / "events.jsonl"

    @property
    def verdict_file(self) -> Path:
        """How it ended."""
        return self.path / "verdict.json"

    def write_submission(self, submission: Submission) -> None:
        """Keep what the host knows. Raises JournalError."""
        _write(self.path / "submission.json", dumps(submission))

    def read_submission(self) -> Submission | None:
        """What the host knows; None where it died before it wrote anything."""
        return _read(Submission, self.path / "submission.json")

    def write_order(self, order: SlurmOrder, script: str) -> None:
        """Everything that the job needs. Raises JournalError."""
        _write(self.order, dumps(order))
        _write(self.script, script)

    def read_events(self, offset: int = 0) -> tuple[list[Event], int]:
        """What was said from a byte of the file on, whole lines only, and where to go on next time."""
        try:
            with self.events.open("rb") as stream:
                stream.seek(offset)
                lines = stream.read().rpartition(b"\n")[0].splitlines(keepends=True)
        except FileNotFoundError:
            return [], offset
        except OSError as error:
            raise refused(self.events, error) from error
        offset += sum(map(len, lines)) + (1 if lines else 0)
        return [loads(Event, line) for line in lines], offset

    def write_verdict(self, verdict: JobVerdict) -> None:
        """How it ended. Raises JournalError."""
        _write(self.verdict_file, dumps(verdict))

    def read_verdict(self) -> JobVerdict | None:
        """How it ended; None while it runs, and when it was killed."""
        return _read(JobVerdict, self.verdict_file)

    @property
    def began(self) -> bool:
        """Whether its supervisor left anything at all."""
        return self.read_verdict() is not None or bool(self.read_events()[0])

    def last_words(self) -> str:
        """The end of what Slurm and the supervisor printed and where all of it is, to end a sentence with."""
        try:
            lines = self.slurm_log.read_text(encoding="utf-8", errors="replace").split("\n")
        except OSError:
            return ""
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"; {self.slurm_log} ends: {last[:300]}" if last else ""

    def claim(self, start: str) -> int | None:
        """Begin the next start of this submission: its number from 0, or None when the host gave the submission up.

        start: names this start and no other. Raises JournalError.
        """
        number = 0
        while (held := self._claim(number, start)) != start:
            if held == VOID:
                return None
            number += 1
        return number

    def give_up(self) -> bool:
        """Make sure that it never starts; False when it has started."""
        return self._claim(0, VOID) == VOID

    def started_as(self) -> int | None:
        """The job that started first under this submission; None when none did."""
        path = self.path / "claim-0"
        started = str(path.readlink()).partition(".")[0] if path.is_symlink() else ""
        return int(started) if started.isdigit() else None

    def claimed(self, number: int) -> bool:
        """Whether it has started for the nth time."""
        return (self.path / f"claim-{number}").is_symlink()

    def _claim(self, number: int, text: str) -> str:
        """Make a claim; what it holds then, by us or by an earlier one."""
        path = self.path / f"claim-{number}"
        try:
            with suppress(FileExistsError):
                path.symlink_to(text)
            return str(path.readlink())
        except OSError as error:
            raise refused(path, error) from error


def starts_without_result(events: Iterable[Event]) -> int:
    """How often a supervisor has started since a round or an outcome came last. Pure."""
    starts = 0
    for event in events:
        if event.kind == "message" and "start" in event.data:
            starts += 1
        elif event.kind == "round" or (event.kind == "outcome" and event.data.get("resumed") is not True):
            starts = 0
    return starts


def submissions_path(run: Path) -> Path:
    """Where the submissions of a run folder lie."""
    return run / "artifacts" / "slurm"


def submission_folders(run: Path) -> list[SubmissionFolder]:
    """Every submission of a run folder, the oldest first."""
    folders = [path for path in submissions_path(run).glob("*-*") if path.name.rpartition("-")[2].isdigit()]
    return [SubmissionFolder(path=path) for path in sorted(folders, key=lambda one: int(one.name.rpartition("-")[2]))]


def _write(path: Path, text: str) -> None:
    with replacing(path) as stream:
        stream.write(f"{text}\n".encode())


def _read(kind: type[T], path: Path) -> T | None:
    try:
        return loads(kind, path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise refused(path, error) from error
    except WireError as error:
        raise WireError(f"{path}: {error}") from None


__all__ = [
    "VOID",
    "Expected",
    "JobVerdict",
    "SlurmOrder",
    "Submission",
    "SubmissionFolder",
    "starts_without_result",
    "submission_folders",
    "submissions_path",
]
