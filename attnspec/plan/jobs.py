"""Grouping cases into jobs and, inside a job, into workload groups. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from attnspec import plugins
from attnspec.plan.identity import job_id
from attnspec.plan.model import Case, Image, Job, Level, Plan, WorkloadGroup
from attnspec.wire import Implementation

_JobKey = tuple[str | None, int, tuple[tuple[str, str], ...], str | None]


def image_for(implementation: Implementation, images: Sequence[Image]) -> str | None:
    """The first image that holds an implementation; the first of all where none says so, None without images."""
    if not images:
        return None
    return next((image for image in images if image.holds(implementation)), images[0]).name


def apart_of(implementation: Implementation) -> str | None:
    """`kernel provider` where that provider wants a process of its own, else None."""
    if implementation.kernel is None or implementation.provider is None:
        return None
    providers = plugins.load("kernels", implementation.kernel).PROVIDERS
    apart = any(one.apart for one in providers if one.name == implementation.provider)
    return f"{implementation.kernel} {implementation.provider}" if apart else None


def group_jobs(cases: Iterable[Case], *, runner: str, images: Sequence[Image]) -> tuple[Job, ...]:
    """Jobs in the order in which their first cases come. Within a job one length after another, in the order in which
    lengths come, and within a length groups as they come: a job that is stopped has measured the first ones for all
    masks.

    One job has one image, and of a kernel's providers none that wants a process of its own beside another.
    """
    held: dict[_JobKey, dict[tuple[str, Level], list[Case]]] = {}
    envs: dict[_JobKey, Mapping[str, str]] = {}
    keys: dict[tuple[int, int, int], _JobKey] = {}  # by identity: cases share environments and implementations
    for case in cases:
        known = (id(case.implementation), case.cp_size, id(case.env))
        if known not in keys:
            image, apart = image_for(case.implementation, images), apart_of(case.implementation)
            keys[known] = (image, case.cp_size, tuple(sorted(case.env.items())), apart)
            envs.setdefault(keys[known], case.env)
        held.setdefault(keys[known], {}).setdefault((case.workload.workload_id, case.level), []).append(case)
    return tuple(
        Job(
            job_id=job_id(runner=runner, image=image, world_size=world_size, env=envs[key], apart=apart),
            runner=runner,
            image=image,
            world_size=world_size,
            env=envs[key],
            apart=apart,
            groups=_by_length(
                WorkloadGroup(workload=members[0].workload, level=level, cases=tuple(members))
                for (_, level), members in groups.items()
            ),
        )
        for key, groups in held.items()
        for image, world_size, _, apart in (key,)
    )


def _by_length(groups: Iterable[WorkloadGroup]) -> tuple[WorkloadGroup, ...]:
    """One length after another, the first group first."""
    of_length: dict[tuple[int, int], list[WorkloadGroup]] = {}
    for group in groups:
        node = group.workload.mask_node
        of_length.setdefault((node.seqlen_q, node.seqlen_k), []).append(group)
    return tuple(group for same in of_length.values() for group in same)


def restrict(plan: Plan, cases: Iterable[Case]) -> Plan:
    """The plan of some of a plan's cases: only the nodes that they need, ids unchanged."""
    kept = tuple(cases)
    workloads = {case.workload.workload_id: case.workload for case in kept}
    masks = {work.mask_node.mask_id: work.mask_node for work in workloads.values()}
    ids = {case.case_id for case in kept}
    return dataclasses.replace(
        plan,
        samples={node.sample.sample_id: node.sample for node in masks.values()},
        masks=masks,
        workloads=workloads,
        cases=kept,
        jobs=group_jobs(kept, runner=plan.runner, images=plan.images),
        unsupported={key: why for key, why in plan.unsupported.items() if key in ids},
        dense=plan.dense & ids,
    )
