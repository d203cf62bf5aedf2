"""Submissions that may still have processes: finding them again, and ending them for good."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path

from attnspec.errors import LockedError
from attnspec.launch.slurm_cluster import Cluster, JobState, SlurmError
from attnspec.launch.slurm_order import Submission, SubmissionFolder, submission_folders, submissions_path

ENDED_WITHIN_S = 180.0
"""Slurm gives a job KillWait (30 s by default) to end, and its epilog comes after that."""

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
