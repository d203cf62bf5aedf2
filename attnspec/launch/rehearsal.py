"""`--rehearse`: a spec shrunk so that its whole pipeline runs on the CPU; same masks and strategies. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from attnspec import plugins
from attnspec.launch.runner_profile import ExpectedDevice, Runner
from attnspec.spec import Spec

CP_SIZES = (2, 4)
SEQLENS = (256, 512)
SEQLENS_PER_RANK = (128, 256)
KERNEL = "reference"
MIN_HEADS_KV = max(CP_SIZES)
MAX_HEAD_DIM = 64
NUM_PACKS = 2
MEASURE = {"min_iters": 3, "max_seconds": 0.2}


def rehearsal(spec: Spec) -> Spec:
    """The shrunk spec: at most two of every size, few heads and packs, short budgets.

    Kernels inside strategies that do not run on the CPU become `reference`; at the kernel level they stay, and their
    cases end as unsupported. What `exclude` leaves out is in again, for small sizes fit.
    """
    content = spec.canonical()
    shape = content["shape"]
    factor = math.gcd(shape["num_heads_q"], shape["num_heads_kv"])
    while factor > 1 and (shape["num_heads_kv"] % factor or shape["num_heads_kv"] // factor < MIN_HEADS_KV):
        factor -= 1
    return Spec.model_validate(
        {
            **content,
            "runner": "local",
            "shape": {
                **shape,
                "num_heads_q": shape["num_heads_q"] // factor,
                "num_heads_kv": shape["num_heads_kv"] // factor,
                "head_dim": min(shape["head_dim"], MAX_HEAD_DIM),
            },
            "data": {**content["data"], "num_packs": NUM_PACKS},
            "sweeps": [_sweep(sweep) for sweep in content["sweeps"]],
            "measure": {**content["measure"], **MEASURE},
        }
    )


def rehearsal_runner(local: Runner) -> Runner:
    """The local runner on the CPU, whatever devices there are."""
    return local.model_copy(update={"device": ExpectedDevice(type="cpu")})


def _sweep(sweep: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in sweep.items() if key != "exclude"}
    if sweep["level"] == "kernel":
        return {**kept, "seqlen": _fewer(sweep["seqlen"], SEQLENS)}
    return {
        **kept,
        "cp_size": _fewer(sweep["cp_size"], CP_SIZES),
        "seqlen_per_rank": _fewer(sweep["seqlen_per_rank"], SEQLENS_PER_RANK),
        "strategies": [_strategy(item) for item in sweep["strategies"]],
    }


def _fewer(values: Sequence[int], small: Sequence[int]) -> list[int]:
    return list(small[: len(set(values))])


def _strategy(item: str | Mapping[str, Any]) -> str | dict[str, Any]:
    if isinstance(item, str):
        return item
    ((name, settings),) = item.items()
    shrunk = {
        key: min(value, CP_SIZES[0]) if key.endswith("_degree") and isinstance(value, int) else value
        for key, value in settings.items()
    }
    kernel = settings.get("kernel")
    kernel_name = next(iter(kernel)) if isinstance(kernel, Mapping) else kernel
    if kernel_name is not None and "cpu" not in plugins.load("kernels", kernel_name).SUPPORT.devices:
        shrunk = {key: value for key, value in shrunk.items() if key not in ("kernel", "backend", "provider")}
        shrunk["kernel"] = KERNEL
    return {name: shrunk}
