"""Content ids of a plan's nodes: what each id covers, in one place. Pure.

An id covers what the spec asks and nothing that is found while running. `measure`, the runner and the level are part of
no id. Masks without documents depend on no data, so their ids do not change with the length distribution.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

from attnspec.ids import content_id, text_id
from attnspec.shape import Pass, Shape
from attnspec.wire import Implementation


def sample_id(
    *,
    seqlen: int,
    num_packs: int = 1,
    data_sha256: str | None = None,
    max_doc_fraction: Fraction | None = None,
    seed: int | None = None,
) -> str:
    """Id of a sample node; without data it is the single document of seqlen tokens."""
    if data_sha256 is None:
        return content_id("sample", {"seqlen": seqlen})
    return content_id(
        "sample",
        {
            "data_sha256": data_sha256,
            "max_doc_fraction": None if max_doc_fraction is None else str(max_doc_fraction),
            "num_packs": num_packs,
            "seed": seed,
            "seqlen": seqlen,
        },
    )


def mask_id(*, sample: str, mask: str, params: Mapping[str, Any], seqlen_q: int, seqlen_k: int) -> str:
    """Id of a mask node over the sample node with id `sample`."""
    return content_id(
        "mask",
        {"mask": mask, "params": dict(params), "sample": sample, "seqlen_k": seqlen_k, "seqlen_q": seqlen_q},
    )


def workload_id(
    *,
    mask: str,
    params: Mapping[str, Any],
    seqlen_q: int,
    seqlen_k: int,
    shape: Shape,
    seed: int,
    num_packs: int = 1,
    data_sha256: str | None = None,
    max_doc_fraction: Fraction | None = None,
) -> str:
    """Id of a workload."""
    return content_id(
        "workload",
        {
            "data_sha256": data_sha256,
            "mask": mask,
            "mask_params": dict(params),
            "max_doc_fraction": None if max_doc_fraction is None else str(max_doc_fraction),
            "num_packs": num_packs,
            "seed": seed,
            "seqlen_k": seqlen_k,
            "seqlen_q": seqlen_q,
            "shape": shape_content(shape),
        },
    )


def shape_content(shape: Shape) -> dict[str, Any]:
    """A shape as JSON types."""
    return {
        "batch": shape.batch,
        "dtype": shape.dtype,
        "head_dim": shape.head_dim,
        "num_heads_kv": shape.num_heads_kv,
        "num_heads_q": shape.num_heads_q,
    }


def implementation_content(implementation: Implementation) -> dict[str, Any]:
    """An implementation as JSON types."""
    return {
        "backend": implementation.backend,
        "kernel": implementation.kernel,
        "kernel_params": dict(implementation.kernel_params),
        "provider": implementation.provider,
        "strategy": implementation.strategy,
        "strategy_params": dict(implementation.strategy_params),
    }


def case_id(*, workload: str, implementation: str, pass_: Pass, cp_size: int, env: str) -> str:
    """Id of a case. `implementation` and `env` are canonical JSON, since many cases share them.

    >>> case_id(workload="w", implementation="{}", pass_="fwd", cp_size=1, env="{}") == content_id(
    ...     "case", {"workload_id": "w", "implementation": {}, "pass": "fwd", "cp_size": 1, "env": {}}
    ... )
    True
    """
    return text_id(
        "case",
        f'{{"cp_size":{cp_size},"env":{env},"implementation":{implementation},"pass":"{pass_}","workload_id":"{workload}"}}',
    )


def job_id(*, runner: str, image: str | None, world_size: int, env: Mapping[str, str], apart: str | None) -> str:
    """Id of a job: stable while cases come and go, so that a later run goes on in the same job."""
    content = {"env": dict(env), "image": image, "runner": runner, "world_size": world_size}
    return content_id("job", content if apart is None else content | {"apart": apart})


def collect_id(case_ids: Iterable[str]) -> str:
    """Id of the node that collects these cases, whatever their order."""
    return content_id("collect", sorted(case_ids))
