"""`--rehearse`: a spec shrunk so that its whole pipeline runs on the CPU; same masks and strategies. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from attnspec import plugins
from attnspec.errors import UnsupportedError
from attnspec.ids import canonical_json
from attnspec.launch.runner_profile import Runner
from attnspec.launch.runner_sections import ExpectedDevice
from attnspec.shape import Shape
from attnspec.spec import Spec
from attnspec.spec.implementations import STRATEGY_KEYS, runnable_kernels

CP_SIZES = (2, 4)
SEQLENS = (256, 512)
SEQLENS_PER_RANK = (128, 256)
KERNEL = "reference"
MIN_HEADS_KV = max(CP_SIZES)
MAX_HEAD_DIM = 64
NUM_PACKS = 2
MEASURE = {"min_iters": 3, "max_seconds": 0.2}


def rehearsal(spec: Spec) -> Spec:
    """The shrunk spec: at most two of every size, few heads and packs, short budgets, float32 (as CPUs like it).

    Kernels inside strategies that do not run on the CPU become `reference` where the strategy takes it; elsewhere they
    stay, and their cases end as unsupported. What `exclude` leaves out is in again, for small sizes fit.
    """
    content = spec.canonical()
    shape = content["shape"]
    factor = math.gcd(shape["num_heads_q"], shape["num_heads_kv"])
    while factor > 1 and (shape["num_heads_kv"] % factor or shape["num_heads_kv"] // factor < MIN_HEADS_KV):
        factor -= 1
    shrunk = {
        **shape,
        "num_heads_q": shape["num_heads_q"] // factor,
        "num_heads_kv": shape["num_heads_kv"] // factor,
        "head_dim": min(shape["head_dim"], MAX_HEAD_DIM),
        "dtype": "float32",
    }
    return Spec.model_validate(
        {
            **content,
            "runner": "local",
            "shape": shrunk,
            "data": {**content["data"], "num_packs": NUM_PACKS},
            "sweeps": [_sweep(sweep, shrunk) for sweep in content["sweeps"]],
            "measure": {**content["measure"], **MEASURE},
        }
    )


def rehearsal_runner(local: Runner) -> Runner:
    """The local runner on the CPU, whatever devices there are."""
    return local.model_copy(update={"device": ExpectedDevice(type="cpu")})


def _sweep(sweep: Mapping[str, Any], shape: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in sweep.items() if key != "exclude"}
    if sweep["level"] == "kernel":
        return {**kept, "seqlen": _fewer(sweep["seqlen"], SEQLENS)}
    cp_sizes = _fewer(sweep["cp_size"], CP_SIZES)
    strategies = (_strategy(item, Shape(**shape), cp_sizes) for item in sweep["strategies"])
    return {
        **kept,
        "cp_size": cp_sizes,
        "seqlen_per_rank": _fewer(sweep["seqlen_per_rank"], SEQLENS_PER_RANK),
        "strategies": list({canonical_json(item): item for item in strategies}.values()),
    }


def _fewer(values: Sequence[int], small: Sequence[int]) -> list[int]:
    return list(small[: len(set(values))])


def _strategy(item: str | Mapping[str, Any], shape: Shape, cp_sizes: Sequence[int]) -> str | dict[str, Any]:
    if isinstance(item, str):
        return item
    ((name, settings),) = item.items()
    strategy = plugins.load("strategies", name)
    own = {key: value for key, value in settings.items() if key not in STRATEGY_KEYS}
    shrunk = {**settings, **_fitting(strategy, own, shape, cp_sizes)}
    kernel = settings.get("kernel")
    kernel_name = next(iter(kernel)) if isinstance(kernel, Mapping) else kernel
    taken = runnable_kernels(strategy)
    replaceable = kernel_name is not None and (taken is None or KERNEL in taken)
    if replaceable and "cpu" not in plugins.load("kernels", kernel_name).SUPPORT.devices:
        shrunk = {key: value for key, value in shrunk.items() if key not in ("kernel", "backend", "provider")}
        shrunk["kernel"] = KERNEL
    return {name: shrunk}


def _fitting(strategy: ModuleType, own: Mapping[str, Any], shape: Shape, cp_sizes: Sequence[int]) -> Mapping[str, Any]:
    """A strategy's parameters; numbers as they are, or 2 or 1, whichever it takes first for these ranks."""
    choices = ([value, *(n for n in (2, 1) if n < value)] if type(value) is int else [value] for value in own.values())
    for values in itertools.product(*choices):
        params = dict(zip(own, values, strict=True))
        try:
            for cp_size in cp_sizes:
                strategy.check(plugins.make_params(strategy, params), shape, cp_size)
        except UnsupportedError:
            continue
        return params
    return own
