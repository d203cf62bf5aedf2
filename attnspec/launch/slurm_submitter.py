"""Submitting one job to Slurm so that nothing is lost: written down before sbatch, found again by its name after it."""

from __future__ import annotations

import dataclasses
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Sequence

from attnspec.errors import EnvironmentMissingError
from attnspec.launch.job_runner import Launch, num_packs, template
from attnspec.launch.provenance import PACKAGE
from attnspec.launch.runner_profile import Runner
from attnspec.launch.slurm_cluster import Cluster, SlurmError
from attnspec.launch.slurm_order import (
    Expected,
    SlurmOrder,
    Submission,
    SubmissionFolder,
    submission_folders,
    submissions_path,
)
from attnspec.launch.slurm_place import allocation_of, launcher_params, step_of
from attnspec.launch.slurm_submissions import cancel_marker
from attnspec.launchers.slurm import batch_script, sbatch_argv
from attnspec.plan import Case, Job

_LIMIT = re.compile(r"violates accounting/QOS policy|MaxSubmitJob")
"""sbatch's words where a user or account has as many jobs as it may have."""


def at_limit(error: SlurmError) -> bool:
    """Whether sbatch refused a job because there are as many as may be."""
    return _LIMIT.search(str(error)) is not None


class Submitter:
    """Submits the jobs of one run."""

    def __init__(self, launch: Launch, cluster: Cluster) -> None:
        self._launch, self._cluster = launch, cluster
        self._params = launcher_params(launch.runner)

    def submit(
        self, job: Job, cases: Sequence[Case], *, after: int | None, begin_in_s: int
    ) -> tuple[SubmissionFolder, Submission]:
        """Submit a job for some of its cases. after: the Slurm job that it waits for.

        Raises SlurmError where Slurm does not take it, and EnvironmentMissingError where the run was cancelled; then
        it never starts.
        """
        self._refuse_cancelled()
        folder, submission = self._written(job, cases)
        argv = sbatch_argv(
            allocation_of(self._launch.runner, job.world_size, self._launch.device, submission.token),
            output=str(folder.slurm_log),
            script=str(folder.script),
            after=[] if after is None else [after],
            begin_in_s=begin_in_s,
        )
        submission = dataclasses.replace(submission, slurm_id=self._sent(argv, folder, submission))
        folder.write_submission(submission)
        return folder, submission

    def _written(self, job: Job, cases: Sequence[Case]) -> tuple[SubmissionFolder, Submission]:
        """What a host that comes later, and the job itself, need to know."""
        launch = self._launch
        known = [int(folder.path.name.rpartition("-")[2]) for folder in submission_folders(launch.folder.path)]
        number = max(known, default=0) + 1
        folder = SubmissionFolder(path=submissions_path(launch.folder.path.resolve()) / f"{job.job_id}-{number}")
        folder.path.mkdir(parents=True)
        submission = Submission(
            job_id=job.job_id,
            number=number,
            token=f"attnspec-{job.job_id[:12]}-{secrets.token_hex(8)}",
            case_ids=tuple(case.case_id for case in cases),
            submitted_ns=time.time_ns(),
        )
        expected = launch.runner.device
        order = SlurmOrder(
            request=template(launch, job, frozenset(submission.case_ids)),
            num_packs=num_packs(cases),
            step=step_of(launch, job),
            import_path=os.environ.get("PYTHONPATH") if launch.image_of(job) is None else None,
            expected=Expected(
                runner=launch.runner.name, type=expected.type, model=expected.model, capability=expected.capability
            ),
        )
        script = batch_script(
            python=self._params.host_python or sys.executable,
            order=str(folder.order),
            import_path=str(PACKAGE.parent),
            title=f"attnspec job {job.job_id}, submission {number}",
        )
        folder.write_order(order, script)
        folder.write_submission(submission)
        return folder, submission

    def _refuse_cancelled(self) -> None:
        if cancel_marker(self._launch.folder.path).exists():
            raise EnvironmentMissingError("the run was cancelled from elsewhere")

    def _sent(self, argv: Sequence[str], folder: SubmissionFolder, submission: Submission) -> int:
        """sbatch's number of a submission; one that got none never starts."""
        never = dataclasses.replace(submission, ended="never submitted")
        try:
            self._refuse_cancelled()  # again: who cancels makes the mark first and looks for submissions then
        except EnvironmentMissingError:
            folder.give_up()
            folder.write_submission(never)
            raise
        try:
            return self._cluster.submit(argv)
        except SlurmError as refused:
            error = _about_flags(refused, self._launch.runner)
            if at_limit(error):
                shutil.rmtree(folder.path, ignore_errors=True)  # it may be tried many times
                raise error from None
            number = self._cluster.find(submission.token)
            if number is None and not folder.give_up():
                number = folder.started_as()
            if number is not None:  # sbatch was heard, and its answer lost
                return number
            folder.write_submission(never)
            raise error from None


def _about_flags(error: SlurmError, runner: Runner) -> SlurmError:
    """The same error, with where the flags that it names stand, when a runner gives them."""
    extra = () if runner.slurm is None else runner.slurm.extra
    names = {flag: re.escape(flag.partition("=")[0]) for flag in extra}
    named = [flag for flag, name in names.items() if re.search(rf"(?<![\w-]){name}(?![\w-])", str(error))]
    return SlurmError(f"{error}; slurm.extra in {runner.file} gives {', '.join(named)}") if named else error
