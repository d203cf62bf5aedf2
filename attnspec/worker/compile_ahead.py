"""Compiling ahead: kernels that compile for every shape are called once, in parallel processes, before all timing.

Compilers work on one core each, so a sweep would spend most of its time waiting for them. A kernel plug-in asks for
this by `COMPILES_AHEAD = "each_length"` or `"any_length"`, where lengths share what is compiled; either lies in a
cache on disk that processes share. Here a few processes fill that cache; the worker then finds everything there.
Nothing is timed meanwhile and what is compiled does not depend on who compiles it, so numbers stay as they are; only
`compile_s` gets smaller. What was done is noted beside the environment, as `compile_ahead`. A mark of it is left among
the temporary files, where such caches are too: a worker that follows (after a crash, or in a run that goes on) does not
call it all again. A mark without its cache costs no more than that the worker compiles itself.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import torch

from attnspec import plugins
from attnspec.ids import canonical_json, content_id
from attnspec.shape import DTYPE_BYTES
from attnspec.wire import CaseRequest, JobRequest, WorkloadRequest, dumps
from attnspec.worker.environment import Environment, usable_cores
from attnspec.worker.identity import identify, provided
from attnspec.worker.reporter import Reporter

LEAST_CASES = 4
"""Fewer are compiled as fast by the worker itself: a process takes seconds to start."""
LIMIT_SHARE = 0.5
"""Of the limit that the host keeps for a set-up."""
CONTEXT_BYTES = 2**30
TENSORS_HELD = 12
"""Tensors of the queries' size that one call holds at most, a library's own included."""
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR")
"""Where these lead, there lies what was compiled."""
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}


class _Done:
    """What came of it so far; threads add to it."""

    def __init__(self) -> None:
        self.answered: list[str] = []
        self.failed: dict[str, str] = {}
        self._lock = threading.Lock()

    def add(self, case_id: str, failed: Mapping[str, str]) -> None:
        with self._lock:
            self.answered.append(case_id)
            self.failed.update(failed)


def compile_ahead(request: JobRequest, environment: Environment, reporter: Reporter) -> None:
    """Fill the caches for the cases of a job, on CUDA with one rank and several cores; else do nothing.

    Takes no longer than half of what the host grants a set-up; what is left then the worker compiles itself.
    """
    if environment.device.type != "cuda" or request.world_size > 1:
        return
    marks = {case_id: mark for case_id, mark in cases_of(request, environment).items() if not mark.exists()}
    case_ids = list(marks)
    if len(case_ids) < LEAST_CASES:
        return
    free_bytes, _ = torch.cuda.mem_get_info(environment.device)
    fitting = free_bytes // (CONTEXT_BYTES + _most_bytes(request))
    num_processes = min(len(case_ids), usable_cores() - 1, int(fitting))
    if num_processes < 2:
        return
    reporter.message(f"compiling {len(case_ids)} cases ahead in {num_processes} processes")
    facts, compiled = call_all(request, case_ids, num_processes, limit_s=LIMIT_SHARE * request.measure.setup_timeout_s)
    reporter.note("compile_ahead", facts)
    _leave([marks[case_id] for case_id in compiled])
    failed = len(facts["failed"])
    reporter.message(f"compiled ahead in {facts['wall_s']:.0f} s" + (f"; {failed} failed so far" if failed else ""))


def _leave(marks: Sequence[Path]) -> None:
    with suppress(OSError):  # a full or read-only disk: compiled once more next time
        for mark in marks:
            mark.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            mark.touch()


def cases_of(request: JobRequest, environment: Environment) -> dict[str, Path]:
    """case_ids to be called once, in this order, each with the mark of what it compiles.

    First what any length needs, each mask at its greatest length (at a short one a window may be none). Then a first
    mask of every implementation, length and direction, the longest ahead, then a second one and so on: masks of one
    length often share what is compiled, and find it where they are not called at once. Of several passes with a
    backward one is called. Nothing of cases that are measured already, or that nothing can run.
    """
    graphs: dict[tuple[Any, ...], dict[str, tuple[str, Path]]] = {}
    longest: dict[tuple[Any, ...], tuple[int, str, Path]] = {}
    for workload in request.workloads:
        for case in workload.cases:
            compiles = _compiles(request, case, environment) if workload.level == "kernel" else None
            if compiles is None:
                continue
            how, conditions = compiles
            same = repr(workload.shape), *case.binding
            if how == "any_length":
                mask = f"{workload.mask} {canonical_json(workload.mask_params)}"
                if _size(workload) > longest.get((*same, mask), (0,))[0]:
                    mark = _mark(conditions, *same, mask)
                    longest[*same, mask] = _size(workload), case.case_id, mark
            else:
                mark = _mark(conditions, *same, workload.workload_id)
                graphs.setdefault((*same, _size(workload)), {}).setdefault(workload.workload_id, (case.case_id, mark))
    ordered = [
        list(graphs[key].values()) for key in sorted(graphs, key=lambda key: (key[2], key[3], *key), reverse=True)
    ]
    turns = itertools.zip_longest(*ordered)
    return {case_id: mark for _, case_id, mark in longest.values()} | {
        case_id: mark for turn in turns for case_id, mark in filter(None, turn)
    }


def call_all(
    request: JobRequest, case_ids: Sequence[str], num_processes: int, *, limit_s: float
) -> tuple[dict[str, Any], list[str]]:
    """Hand the cases to processes as these become free.

    What was done (cases, failed by case_id with its message, wall_s and so on), and which cases did not fail.
    """
    started = time.monotonic()
    waiting: SimpleQueue[str] = SimpleQueue()
    for case_id in case_ids:
        waiting.put(case_id)
    done = _Done()
    processes = [_start() for _ in range(num_processes)]
    text = dumps(request)
    threads = [threading.Thread(target=_feed, args=(one, text, waiting, done), daemon=True) for one in processes]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, started + limit_s - time.monotonic()))
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
    for thread in threads:
        thread.join()
    facts = {
        "cases": len(case_ids),
        "answered": len(done.answered),
        "failed": done.failed,
        "processes": num_processes,
        "wall_s": time.monotonic() - started,
    }
    return facts, [case_id for case_id in done.answered if case_id not in done.failed]


def _start() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "attnspec.worker.compiler"],
        env={**os.environ, **_ENVIRONMENT},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _feed(process: subprocess.Popen[str], request: str, waiting: SimpleQueue[str], done: _Done) -> None:
    """One process gets cases until none is left, or until it ends; what it then had in hand the worker compiles."""
    assert process.stdin is not None and process.stdout is not None
    line = f"{request}\n"
    with suppress(Empty, OSError), process.stdin, process.stdout:
        while True:
            case_id = waiting.get_nowait()
            process.stdin.write(f"{line}{json.dumps(case_id)}\n")
            process.stdin.flush()
            line = ""
            answer = process.stdout.readline()
            if not answer:
                return
            done.add(case_id, json.loads(answer)["failed"])


def _size(workload: WorkloadRequest) -> int:
    return workload.shape.batch * (workload.seqlen_q + workload.seqlen_k)


def _mark(*content: object) -> Path:
    """The file that says that this is compiled; its name hashes all that it depends on."""
    folder = Path(tempfile.gettempdir()) / f"attnspec_compiled-{os.getuid()}"
    return folder / content_id("compiled", [str(one) for one in content])


def _compiles(
    request: JobRequest, case: CaseRequest, environment: Environment
) -> tuple[str, Mapping[str, str | None]] | None:
    """What the kernel's COMPILES_AHEAD says, and under which conditions; None where there is nothing to do.

    Nothing of a case that ended a worker, lest it end this one before the others are measured.
    """
    if case.case_id in request.solo:
        return None
    try:
        how: str | None = getattr(plugins.load("kernels", case.implementation.kernel), "COMPILES_AHEAD", None)
        if how is None:
            return None
        *_, key = identify(request, case, environment)
        *_, versions = provided(case, environment)
    except Exception:  # noqa: BLE001  (a missing package, no memory: the case's own outcome, told in its turn)
        return None
    if key in request.done:
        return None
    places = {name: os.environ.get(name) for name in CACHES}
    return how, {
        **versions,
        **places,
        "code": request.code_sha256,
        "torch": torch.__version__,
        "driver": environment.driver,
        "device": environment.support.model,
    }


def _most_bytes(request: JobRequest) -> int:
    """What one call holds at most, over all workloads."""

    def tensor_bytes(workload: WorkloadRequest) -> int:
        shape = workload.shape
        longest = max(workload.seqlen_q, workload.seqlen_k)
        return shape.batch * longest * shape.num_heads_q * shape.head_dim * DTYPE_BYTES[shape.dtype]

    return TENSORS_HELD * max(map(tensor_bytes, request.workloads), default=0)
