"""Grouping cases into jobs and, inside a job, into workload groups. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attnspec.plan.identity import job_id
from attnspec.plan.model import Case, Job, Level, WorkloadGroup

_JobKey = tuple[int, tuple[tuple[str, str], ...]]


def group_jobs(cases: Iterable[Case], *, runner: str, image: str | None) -> tuple[Job, ...]:
    """Jobs in the order in which their first cases come; groups within a job likewise."""
    held: dict[_JobKey, dict[tuple[str, Level], list[Case]]] = {}
    envs: dict[_JobKey, Mapping[str, str]] = {}
    for case in cases:
        key = (case.cp_size, tuple(sorted(case.env.items())))
        envs.setdefault(key, case.env)
        held.setdefault(key, {}).setdefault((case.workload.workload_id, case.level), []).append(case)
    return tuple(
        Job(
            job_id=job_id(runner=runner, image=image, world_size=world_size, env=envs[world_size, env]),
            runner=runner,
            image=image,
            world_size=world_size,
            env=envs[world_size, env],
            groups=tuple(
                WorkloadGroup(workload=members[0].workload, level=level, cases=tuple(members))
                for (_, level), members in groups.items()
            ),
        )
        for (world_size, env), groups in held.items()
    )
