"""A run folder with slices and a job request, and a worker process that executes it, for tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa

from attnspec import plugins
from attnspec.ids import content_id
from attnspec.shape import Shape
from attnspec.slices import to_arrow
from attnspec.wire import CaseRequest, Event, Implementation, JobRequest, Measure, WorkloadRequest, dumps, loads

SHAPE = Shape(batch=1, num_heads_q=2, num_heads_kv=1, head_dim=16, dtype="float32")
QUICK = Measure(min_iters=2, max_seconds=0.01, ci=1.0)


def case(kernel: str, pass_: str = "fwd", name: str = "", **implementation) -> CaseRequest:
    found = Implementation(kernel=kernel, **implementation)
    return CaseRequest(
        case_id=name or content_id("case", [kernel, pass_, str(implementation)]), implementation=found, pass_=pass_
    )


def workload(folder: Path, cases, *, mask="causal", docs=((64,),), shape=SHAPE, **params) -> WorkloadRequest:
    """Packs of documents; their slices are written into the folder."""
    module = plugins.load("masks", mask)
    seqlen = sum(docs[0])
    values = plugins.make_params(module, params)
    packs = [module.slices(values, np.array(pack, dtype=np.int64), seqlen, seqlen) for pack in docs]
    name = content_id("workload", [mask, [list(map(int, pack)) for pack in docs], shape.dtype, params])
    (folder / "artifacts").mkdir(exist_ok=True, parents=True)
    path = f"artifacts/slices-{name}.arrow"
    table = to_arrow(packs)
    with pa.OSFile(str(folder / path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    return WorkloadRequest(
        workload_id=name,
        level="kernel",
        mask=mask,
        mask_params=params,
        seqlen_q=seqlen,
        seqlen_k=seqlen,
        shape=shape,
        seed=0,
        packs="",
        slices=path,
        cases=tuple(cases),
    )


def request(
    folder: Path, *workloads: WorkloadRequest, attempt: int = 1, measure: Measure = QUICK, **more
) -> JobRequest:
    return JobRequest(
        job_id="job",
        attempt=attempt,
        run_dir=str(folder),
        device=more.pop("device", "cpu"),
        world_size=1,
        env={},
        measure=measure,
        workloads=workloads,
        **more,
    )


class Worker:
    """A worker process; `events` grows while it runs."""

    def __init__(self, folder: Path, asked: JobRequest, **env: str) -> None:
        path = folder / f"request-{asked.attempt}.json"
        path.write_text(dumps(asked))
        self.events: list[Event] = []
        self.news = threading.Condition()
        self.log = folder / f"log-{asked.attempt}"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "attnspec.worker", str(path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", **env},
            )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            event = loads(Event, line)
            with self.news:
                self.events.append(event)
                self.news.notify_all()
        self.process.stdout.close()

    def wait_for(self, wanted, timeout: float = 60.0) -> None:
        """Until an event satisfies `wanted`."""
        with self.news:
            assert self.news.wait_for(lambda: any(map(wanted, self.events)), timeout), self.log.read_text()

    def wait(self, timeout: float = 60.0) -> int:
        code = self.process.wait(timeout)
        self.reader.join(timeout)
        self.process.stdin.close()
        return code

    def outcomes(self) -> dict[str, str]:
        return {event.case_id: event.status for event in self.events if event.kind == "outcome"}


def run(folder: Path, asked: JobRequest, **env: str) -> Worker:
    worker = Worker(folder, asked, **env)
    worker.code = worker.wait()
    return worker


def shown(worker: Worker) -> str:
    return json.dumps([json.loads(dumps(event)) for event in worker.events], indent=1) + worker.log.read_text()
