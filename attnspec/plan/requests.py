"""From a job of a plan to the request that a worker reads. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from attnspec.plan.model import Case, Job, Plan, WorkloadGroup
from attnspec.wire import CaseRequest, JobRequest, WorkloadRequest


def packs_path(sample_id: str) -> str:
    """Where a sample node's packs lie, relative to the run folder."""
    return f"artifacts/packs-{sample_id}.arrow"


def slices_path(mask_id: str) -> str:
    """Where a mask node's slices lie, relative to the run folder."""
    return f"artifacts/slices-{mask_id}.arrow"


def request_path(job_id: str, attempt: int) -> str:
    """Where a job's request lies, relative to the run folder."""
    return f"artifacts/jobs/{job_id}-{attempt}.json"


def runnable(plan: Plan, job: Job, only: Collection[str] | None = None) -> tuple[Case, ...]:
    """The cases of `job` that a worker is asked to run: those in `only` (case_ids), less the unsupported."""
    return tuple(
        case for case in job.cases if case.case_id not in plan.unsupported and (only is None or case.case_id in only)
    )


def job_request(
    plan: Plan,
    job: Job,
    *,
    run_dir: str,
    attempt: int,
    device: Literal["cpu", "cuda"],
    only: Collection[str] | None = None,
    env: Mapping[str, str] | None = None,
    plugins: Sequence[str] = (),
    image_id: str | None = None,
    code_sha256: str = "",
) -> JobRequest:
    """The request for one attempt at one job.

    Unsupported cases are left out, and with `only` all cases whose case_id is not in it. env: the runner's own
    environment; the job's wins over it. The anchor, measured again at the end, is the job's first case that runs.
    """
    wanted = {case.case_id for case in runnable(plan, job, only)}
    anchor = next((case.case_id for case in job.cases if case.case_id in wanted), None)
    return JobRequest(
        job_id=job.job_id,
        attempt=attempt,
        run_dir=run_dir,
        device=device,
        world_size=job.world_size,
        env={**(env or {}), **job.env},
        measure=plan.measure,
        workloads=tuple(
            _workload(group, wanted) for group in job.groups if any(case.case_id in wanted for case in group.cases)
        ),
        anchor=anchor,
        plugins=tuple(plugins),
        image_id=image_id,
        code_sha256=code_sha256,
    )


def narrowed(
    request: JobRequest,
    *,
    attempt: int,
    only: Collection[str],
    solo: Sequence[str] = (),
    done: Sequence[str] = (),
    rounds_done: Mapping[str, Mapping[str, int]] | None = None,
) -> JobRequest:
    """The same job for another attempt and fewer cases: those whose case_id is in `only`.

    The anchor is the first that is not tried alone.
    """
    workloads = tuple(
        dataclasses.replace(workload, cases=cases)
        for workload in request.workloads
        if (cases := tuple(case for case in workload.cases if case.case_id in only))
    )
    asked = (case.case_id for workload in workloads for case in workload.cases)
    return dataclasses.replace(
        request,
        attempt=attempt,
        workloads=workloads,
        anchor=next((case_id for case_id in asked if case_id not in solo), None),
        solo=tuple(solo),
        done=tuple(done),
        rounds_done=rounds_done or {},
    )


def _workload(group: WorkloadGroup, wanted: Collection[str]) -> WorkloadRequest:
    workload = group.workload
    node = workload.mask_node
    return WorkloadRequest(
        workload_id=workload.workload_id,
        level=group.level,
        mask=node.mask,
        mask_params=node.params,
        seqlen_q=node.seqlen_q,
        seqlen_k=node.seqlen_k,
        shape=workload.shape,
        seed=workload.seed,
        packs=packs_path(node.sample.sample_id),
        slices=slices_path(node.mask_id),
        cases=tuple(
            CaseRequest(
                case_id=case.case_id, implementation=case.implementation, pass_=case.pass_, cp_size=case.cp_size
            )
            for case in group.cases
            if case.case_id in wanted
        ),
    )
