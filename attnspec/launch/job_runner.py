"""One job on the host: a supervised job whose workers a launcher starts here, told to whoever watches the run."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from attnspec import plugins
from attnspec.errors import EnvironmentMissingError, JournalError
from attnspec.images.pinning import PinnedImage
from attnspec.launch import happenings
from attnspec.launch.container_place import mounted, user
from attnspec.launch.happenings import CaseEnded, Happening, TurnBegan, Watcher
from attnspec.launch.processes import WorkerProcess
from attnspec.launch.provenance import PACKAGE, differences
from attnspec.launch.run_folder import RunFolder
from attnspec.launch.runner_profile import Runner
from attnspec.launch.stop_signals import StopSignals
from attnspec.launch.supervised import Start, SupervisedJob
from attnspec.launch.supervision import Ended, Finish, RecordOutcome, Said, Tell, Verdict
from attnspec.launchers import WorkerCall
from attnspec.plan import Case, Job, Plan, job_request
from attnspec.record.journal import Journal
from attnspec.record.status import FAILED
from attnspec.record.whole_file import refused
from attnspec.wire import Event, JobRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What all jobs of one run share. images: by the name that the runner gives them."""

    plan: Plan
    folder: RunFolder
    runner: Runner
    python: str
    device: Literal["cpu", "cuda"]
    code_sha256: str
    plugins: tuple[str, ...] = ()
    images: Mapping[str, PinnedImage] = field(default_factory=dict)

    def image_of(self, job: Job) -> PinnedImage | None:
        """The image that a job runs in; None outside containers."""
        return None if job.image is None else self.images[job.image]

    def image_id(self, job: Job) -> str | None:
        """What a job's records are kept under beside their case; None outside containers."""
        image = self.image_of(job)
        return None if image is None else image.identity

    def python_of(self, job: Job) -> str:
        """The interpreter of a job's workers: in a container its own, unless the runner names one."""
        image = self.image_of(job)
        return self.python if image is None else self.runner.python or image.python


class JobRunner:
    """Runs one job to its end. `failed` tells whether the host had to record a failure itself."""

    def __init__(self, launch: Launch, job: Job, cases: Sequence[Case], watch: Watcher, signals: StopSignals) -> None:
        self._launch = launch
        self._job = job
        self._cases = {case.case_id: case for case in cases}
        self._watch = watch
        self._signals = signals
        self._last_environment: Mapping[str, Any] | None = None
        self.failed = False

    def run(self) -> Verdict:
        """Supervise until the job is over.

        Raises EnvironmentMissingError and JournalError as the worker reports them, and when it cannot be ended.
        """
        supervised = SupervisedJob(
            template(self._launch, self._job, self._cases),
            self._launch.folder,
            num_packs=num_packs(self._cases.values()),
            start=self._start,
            watch=self._heard,
        )
        self._signals.on_stop = supervised.stop
        if self._signals.number is not None:
            supervised.stop()
        try:
            return verdict_of(supervised.run(), self._launch.runner)
        finally:
            self._signals.on_stop = None

    def _start(self, start: Start, hear: Callable[[Said | Ended], None]) -> WorkerProcess:
        launch = self._launch
        self._last_environment = newest_environment(start.journal, self._job.job_id)
        launcher = plugins.load("launchers", launch.runner.launcher)
        call = worker_call(launch, self._job, start, os.environ)
        argv, env = launcher.command(call)
        ending = launcher.ending(call) if hasattr(launcher, "ending") else None
        try:
            return WorkerProcess(argv, env, start.log, hear, ending=ending)
        except OSError as error:
            raise refused(start.log, error) from error

    def _heard(self, happened: Said | RecordOutcome | Tell) -> None:
        match happened:
            case Said(event=event):
                for told in happenings_of(event, self._cases, self._last_environment):
                    self._watch(told)
            case RecordOutcome(case_id=case_id, status=status, reason=reason):
                self.failed = self.failed or status in FAILED
                self._watch(CaseEnded(case=self._cases[case_id], status=status.value, reason=reason, resumed=False))
            case Tell(text=text):
                self._watch(happenings.Said(text=text))


def verdict_of(finish: Finish, runner: Runner) -> Verdict:
    """How a job ended. Raises EnvironmentMissingError and JournalError as the worker reported them."""
    if finish.verdict is Verdict.MISSING:
        raise EnvironmentMissingError(f"the worker of runner {runner.name} cannot start:\n{finish.text}")
    if finish.verdict is Verdict.JOURNAL:
        raise JournalError(finish.text)
    return finish.verdict


def worker_call(launch: Launch, job: Job, start: Start, environ: Mapping[str, str]) -> WorkerCall:
    """What a launcher needs to start a worker. environ: the host's own; its import path counts outside containers."""
    request, image = start.request, launch.image_of(job)
    held = environ.get("PYTHONPATH") if image is None else None
    return WorkerCall(
        request_path=str(start.path.resolve()),
        run_dir=request.run_dir,
        python=launch.python_of(job),
        world_size=job.world_size,
        env={**({"PYTHONPATH": held} if held else {}), **request.env},
        package=str(PACKAGE),
        code_path=str(code_path(launch.folder)),
        name=f"attnspec-{request.job_id}-{request.attempt}-{secrets.token_hex(4)}",
        plugins=request.plugins,
        image=None if image is None else image.run_as,
        mounts=mounted(launch.runner),
        gpus=launch.device == "cuda",
        user=user(launch.runner),
        params=launch.runner.options,
    )


def template(launch: Launch, job: Job, only: Collection[str]) -> JobRequest:
    """The request with all cases of a job that are asked for; every worker gets a part of it."""
    return job_request(
        launch.plan,
        job,
        run_dir=str(launch.folder.path.resolve()),
        attempt=launch.folder.next_attempt(),
        device=launch.device,
        only=only,
        env=launch.runner.env,
        plugins=launch.plugins,
        image_id=launch.image_id(job),
        code_sha256=launch.code_sha256,
    )


def num_packs(cases: Iterable[Case]) -> dict[str, int]:
    """case_id -> packs that the case is measured on."""
    return {case.case_id: case.workload.mask_node.sample.num_packs for case in cases}


def happenings_of(
    event: Event, cases: Mapping[str, Case], last_environment: Mapping[str, Any] | None
) -> Iterator[Happening]:
    """What an event of a worker means to whoever watches. last_environment: as an earlier attempt found it."""
    case = cases.get(event.case_id or "")
    match event.kind:
        case "hello" if last_environment is not None:
            for line in changed_conditions(last_environment, event.data):
                yield happenings.Said(text=f"conditions differ from the last attempt: {line}")
        case "phase" if case is not None:
            yield TurnBegan(case=case, phase=event.phase or "")
        case "outcome" if case is not None:
            resumed = event.data.get("resumed") is True
            yield CaseEnded(case=case, status=event.status or "", reason=event.text or None, resumed=resumed)


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


def changed_conditions(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What changed among the things that a result_key covers, one line each. Pure.

    Versions count where both environments tell them, for each tells those that its cases need.

    >>> old = {"driver": "1", "device": "H200", "versions": {"torch": "2.11", "xformers": "0.1"}}
    >>> changed_conditions(old, {"driver": "2", "device": "H200", "versions": {"torch": "2.12"}, "load": 3})
    ['driver: 1 -> 2', 'versions.torch: 2.11 -> 2.12']
    >>> changed_conditions(old, {**old, "variables": {"NCCL_ALGO": "Tree"}})
    ['variables.NCCL_ALGO: unset -> Tree']
    """
    names = ("device", "driver", "image_id")
    lines = differences({name: before.get(name) for name in names}, {name: now.get(name) for name in names})
    lines += differences(before.get("variables", {}), now.get("variables", {}), "variables.")
    old, new = before.get("versions", {}), now.get("versions", {})
    both = old.keys() & new.keys()
    return lines + differences({name: old[name] for name in both}, {name: new[name] for name in both}, "versions.")


def newest_environment(journal: Journal, job_id: str) -> Mapping[str, Any] | None:
    """What the last worker of a job found."""
    notes = [note for note in journal.notes if note.kind == "environment" and note.writer.startswith(job_id)]
    return max(notes, key=lambda one: (one.attempt, one.created_ns)).data if notes else None
