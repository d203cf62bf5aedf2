"""Jobs of a run on Slurm: have them submitted, watch, take up again what an earlier host left, resubmit what was lost.

The host may vanish at any moment: every submission is written down before sbatch and found again by its name, the jobs
go on by themselves, and the next `run` takes them up. SIGINT and SIGTERM cancel the jobs; SIGHUP leaves them running.
"""

from __future__ import annotations

import dataclasses
import signal
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from attnspec.errors import EnvironmentMissingError, InputError, JournalError
from attnspec.launch.happenings import CaseEnded, JobBegan, Said, Watcher
from attnspec.launch.job_runner import Launch, happenings_of, newest_environment
from attnspec.launch.slurm_cluster import Cluster, JobState, SlurmError
from attnspec.launch.slurm_judgement import MAX_TRIES, Judgement, Next, judge
from attnspec.launch.slurm_order import (
    Submission,
    SubmissionFolder,
)
from attnspec.launch.slurm_place import launcher_params
from attnspec.launch.slurm_submissions import cancel_marker, cancel_submissions, locate
from attnspec.launch.slurm_submitter import Submitter, at_limit
from attnspec.launch.stop_signals import StopSignals
from attnspec.plan import Case, Job
from attnspec.record.journal import JournalWriter, read_journal
from attnspec.record.status import FAILED, REASON_CODES, Status

POLL_S = 5.0
LISTEN_S = 1.0
AGAIN_S = 60.0
"""Time between attempts to submit a job that Slurm did not take."""
REFUSED_S = 1800.0
"""How long that is tried while nothing else of the run is in Slurm."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Again:
    """A submission that Slurm did not take: since when, when next (steady clock), and Slurm's words."""

    since_s: float
    next_s: float
    words: str
    begin_in_s: int


class _Followed:
    """A job on its way: its newest submission, and what was heard of it so far."""

    def __init__(self, job: Job, cases: Sequence[Case]) -> None:
        self.job = job
        self.cases = {case.case_id: case for case in cases}
        self.answered: set[str] = set()
        self.folder: SubmissionFolder | None = None
        self.submission: Submission | None = None
        self.offset = 0
        self.tries = 0
        self.phase = "setup"
        self.last_environment: Mapping[str, Any] | None = None
        self.waits_for = ""
        self.unknown_since: float | None = None
        self.again: _Again | None = None

    @property
    def left(self) -> list[Case]:
        """Cases without an outcome in this run."""
        return [case for case_id, case in self.cases.items() if case_id not in self.answered]

    def attach(self, folder: SubmissionFolder, submission: Submission) -> None:
        """Follow another submission from its beginning."""
        self.folder, self.submission, self.offset = folder, submission, 0
        self.unknown_since = None


class SlurmRun:
    """All jobs of one run. asked: each with the cases that the run is about."""

    def __init__(
        self,
        launch: Launch,
        asked: Sequence[tuple[Job, tuple[Case, ...]]],
        watch: Watcher,
        signals: StopSignals,
        *,
        ok: Collection[str] = (),
    ) -> None:
        """ok: case_ids with an ok record that stands, so that no job is submitted for these alone."""
        self._launch = launch
        self._asked = asked
        self._watch = watch
        self._signals = signals
        self._ok = frozenset(ok)
        self._cluster = Cluster()
        self._params = launcher_params(launch.runner)
        self._submitter = Submitter(launch, self._cluster)
        self._followed: list[_Followed] = []
        self._lanes: list[int | None] = [None] * self._params.jobs_at_once
        self._states: dict[int, JobState] = {}
        self._wake = threading.Event()
        self._trouble = ""
        self.failed = False

    def run(self) -> bool:
        """Bring every job to its end; whether one of them failed otherwise than by what its cases' records say.

        Raises EnvironmentMissingError and JournalError as the jobs report them; then no job is left.
        """
        self._signals.on_stop = self._wake.set
        cancel_marker(self._launch.folder.path).unlink(missing_ok=True)
        try:
            held = self._take_up()
            for number, (job, cases) in enumerate(self._asked, start=1):
                self._begin(number, job, cases, held.pop(job.job_id, None))
            for _, submission in held.values():
                self._tell(
                    f"Slurm job {submission.slurm_id} of an earlier run has cases that this one does not ask for"
                )
            while self._followed and self._signals.number is None:
                self._look()
                if self._followed and not self._signals.number:
                    self._listen()
            self._stop()
        except (EnvironmentMissingError, JournalError, InputError):
            self._cancel()
            raise
        finally:
            self._signals.on_stop = None
        return self.failed

    # Taking up

    def _take_up(self) -> dict[str, tuple[SubmissionFolder, Submission]]:
        """Submissions that nobody has judged, by job; those of jobs that the plan no longer holds are cancelled."""
        planned = {job.job_id for job in self._launch.plan.jobs}
        held: dict[str, tuple[SubmissionFolder, Submission]] = {}
        strangers = []
        for folder, submission in locate(self._launch.folder.path, self._cluster):
            if submission.job_id in planned:
                held[submission.job_id] = (folder, submission)
            else:
                strangers.append((folder, submission))
        if strangers:
            numbers = ", ".join(str(submission.slurm_id) for _, submission in strangers)
            self._tell(f"the spec no longer asks for what Slurm job {numbers} runs; cancelling it")
            cancel_submissions(strangers, self._cluster)
        self._states = self._cluster.states([one.slurm_id for _, one in held.values() if one.slurm_id is not None])
        return held

    def _begin(
        self, number: int, job: Job, cases: tuple[Case, ...], held: tuple[SubmissionFolder, Submission] | None
    ) -> None:
        followed = _Followed(job, cases)
        self._watch(JobBegan(job=job, number=number, num_jobs=len(self._asked), cases=cases))
        followed.last_environment = newest_environment(read_journal(self._launch.folder.journal), job.job_id)
        if held is not None:
            folder, submission = held
            assert submission.slurm_id is not None
            followed.attach(folder, submission)
            self._enter_lane(submission.slurm_id)
            self._tell(f"taking up Slurm job {submission.slurm_id}, which an earlier run submitted")
        elif all(case.case_id in self._ok for case in cases):
            for case in cases:
                self._watch(CaseEnded(case=case, status=Status.OK.value, reason=None, resumed=True))
            return
        else:
            try:
                self._submit(followed)
            except SlurmError as error:
                if not (self._followed and at_limit(error)):
                    raise
                self._tell(f"{error}; it is submitted when others of this run have ended")
                now = time.monotonic()
                followed.again = _Again(since_s=now, next_s=now + AGAIN_S, words=str(error), begin_in_s=0)
        self._followed.append(followed)

    # Submitting

    def _submit(self, followed: _Followed, *, begin_in_s: int = 0) -> None:
        folder, submission = self._submitter.submit(
            followed.job, followed.left, after=self._next_lane(), begin_in_s=begin_in_s
        )
        followed.attach(folder, submission)
        assert submission.slurm_id is not None
        self._enter_lane(submission.slurm_id)
        self._states[submission.slurm_id] = JobState(state="PENDING")
        self._tell(f"submitted as Slurm job {submission.slurm_id}")

    def _submit_again(self, followed: _Followed, *, begin_in_s: int = 0) -> None:
        """The same for a run that is under way: what Slurm does not take now is tried again for a while.

        While other jobs of the run are in Slurm there is no end to that: they may be what its limit counts.
        """
        now = time.monotonic()
        if followed.again is not None and now < followed.again.next_s:
            return
        try:
            self._submit(followed, begin_in_s=begin_in_s)
        except SlurmError as error:
            others = any(one is not followed and one.again is None for one in self._followed)
            since = now if others or followed.again is None else followed.again.since_s
            if now - since > REFUSED_S:
                raise
            if followed.again is None or followed.again.words != str(error):
                self._tell(f"{error}; it is tried again every {AGAIN_S:g} s")
            followed.again = _Again(since_s=since, next_s=now + AGAIN_S, words=str(error), begin_in_s=begin_in_s)
            return
        followed.again = None

    def _next_lane(self) -> int | None:
        """The last job of the lane that is next, where Slurm still knows it."""
        last = self._lanes[0]
        state = None if last is None else self._states.get(last)
        return last if state is not None and not state.over else None

    def _enter_lane(self, slurm_id: int) -> None:
        self._lanes = [*self._lanes[1:], slurm_id]

    # Watching

    def _look(self) -> None:
        """One look at Slurm, and what follows from it for every job."""
        numbers = [one.submission.slurm_id for one in self._followed if one.submission is not None]
        asked = [number for number in numbers if number is not None]
        try:
            told = self._cluster.states(asked)
        except SlurmError as error:
            if str(error) != self._trouble:
                self._tell(f"{error}; jobs go on meanwhile, and it is asked again")
            self._trouble = str(error)
            return
        self._trouble = ""
        # A job that Slurm has forgotten meanwhile is not what it was when Slurm knew it last.
        self._states = {number: state for number, state in self._states.items() if number not in asked} | told
        for followed in list(self._followed):
            self._hear(followed)
            self._follow(followed)

    def _listen(self) -> None:
        """Wait until the next look, and tell meanwhile what the workers say."""
        until = time.monotonic() + POLL_S
        while (left := until - time.monotonic()) > 0 and not self._wake.wait(min(LISTEN_S, left)):
            for followed in self._followed:
                self._hear(followed)
            verdicts = [one.folder.read_verdict() for one in self._followed if one.folder and one.again is None]
            if any(verdict is not None and verdict.final for verdict in verdicts):
                return

    def _hear(self, followed: _Followed) -> None:
        if followed.folder is None:
            return
        events, followed.offset = followed.folder.read_events(followed.offset)
        for event in events:
            if event.kind == "message":
                self._tell(event.text)
            elif event.kind == "phase":
                followed.phase = event.phase or "setup"
            elif event.kind == "round":
                followed.tries = 0
            elif event.kind == "outcome" and event.case_id is not None:
                if event.case_id in followed.answered:
                    continue
                followed.answered.add(event.case_id)
                if event.data.get("recorded") is True:
                    self.failed = self.failed or event.status in FAILED
                if event.data.get("resumed") is not True:
                    followed.tries = 0
            for told in happenings_of(event, followed.cases, followed.last_environment):
                self._watch(told)

    def _follow(self, followed: _Followed) -> None:
        if followed.again is not None:
            self._submit_again(followed, begin_in_s=followed.again.begin_in_s)
            return
        assert followed.folder is not None and followed.submission is not None
        slurm_id = followed.submission.slurm_id
        assert slurm_id is not None
        state = self._states.get(slurm_id)
        followed.unknown_since = None if state is not None else followed.unknown_since or time.monotonic()
        unknown_s = 0.0 if followed.unknown_since is None else time.monotonic() - followed.unknown_since
        judgement = judge(state, followed.folder.read_verdict(), unknown_s=unknown_s)
        if judgement.next is Next.WAIT:
            if judgement.reason != followed.waits_for and judgement.reason:
                self._tell(f"Slurm job {slurm_id} waits: {judgement.reason}")
            followed.waits_for = judgement.reason
            return
        self._hear(followed)
        if judgement.next in (Next.MISSING, Next.JOURNAL):
            self._judged(followed, judgement.next.value)
            self._followed.remove(followed)
            if judgement.next is Next.JOURNAL:
                raise JournalError(judgement.reason)
            raise EnvironmentMissingError(
                f"Slurm job {slurm_id} of runner {self._launch.runner.name} cannot run:\n{judgement.reason}"
            )
        self._judged(followed, judgement.next.value)
        if judgement.next is Next.STOPPED:
            self.failed = True
            ours = cancel_marker(self._launch.folder.path).exists()
            how = "cancelled by `attnspec cancel`" if ours else judgement.reason
            self._tell(f"Slurm job {slurm_id} was {how}; run the same again to go on")
            self._followed.remove(followed)
        elif not followed.left:
            self._followed.remove(followed)
        elif judgement.next is Next.DONE:
            self._go_on(followed)
        else:
            self._lost(followed, judgement, slurm_id)

    def _go_on(self, followed: _Followed) -> None:
        """A submission is done, and the run asks for more cases of its job than that was asked for."""
        assert followed.submission is not None
        if {case.case_id for case in followed.left} & set(followed.submission.case_ids):
            self._record(followed, Judgement(next=Next.DONE, reason="the job ended without a record of this case"))
            self._followed.remove(followed)
        else:
            self._submit_again(followed)

    def _lost(self, followed: _Followed, judgement: Judgement, slurm_id: int) -> None:
        followed.tries += 1
        if followed.tries >= MAX_TRIES:
            why = f"Slurm job {slurm_id} ended: {judgement.reason}; so did {MAX_TRIES - 1} before it, without a result"
            why += "" if followed.folder is None else followed.folder.last_words()
            began = followed.folder is None or followed.folder.began
            if not (began or judgement.time_limit or judgement.nodes_failed):
                self._followed.remove(followed)
                raise EnvironmentMissingError(
                    f"{why}\nattnspec did not start in these jobs: options.host_python of runner "
                    f"{self._launch.runner.name}, attnspec's code and the run folder must be visible to the nodes"
                )
            self._record(followed, Judgement(next=judgement.next, reason=why, time_limit=judgement.time_limit))
            self._followed.remove(followed)
            return
        self._tell(f"Slurm job {slurm_id} ended ({judgement.reason}); submitting what is left")
        self._submit_again(followed, begin_in_s=self._params.retry_after_s if judgement.nodes_failed else 0)

    def _record(self, followed: _Followed, judgement: Judgement) -> None:
        """Outcomes of cases that no worker and no supervisor could tell of."""
        folder, job_id = self._launch.folder, followed.job.job_id
        status, code = Status.CRASHED, "lost_worker"
        if judgement.time_limit:
            phase = followed.phase if followed.phase in REASON_CODES[Status.TIMEOUT] else "setup"
            status, code = Status.TIMEOUT, phase
        with JournalWriter(folder.journal, f"{job_id}-host", folder.next_attempt()) as writer:
            for case in followed.left:
                writer.append_outcome(
                    {"case_id": case.case_id, "status": status.value, "reason_code": code, "reason": judgement.reason}
                )
                self._watch(CaseEnded(case=case, status=status.value, reason=judgement.reason, resumed=False))
        self.failed = True

    # Ending

    def _judged(self, followed: _Followed, how: str) -> None:
        assert followed.folder is not None and followed.submission is not None
        followed.folder.write_submission(dataclasses.replace(followed.submission, ended=how))

    def _stop(self) -> None:
        if not self._followed:
            return
        self._signals.on_stop = None  # who asks again while jobs are cancelled need not wait for their end
        if self._signals.number == signal.SIGHUP:
            numbers = ", ".join(str(one.submission.slurm_id) for one in self._followed if one.submission is not None)
            self._tell(f"Slurm job {numbers} goes on; run the same again to take it up, or cancel it")
            return
        self._cancel()

    def _cancel(self) -> None:
        """End all jobs, and hear what they still say."""
        held = [(one.folder, one.submission) for one in self._followed if one.folder and one.submission]
        cancel_submissions(held, self._cluster)
        for followed in self._followed:
            if followed.folder is not None:
                self._hear(followed)

    def _tell(self, text: str) -> None:
        self._watch(Said(text=text))


def standing_ok(rows: Sequence[Mapping[str, Any]], images: Mapping[str, str | None]) -> frozenset[str]:
    """case_ids of table rows with an ok record from their image. images: case_id -> image ID, None: no image. Pure."""
    return frozenset(
        row["case_id"]
        for row in rows
        if row["status"] == "ok" and row["case_id"] in images and row["image_digest"] == images[row["case_id"]]
    )
