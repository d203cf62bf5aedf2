"""Submissions that may still have processes: finding them again, and ending them for good."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from attnspec.errors import LockedError
from attnspec.launch.slurm_cluster import Cluster, JobState, SlurmError
from attnspec.launch.slurm_order import Submission, SubmissionFolder, submission_folders, submissions_path

ENDED_WITHIN_S = 180.0
"""Slurm gives a job KillWait (30 s by default) to end, and its epilog comes after that."""

ENDED = {
    "done": "ended",
    "resubmit": "lost",
    "stopped": "cancelled in Slurm",
    "missing": "could not run",
    "journal": "could not write the run folder",
}
"""What people are told of a submission's end, where the word that is kept says too little."""
_EXPLAINED = ("missing", "journal", "resubmit")

Held = tuple[SubmissionFolder, Submission]


def cancel_marker(run: Path) -> Path:
    """A file that keeps a host elsewhere from submitting anew; the next run removes it."""
    return submissions_path(run) / "cancelled"


def unjudged(run: Path) -> list[Held]:
    """Submissions that no host has seen the end of, the oldest first."""
    held = ((folder, folder.read_submission()) for folder in submission_folders(run))
    return [(folder, one) for folder, one in held if one is not None and one.ended is None]


def locate(run: Path, cluster: Cluster) -> list[Held]:
    """The same with their numbers in Slurm; those that never got there are given up, so that they never start.

    A host may have died between writing a submission down and hearing its number; its name finds it.
    """
    found: list[Held] = []
    for folder, submission in unjudged(run):
        number = submission.slurm_id
        if number is None:
            number = cluster.find(submission.token)
        if number is None and folder.give_up():
            folder.write_submission(dataclasses.replace(submission, ended="never submitted"))
            continue
        located = dataclasses.replace(submission, slurm_id=number if number is not None else folder.started_as())
        folder.write_submission(located)
        found.append((folder, located))
    return found


def states_of(held: Sequence[Held], cluster: Cluster) -> dict[int, JobState]:
    """Slurm number -> state of these submissions."""
    return cluster.states([one.slurm_id for _, one in held if one.slurm_id is not None])


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How the newest submission of a job stands. slurm_id: None while it has none. state: in Slurm's words, or ours."""

    job_id: str
    slurm_id: int | None
    state: str
    reason: str
    live: bool


def standings(run: Path) -> dict[str, Standing]:
    """job_id -> its newest submission. Asks Slurm about those that nobody has seen the end of; writes nothing."""
    newest: dict[str, Submission] = {}
    why: dict[str, str] = {}
    for folder in submission_folders(run):
        submission = folder.read_submission()
        if submission is not None:
            newest[submission.job_id] = submission
            verdict = folder.read_verdict()
            words = verdict.text.splitlines() if verdict is not None and submission.ended in _EXPLAINED else []
            why[submission.job_id] = words[0] if words else ""
    asked = [one.slurm_id for one in newest.values() if one.ended is None and one.slurm_id is not None]
    states: dict[int, JobState] = {}
    trouble = ""
    try:
        states = Cluster().states(asked)
    except SlurmError as error:
        trouble = str(error)
    return {job_id: _standing(one, states, trouble, why[job_id]) for job_id, one in newest.items()}


def _standing(one: Submission, states: Mapping[int, JobState], trouble: str, why: str) -> Standing:
    state = None if one.slurm_id is None else states.get(one.slurm_id)
    live = one.ended is None and (state is None or not state.over) and one.slurm_id is not None
    if one.ended is not None:
        word, reason = ENDED.get(one.ended, one.ended), why
    elif one.slurm_id is None:
        word, reason = "not submitted", "its host ended while submitting it"
    elif state is None:
        word, reason, live = "unknown", trouble or "Slurm does not know it", bool(trouble)
    else:
        word, reason = state.state, state.reason
    return Standing(job_id=one.job_id, slurm_id=one.slurm_id, state=word, reason=reason, live=live)


def cancel_run(run: Path) -> list[int]:
    """Cancel every job of a run folder that may still run; their numbers. Safe if repeated, whoever submitted them."""
    if not submissions_path(run).is_dir():
        return []
    held = locate(run, Cluster()) if unjudged(run) else []
    cancel_submissions(held, Cluster())
    return [one.slurm_id for _, one in held if one.slurm_id is not None]


def forbid_submissions(run: Path) -> bool:
    """Keep hosts that work in a run folder from submitting; whether it has submissions at all."""
    if not submissions_path(run).is_dir():
        return False
    cancel_marker(run).touch()
    return True


def refuse_beside_slurm(run: Path) -> None:
    """Nothing else may work in a run folder while jobs of it are in Slurm. Raises LockedError naming them."""
    held = unjudged(run)
    if not held:
        return
    cluster = Cluster()
    held = locate(run, cluster)
    states = states_of(held, cluster)
    live = [number for number, state in states.items() if not state.over]
    if live:
        raise LockedError(
            f"{run}: Slurm job {', '.join(map(str, sorted(live)))} works in this run folder; run it with its Slurm "
            "runner to take the job up, `attnspec cancel` it, or choose another folder with --out"
        )
    for folder, submission in held:  # what these measured is no part of what comes now
        folder.give_up()
        folder.write_submission(dataclasses.replace(submission, ended="left behind"))


def cancel_submissions(held: Sequence[Held], cluster: Cluster) -> None:
    """End them and wait until nothing of them is left. Safe if repeated. Raises SlurmError when they do not end."""
    numbers = [one.slurm_id for _, one in held if one.slurm_id is not None]
    for folder, _ in held:
        folder.give_up()
    cluster.cancel(numbers)
    until = time.monotonic() + ENDED_WITHIN_S
    while left := [number for number, state in cluster.states(numbers).items() if not state.over]:
        if time.monotonic() > until:
            raise SlurmError(f"Slurm job {', '.join(map(str, left))} was cancelled and does not end")
        time.sleep(0.5)
    for folder, submission in held:
        folder.write_submission(dataclasses.replace(submission, ended="cancelled"))
