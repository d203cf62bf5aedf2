"""From a request to a running job: device, clock, journal. Needs torch."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from attnspec import plugins
from attnspec.exchange.groups import Ranks
from attnspec.execute.clock import Clock, CpuClock
from attnspec.execute.cuda_clock import CudaClock
from attnspec.execute.joint import Agreement
from attnspec.execute.memory import available_host_bytes, limit_host_memory
from attnspec.record.journal import JournalWriter
from attnspec.record.variables import measured_variables
from attnspec.wire import JobRequest
from attnspec.worker.control import EventStream, Stop
from attnspec.worker.environment import Environment, look_around, set_defaults, usable_cores
from attnspec.worker.failures import failure_of
from attnspec.worker.job import run_job
from attnspec.worker.reporter import Reporter


def run_session(request: JobRequest, events: EventStream, stop: Stop, *, rank: int, local_rank: int) -> None:
    """Execute the job of one rank.

    On the CPU one core stays free for the host, which supervises, and for the system: a team of threads that waits for
    one of its own to get a core back takes many times as long. OMP_NUM_THREADS in the environment overrides that.

    Raises EnvironmentMissingError, JournalError, DeviceLostError.
    """
    variables = measured_variables(os.environ)
    plugins.load_files(request.plugins)
    set_defaults(case.implementation.kernel for one in request.workloads for case in one.cases)
    if request.device == "cpu" and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, usable_cores() // request.world_size - 1))
    environment = look_around(request, local_rank, variables)
    device = environment.device
    if device.type == "cpu":
        available = available_host_bytes()
        limit_host_memory(None if available is None else available // request.world_size)
    ranks = _join(request, rank, environment)
    agreement = Agreement(ranks, failure_of)
    writer = f"{request.job_id}-rank{rank}"
    with JournalWriter(Path(request.run_dir) / "journal", writer, request.attempt) as journal:
        reporter = Reporter(events, journal, stop, environment, rank=rank)
        run_job(request, environment, _clock(device, agreement), reporter, agreement)
    ranks.leave()


def _join(request: JobRequest, rank: int, environment: Environment) -> Ranks:
    """Meet the other ranks. What they wait for each other at most is more than the host lets any case take."""
    if request.world_size == 1:
        return Ranks.alone()
    measure = request.measure
    timeout_s = 2 * (measure.setup_timeout_s + measure.measure_timeout_s)
    return Ranks.join(rank=rank, size=request.world_size, device=environment.device, timeout_s=timeout_s)


def _clock(device: torch.device, agreement: Agreement) -> Clock:
    if device.type == "cpu":
        return CpuClock(align=agreement.meet if agreement.ranks.size > 1 else None)
    if agreement.ranks.size == 1:
        return CudaClock(device)
    return CudaClock(device, align=agreement.ranks.line_up(device), agree=agreement.any_of)
