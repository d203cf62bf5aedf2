"""python -m attnspec.launch.slurm_job ORDER.json: supervise one job inside its Slurm allocation.

Runs on the allocation's first node, in the place of the batch script. Crash recovery, limits per case and resuming are
those of a local run; a worker is an srun over the allocation. Signals: USR1 tells that the time limit comes, TERM that
the allocation ends; both end the worker in good order and keep what was measured.
"""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from attnspec.errors import AttnspecError, EnvironmentMissingError, JournalError
from attnspec.launch.expected_device import mismatch
from attnspec.launch.processes import WorkerProcess, log_end
from attnspec.launch.provenance import code_sha256
from attnspec.launch.run_folder import RunFolder
from attnspec.launch.slurm_cluster import Cluster, SlurmError, first_host
from attnspec.launch.slurm_order import (
    MAX_STARTS,
    JobVerdict,
    SlurmOrder,
    SubmissionFolder,
    starts_without_result,
)
from attnspec.launch.srun_log import not_started, without_srun
from attnspec.launch.supervised import Start, SupervisedJob
from attnspec.launch.supervision import Ended, RecordOutcome, Said, Tell, Verdict
from attnspec.launchers._containers import starting_fix
from attnspec.launchers.slurm import Step, meeting, not_started_fix, prepare_argv, roll_call_argv, step_command
from attnspec.record.status import FAILED, Status
from attnspec.record.whole_file import refused
from attnspec.support import Device
from attnspec.wire import EXIT_JOURNAL, EXIT_MISSING, Event, dumps, loads

EXIT_CODES = {"done": 0, "missing": EXIT_MISSING, "journal": EXIT_JOURNAL, "interrupted": 128 + signal.SIGTERM}
CONTAINER_NOT_STARTED = (125, 126)
NOT_FOUND = 127
"""Exit codes of podman itself, where nothing of the container ran."""
FENCE_S = 5.0
SETTLE_S = 3.0
"""Slurm signals ranks and batch script at one time; so long a worker's end waits for the signal that explains it."""
CLEAR_S = 60.0
ROLL_CALL_S = 90.0
PREPARE_S = 1800.0
"""Time to pull an image of many gigabytes onto every node."""
_PLAIN_VERDICTS = {Verdict.MISSING: "missing", Verdict.JOURNAL: "journal", Verdict.DONE: "done"}


class AllocationSupervisor:
    """One start of one submission."""

    def __init__(self, order: SlurmOrder, folder: SubmissionFolder, environ: Mapping[str, str], start: int) -> None:
        self._order = order
        self._folder = folder
        self._run = RunFolder(Path(order.request.run_dir))
        self._environ = environ
        self._start_number = start
        self._cluster = Cluster()
        self._slurm_id = int(environ["SLURM_JOB_ID"])
        self._master = first_host(environ["SLURM_JOB_NODELIST"])
        self._signal: int | None = None
        self._told_to_stop = threading.Event()
        self._lost = ""
        self._mismatch: str | None = None
        self._recorded_failure = False
        self._stream: BinaryIO | None = None
        request = dataclasses.replace(order.request, attempt=self._run.next_attempt())
        self._job = SupervisedJob(request, self._run, num_packs=order.num_packs, start=self._start, watch=self._heard)

    def run(self) -> JobVerdict:
        """Supervise to the end."""
        wrong = self._wrong_allocation()
        if wrong:
            return JobVerdict(verdict="missing", text=wrong)
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            signal.signal(number, self._stop)
        try:
            with self._folder.events.open("ab") as self._stream:
                where = self._environ["SLURM_JOB_NODELIST"]
                started = Event(
                    kind="message",
                    text=f"Slurm job {self._slurm_id} runs on {where}",
                    data={"start": self._start_number},
                )
                self._say(started)
                events, _ = self._folder.read_events()
                if starts_without_result(events) > MAX_STARTS:
                    return self._give_up()
                threading.Thread(target=self._watch_fence, name="fence", daemon=True).start()
                return self._supervise()
        except OSError as error:
            raise refused(self._folder.events, error) from error

    def _supervise(self) -> JobVerdict:
        try:
            self._prepare()
            finish = self._job.run()
        finally:
            with suppress(EnvironmentMissingError):  # the end of the allocation ends them all the same
                self._clear_steps()
        failed = self._recorded_failure
        if self._mismatch is not None:
            return JobVerdict(verdict="missing", text=self._mismatch)
        if self._lost and self._signal is None:
            return JobVerdict(verdict="failed", text=self._lost, recorded_failure=failed)
        if finish.verdict is Verdict.INTERRUPTED:
            name = "time_limit" if self._signal == signal.SIGUSR1 else "interrupted"
            return JobVerdict(verdict=name, recorded_failure=failed)
        return JobVerdict(verdict=_PLAIN_VERDICTS[finish.verdict], text=finish.text, recorded_failure=failed)

    def _prepare(self) -> None:
        """Bring the image to every node. Raises EnvironmentMissingError, also for another image than the locked one."""
        argv, container = prepare_argv(self._order.step), self._order.step.container
        if argv is None or container is None:
            if container is not None:
                self._tell(f"every rank fetches {container.image} through {container.program} as it starts")
            return
        self._tell(f"podman pulls {container.image} on the nodes that lack it; this may take minutes")
        began_s = time.monotonic()
        try:
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=PREPARE_S
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise EnvironmentMissingError(f"the image cannot be brought to the nodes: {error}") from None
        if done.returncode and self._signal is None:
            raise EnvironmentMissingError(
                f"the image cannot be used on the nodes:\n{without_srun(done.stderr).strip()}"
            )
        self._tell(f"the nodes hold the image after {time.monotonic() - began_s:.0f} s")

    def _wrong_allocation(self) -> str:
        """Why the allocation does not fit, with the numbers; empty when it does."""
        layout = self._order.step.layout
        nodes, tasks = (int(self._environ.get(name, "0")) for name in ("SLURM_JOB_NUM_NODES", "SLURM_NTASKS"))
        if (nodes, tasks) != (layout.num_nodes, layout.num_tasks):
            return (
                f"Slurm gave {nodes} nodes and {tasks} tasks; the job needs {layout.num_nodes} nodes "
                f"and {layout.num_tasks} tasks, {layout.tasks_per_node} on a node"
            )
        if (here := code_sha256()) != self._order.request.code_sha256:
            return (
                f"attnspec's code has changed since the job was submitted ({self._order.request.code_sha256[:12]}, "
                f"now {here[:12]}); run the same again to submit it anew"
            )
        return ""

    def _give_up(self) -> JobVerdict:
        """Something that this job does loses its allocation again and again."""
        reason = f"its allocation was lost {MAX_STARTS} times without a round or an outcome"
        for workload in self._order.request.workloads:
            for case in workload.cases:
                self._job.record(
                    RecordOutcome(case_id=case.case_id, status=Status.CRASHED, reason_code="lost_worker", reason=reason)
                )
        return JobVerdict(verdict="done", recorded_failure=True)

    def _start(self, start: Start, hear: Callable[[Said | Ended], None]) -> WorkerProcess:
        self._clear_steps()
        path = self._order.import_path
        env = {**({"PYTHONPATH": path} if path else {}), **start.request.env}
        met = meeting(master_addr=self._master, master_port=_free_port())
        argv, added = step_command(self._order.step, str(start.path), {**env, **met})
        try:
            return WorkerProcess(argv, added, start.log, partial(self._consider, hear, start.log))
        except OSError as error:
            raise refused(start.log, error) from error

    def _consider(self, hear: Callable[[Said | Ended], None], log: Path, happened: Said | Ended) -> None:
        """Before a worker's end is blamed on a case: does the allocation end, is a node gone, was none started?"""
        explained = (0, EXIT_MISSING, EXIT_JOURNAL)
        if isinstance(happened, Ended) and happened.returncode not in explained:
            if not self._told_to_stop.wait(SETTLE_S):
                self._lost = self._roll_call()
            if self._lost:
                self._job.stop()
            if happened.returncode > 0:
                happened = dataclasses.replace(
                    happened, not_started=why_not_started(self._order.step, happened, log_end(log))
                )
        hear(happened)

    def _roll_call(self) -> str:
        """Why not all nodes start a process; empty when they do."""
        try:
            done = subprocess.run(
                roll_call_argv(self._order.step),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=ROLL_CALL_S,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"nodes of the allocation do not answer: {error}"
        return f"nodes of the allocation do not answer: {done.stderr.strip()}" if done.returncode else ""

    def _clear_steps(self) -> None:
        """No rank of an earlier worker is left on any node. Raises SlurmError where that cannot be had."""
        until = time.monotonic() + CLEAR_S
        while True:
            try:
                steps = self._cluster.steps(self._slurm_id)
                if not steps:
                    return
                trouble = f"steps {', '.join(steps)} were killed and do not go away"
                self._cluster.kill_steps(steps)
            except SlurmError as error:  # a busy controller
                trouble = str(error)
            if time.monotonic() > until:
                raise SlurmError(trouble)
            time.sleep(0.5)

    def _heard(self, happened: Said | RecordOutcome | Tell) -> None:
        match happened:
            case Said(event=event):
                self._say(event)
                if event.kind == "hello":
                    self._check_device(event)
            case RecordOutcome(case_id=case_id, status=status, reason=reason):
                self._recorded_failure = self._recorded_failure or status in FAILED
                data = {"recorded": True}
                self._say(Event(kind="outcome", case_id=case_id, status=status.value, text=reason, data=data))
            case Tell(text=text):
                self._tell(text)

    def _check_device(self, hello: Event) -> None:
        cuda = hello.data.get("cuda")
        capability = None if cuda is None else tuple(cuda["capability"])
        found = Device(type="cpu" if cuda is None else "cuda", capability=capability, model=hello.data["device"])
        self._mismatch = mismatch(self._order.expected, self._order.expected.runner, found)
        if self._mismatch is not None:
            self._job.stop()

    def _tell(self, text: str) -> None:
        self._say(Event(kind="message", text=text))

    def _say(self, event: Event) -> None:
        assert self._stream is not None
        self._stream.write(f"{dumps(event)}\n".encode())
        self._stream.flush()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._signal = self._signal or number
        self._job.stop()
        self._told_to_stop.set()

    def _watch_fence(self) -> None:
        """End when a later start has taken over: Slurm took this one for lost."""
        while not self._folder.claimed(self._start_number + 1):
            time.sleep(FENCE_S)
        self._stop(signal.SIGTERM, None)


def why_not_started(step: Step, end: Ended, log: str) -> str:
    """Why a worker ran nowhere and what to do, where srun or the program of its container says so; else empty. Pure."""
    if words := not_started(log):
        return f"{words}\n{not_started_fix(step, words)}"
    if step.container is None:
        return ""
    program, fix = step.container.program, ""
    if end.returncode == NOT_FOUND and re.search(rf"\b{program}: (?:command )?not found", end.last_lines):
        fix = f"{program} must be installed on every node, on the path that jobs have there; or set slurm.container"
    elif end.returncode in CONTAINER_NOT_STARTED:
        fix = starting_fix(program, end.last_lines)
    words = "\n".join(dict.fromkeys(end.last_lines.splitlines()))  # every rank says the same
    return f"{words}\n{fix}" if fix else ""


def _free_port() -> int:
    """A port that is free on this node, where rank 0 runs as well."""
    with socket.socket() as held:
        held.bind(("", 0))
        port: int = held.getsockname()[1]
        return port


def main(arguments: list[str]) -> int:
    """Supervise one submission; the exit code."""
    if len(arguments) != 1 or "SLURM_JOB_ID" not in os.environ:
        print("usage, inside a Slurm job: python -m attnspec.launch.slurm_job ORDER.json", file=sys.stderr)
        return 2
    folder = SubmissionFolder(path=Path(arguments[0]).parent)
    start = folder.claim(f"{os.environ['SLURM_JOB_ID']}.{os.environ.get('SLURM_RESTART_COUNT', '0')}")
    if start is None:
        print("this submission was given up; nothing to do", file=sys.stderr)
        return 0
    with suppress(FileNotFoundError):
        folder.verdict_file.unlink()  # of an earlier start
    try:
        order = loads(SlurmOrder, folder.order.read_bytes())
        verdict = AllocationSupervisor(order, folder, os.environ, start).run()
    except SlurmError as error:  # of this allocation; another may do
        verdict = JobVerdict(verdict="failed", text=str(error))
    except EnvironmentMissingError as error:
        verdict = JobVerdict(verdict="missing", text=str(error))
    except JournalError as error:
        verdict = JobVerdict(verdict="journal", text=str(error))
    except (AttnspecError, OSError) as error:
        verdict = JobVerdict(verdict="failed", text=f"{type(error).__name__}: {error}")
    print(f"{verdict.verdict} {verdict.text}".strip(), file=sys.stderr)
    if not folder.claimed(start + 1):  # else a later start speaks
        folder.write_verdict(verdict)
    return EXIT_CODES.get(verdict.verdict, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
