"""python -m attnspec.worker.compiler: call kernels once, so that what they compile lies in the caches on disk.

One of several such processes that a worker starts (`attnspec.worker.compile_ahead`). On standard input the request of
the job, then one line for each case: its case_id as JSON. Each is answered by one line on standard output,
`{"failed": {case_id: message}}`. A failure here is nobody's outcome: the worker meets it again and records it.
"""

from __future__ import annotations

import json
import os
import sys

import torch

from attnspec import plugins
from attnspec.execute.prepared import prepare_kernel
from attnspec.execute.providers import choose
from attnspec.record.variables import measured_variables
from attnspec.support import Problem
from attnspec.wire import CaseRequest, JobRequest, WorkloadRequest, loads
from attnspec.worker.control import leave
from attnspec.worker.environment import Environment, look_around, set_defaults
from attnspec.worker.inputs import read_slices, tensors_of


def main() -> int:
    """Answer until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    variables = measured_variables(os.environ)
    request = loads(JobRequest, sys.stdin.readline())
    plugins.load_files(request.plugins)
    set_defaults(case.implementation.kernel for one in request.workloads for case in one.cases)
    environment = look_around(request, 0, variables)
    known = {case.case_id: (workload, case) for workload in request.workloads for case in workload.cases}
    for line in sys.stdin:
        failed, case_id = {}, json.loads(line)
        try:
            call_once(request.run_dir, *known[case_id], environment)
        except Exception as error:  # noqa: BLE001  (whatever a library raises is told, and met again by the worker)
            failed[case_id] = f"{type(error).__name__}: {error}"
        print(json.dumps({"failed": failed}), file=answers, flush=True)
    return 0


def call_once(run_dir: str, workload: WorkloadRequest, case: CaseRequest, environment: Environment) -> None:
    """One iteration of a case on its first pack, at full size: compiled code depends on sizes."""
    module = plugins.load("kernels", case.implementation.kernel)
    provider, _ = choose(module, case.implementation.provider, environment.support)
    problem = Problem(
        shape=workload.shape,
        slices=read_slices(run_dir, workload)[0],
        needs_backward=case.needs_backward,
        device=environment.support,
    )
    prepared = prepare_kernel(case.implementation, problem, provider)
    prepared.load(tensors_of(workload, environment.device, needs_backward=case.needs_backward))
    step = prepared.step(case.pass_)
    if step.before is not None:
        step.before()
    step.run()
    prepared.free()
    if environment.device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    leave(main())
