"""A job over the ranks of a RankPool, as the worker runs it. `run_job_of` runs inside the ranks."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
from worker_requests import QUICK, workload

from attnspec import plugins
from attnspec.execute.clock import CpuClock
from attnspec.execute.joint import Agreement
from attnspec.record.journal import JournalWriter
from attnspec.sample.artifact import write_packs
from attnspec.shape import Shape
from attnspec.wire import JobRequest
from attnspec.worker.control import Stop
from attnspec.worker.environment import look_around
from attnspec.worker.failures import failure_of
from attnspec.worker.job import run_job
from attnspec.worker.reporter import Reporter

SHAPE = Shape(batch=1, num_heads_q=4, num_heads_kv=4, head_dim=16, dtype="float32")
FAULTY = Path(__file__).parent / "faulty_rank.py"


class Heard:
    """An event stream that keeps what is sent."""

    def __init__(self):
        self.events = []

    def send(self, event):
        self.events.append(event)


def distributed_workload(folder, cases, *, docs=((24, 40),), shape=SHAPE, mask="varlen_causal", size=2, **params):
    import numpy as np

    made = workload(folder, [], mask=mask, docs=docs, shape=shape, **params)
    packs = f"artifacts/packs-{made.workload_id}.arrow"
    write_packs(folder / packs, [np.array(pack, dtype=np.int64) for pack in docs])
    cases = tuple(dataclasses.replace(case, cp_size=size) for case in cases)
    return dataclasses.replace(made, level="distributed", packs=packs, cases=cases)


def distributed_request(folder, *workloads, size=2, attempt=1, measure=QUICK, **more):
    return JobRequest(
        job_id="job",
        attempt=attempt,
        run_dir=str(folder),
        device="cpu",
        world_size=size,
        env={},
        measure=measure,
        workloads=workloads,
        plugins=(str(FAULTY),),
        **more,
    )


def run_job_of(ranks, asked):
    """The job on one rank; the events that rank 0 sent."""
    if "faulty_rank" not in plugins.names("kernels"):
        plugins.load_files(asked.plugins)
    torch.set_num_threads(1)
    heard, agreement = Heard(), Agreement(ranks, failure_of)
    environment = look_around(asked, 0, {})
    with JournalWriter(Path(asked.run_dir) / "journal", f"{asked.job_id}-rank{ranks.rank}", asked.attempt) as journal:
        reporter = Reporter(heard, journal, Stop(), environment, rank=ranks.rank)
        run_job(asked, environment, CpuClock(align=agreement.meet), reporter, agreement)
    return heard.events
