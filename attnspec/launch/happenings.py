"""What a run tells whoever watches it: progress bars, logs, tests. Plain data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from attnspec.plan import Case, Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A sentence for people."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobBegan:
    """Job `number` of `num_jobs` begins, with the cases that it is asked to run."""

    job: Job
    number: int
    num_jobs: int
    cases: tuple[Case, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnBegan:
    """A case enters a phase."""

    case: Case
    phase: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseEnded:
    """A case has an outcome; `resumed`: it had an ok one already and was not measured again."""

    case: Case
    status: str
    reason: str | None
    resumed: bool


Happening = Said | JobBegan | TurnBegan | CaseEnded
Watcher = Callable[[Happening], None]
