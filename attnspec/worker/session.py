"""From a request to a running job: device, clock, journal. Needs torch."""

from __future__ import annotations

from pathlib import Path

from attnspec import plugins
from attnspec.execute.clock import Clock, CpuClock
from attnspec.execute.cuda_clock import CudaClock
from attnspec.execute.memory import available_host_bytes, limit_host_memory
from attnspec.record.journal import JournalWriter
from attnspec.wire import JobRequest
from attnspec.worker.control import EventStream, Stop
from attnspec.worker.environment import look_around
from attnspec.worker.job import run_job
from attnspec.worker.reporter import Reporter


def run_session(request: JobRequest, events: EventStream, stop: Stop, *, rank: int, local_rank: int) -> None:
    """Execute the job of one rank. Raises EnvironmentMissingError, JournalError, DeviceLostError."""
    plugins.load_files(request.plugins)
    environment = look_around(request, local_rank)
    clock: Clock = CpuClock() if environment.device.type == "cpu" else CudaClock(environment.device)
    if environment.device.type == "cpu":
        limit_host_memory(available_host_bytes())
    writer = f"{request.job_id}-rank{rank}"
    with JournalWriter(Path(request.run_dir) / "journal", writer, request.attempt) as journal:
        run_job(request, environment, clock, Reporter(events, journal, stop, environment, rank=rank))
