"""What becomes of a submission, from what Slurm and its supervisor say. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from attnspec.launch.slurm_cluster import JobState
from attnspec.launch.slurm_order import JobVerdict

MAX_TRIES = 3
"""Submissions in a row without a round or an outcome after which a job's cases are recorded as lost."""
FORGOTTEN_S = 120.0
"""How long Slurm may know nothing of a job before it counts as gone: accounting lags behind, controllers restart."""


class Next(Enum):
    """What the host does next about a submission."""

    WAIT = "wait"
    DONE = "done"
    RESUBMIT = "resubmit"
    STOPPED = "stopped"
    MISSING = "missing"
    JOURNAL = "journal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """next, and why in words.

    time_limit: whether Slurm ended it for the time that it took. nodes_failed: whether its nodes stopped answering,
    which Slurm may not have noticed yet.
    """

    next: Next
    reason: str = ""
    time_limit: bool = False
    nodes_failed: bool = False


def judge(state: JobState | None, verdict: JobVerdict | None, *, unknown_s: float = 0.0) -> Judgement:
    """What to do about a submission.

    state: None while Slurm knows nothing of the job, for unknown_s seconds so far. verdict: the supervisor's; it takes
    back that of an earlier start, so `done`, `missing` and `journal` hold whatever Slurm still says.

    >>> judge(JobState(state="RUNNING"), None).next, judge(JobState(state="PREEMPTED"), None).next
    (<Next.WAIT: 'wait'>, <Next.RESUBMIT: 'resubmit'>)
    >>> judge(JobState(state="NODE_FAIL"), JobVerdict(verdict="interrupted")).reason
    'NODE_FAIL'
    """
    final = {"done": Next.DONE, "missing": Next.MISSING, "journal": Next.JOURNAL}
    if verdict is not None and verdict.final:
        return Judgement(next=final[verdict.verdict], reason=verdict.text)
    if state is None:
        if unknown_s < FORGOTTEN_S:
            return Judgement(next=Next.WAIT, reason="Slurm does not know it")
        return Judgement(next=Next.RESUBMIT, reason="Slurm no longer knows it, and it left no verdict")
    if not state.over:
        return Judgement(next=Next.WAIT, reason=state.reason)
    if state.state == "CANCELLED":
        return Judgement(next=Next.STOPPED, reason="cancelled in Slurm")
    time_limit = state.state in ("TIMEOUT", "DEADLINE") or (verdict is not None and verdict.verdict == "time_limit")
    words = f": {verdict.text}" if verdict is not None and verdict.text else ""
    return Judgement(
        next=Next.RESUBMIT,
        reason=f"{'time limit' if time_limit else state.state}{words}",
        time_limit=time_limit,
        nodes_failed=verdict is not None and verdict.verdict == "failed",
    )
