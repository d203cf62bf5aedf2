"""Plans: the compiled graph of sample, mask, run and collect nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attnspec.plan.compile import compile_spec, uses_documents
from attnspec.plan.graph import count_nodes
from attnspec.plan.jobs import restrict
from attnspec.plan.model import Case, Image, Job, MaskNode, Plan, SampleNode, Unsupported, Workload, WorkloadGroup
from attnspec.plan.requests import job_request
from attnspec.plan.rows import base_row, base_rows
from attnspec.plan.select import parse_only, select
from attnspec.sample import read_lengths
from attnspec.spec import Spec
from attnspec.support import Device


def compile_plan(
    spec: Spec,
    *,
    device: Device | None = None,
    images: Sequence[Image] = (),
    env: Mapping[str, str] | None = None,
) -> Plan:
    """The plan of a spec: reads the length distribution (for its checksum) and samples nothing.

    device: what the runner expects, to decide what cannot run there; None decides what can run nowhere. images: those
    of the runner. env: its environment variables; None where nobody looked at it. None of these is part of a case's id.
    Raises InputError for unreadable lengths and for masks that refuse their parameters.
    """
    lengths = read_lengths(spec.data.lengths) if uses_documents(spec) else None
    return compile_spec(spec, lengths, device=device, images=images, env=env)


__all__ = [
    "Case",
    "Image",
    "Job",
    "MaskNode",
    "Plan",
    "SampleNode",
    "Unsupported",
    "Workload",
    "WorkloadGroup",
    "base_row",
    "base_rows",
    "compile_plan",
    "count_nodes",
    "job_request",
    "parse_only",
    "restrict",
    "select",
]
