"""`--rehearse`: a spec shrunk so that its whole pipeline runs on the CPU; same masks and strategies. Pure."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from types import ModuleType
from typing import Any

from attnspec import plugins
from attnspec.errors import UnsupportedError
from attnspec.ids import canonical_json
from attnspec.launch.runner_profile import Runner
from attnspec.launch.runner_sections import ExpectedDevice
from attnspec.masks import make_slices
from attnspec.params import info
from attnspec.plan.asked import Asked
from attnspec.plan.parts import refused_part
from attnspec.shape import Shape
from attnspec.slices import clip
from attnspec.spec import Spec
from attnspec.spec.implementations import STRATEGY_KEYS, parse_strategies, runnable_kernels
from attnspec.support import Device

CP_SIZES = (2, 4, 3)
"""Of ranks; two of them at most, the first that a strategy takes."""
MAX_SIZES = 2
SEQLENS = (256, 512)
SEQLENS_PER_RANK = (128, 256)
KERNEL = "reference"
MIN_HEADS_KV = max(CP_SIZES)
MAX_HEAD_DIM = 64
NUM_PACKS = 2
MEASURE = {"min_iters": 3, "max_seconds": 0.2}


def rehearsal(spec: Spec) -> Spec:
    """The shrunk spec: at most two of every size, few heads and packs, short budgets, float32 (as CPUs like it).

    Each strategy gets numbers of ranks that it takes for these heads, so a sweep may become several. Token counts of
    masks and strategies shrink with the lengths. Kernels inside strategies that do not run on the CPU, or whose
    backend does not, become `reference` where the strategy takes it; elsewhere they stay, and their cases end as
    unsupported. What `exclude` leaves out is in again, for small sizes fit.
    """
    content = spec.canonical()
    shape = content["shape"]
    factor = _head_factor(shape["num_heads_q"], shape["num_heads_kv"])
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
            "sweeps": [made for sweep in content["sweeps"] for made in _sweeps(sweep, Shape(**shrunk))],
            "measure": {**content["measure"], **MEASURE},
        }
    )


def is_rehearsal(provenance: Mapping[str, Any]) -> bool:
    """Whether a run was one, as its provenance tells.

    >>> is_rehearsal({"settings": {"rehearse": True}}), is_rehearsal({"settings": {}}), is_rehearsal({"settings": 3})
    (True, False, False)
    """
    settings = provenance.get("settings")
    return isinstance(settings, Mapping) and settings.get("rehearse") is True


def _head_factor(num_heads_q: int, num_heads_kv: int) -> int:
    """By how much heads are fewer: whoever split them among 2 to 4 ranks still can.

    >>> _head_factor(64, 8), _head_factor(10, 10), _head_factor(12, 12), _head_factor(7, 7)
    (2, 1, 1, 1)
    """

    def split(num_heads: int, factor: int) -> bool:
        return all((num_heads // factor) % ranks == 0 for ranks in CP_SIZES if num_heads % ranks == 0)

    common = math.gcd(num_heads_q, num_heads_kv)
    factors = (one for one in range(common, 0, -1) if common % one == 0 and num_heads_kv // one >= MIN_HEADS_KV)
    return next((one for one in factors if split(num_heads_q, one) and split(num_heads_kv, one)), 1)


def rehearsal_runner(local: Runner) -> Runner:
    """The local runner on the CPU, whatever devices there are."""
    return local.model_copy(update={"device": ExpectedDevice(type="cpu")})


def _sweeps(sweep: Mapping[str, Any], shape: Shape) -> Iterator[dict[str, Any]]:
    """One shrunk sweep, or several where strategies do not take the same numbers of ranks."""
    kept = {key: value for key, value in sweep.items() if key != "exclude"}
    if sweep["level"] == "kernel":
        seqlens = _fewer(sweep["seqlen"], SEQLENS)
        yield {**kept, "seqlen": seqlens, "masks": _masks(sweep["masks"], sweep["seqlen"], seqlens)}
        return
    shares = _fewer(sweep["seqlen_per_rank"], SEQLENS_PER_RANK)
    given = [cp_size * share for cp_size in sweep["cp_size"] for share in sweep["seqlen_per_rank"]]
    num_sizes = min(len(set(sweep["cp_size"])), MAX_SIZES)
    groups: dict[tuple[int, ...], dict[str, Any]] = {}
    for item in sweep["strategies"]:
        ((name, settings),) = item.items()
        strategy = plugins.load("strategies", name)
        own, cp_sizes = _fitting(strategy, settings, shape, num_sizes)
        own = _scaled(strategy, own, Fraction(max(cp_sizes) * max(shares), max(given)))
        made = _on_the_cpu(
            strategy,
            {name: {**settings, **own}},
            shape,
            cp_sizes[0],
            needs_backward=any(pass_ != "fwd" for pass_ in sweep["passes"]),
        )
        groups.setdefault(cp_sizes, {})[canonical_json(made)] = made
    for cp_sizes, strategies in groups.items():
        yield {
            **kept,
            "cp_size": list(cp_sizes),
            "seqlen_per_rank": shares,
            "masks": _masks(
                sweep["masks"], sweep["seqlen_per_rank"], shares, num_ranks=(min(sweep["cp_size"]), min(CP_SIZES))
            ),
            "strategies": list(strategies.values()),
        }


def _fewer(values: Sequence[int], small: Sequence[int]) -> list[int]:
    return list(small[: len(set(values))])


def _masks(
    items: Sequence[str | Mapping[str, Any]],
    given: Sequence[int],
    small: Sequence[int],
    num_ranks: tuple[int, int] = (1, 1),
) -> list[Any]:
    """Masks whose token counts shrink with the lengths (of a rank); given slices are cut to the first tokens.

    num_ranks: the fewest, as given and shrunk.
    """
    held: dict[str, Any] = {}
    for item in items:
        made: Any = item
        if isinstance(item, Mapping):
            ((name, settings),) = item.items()
            mask = plugins.load("masks", name)
            shrunk = _scaled(mask, settings, Fraction(max(small), max(given)))
            if "slices" in settings:
                shrunk = _cut(mask, settings, shrunk, min(given) * num_ranks[0], min(small) * num_ranks[1])
            made = {name: shrunk}
        held[canonical_json(made)] = made
    return list(held.values())


def _cut(
    mask: ModuleType, given: Mapping[str, Any], shrunk: Mapping[str, Any], seqlen: int, small: int
) -> dict[str, Any]:
    """The slices among the first `small` queries and as many keys, or those that `shrunk` says."""
    params = plugins.make_params(mask, given)
    kept = clip(make_slices(mask, params, [seqlen], seqlen), 0, small, 0, shrunk.get("seqlen_k") or small)
    return {**shrunk, "slices": [[*row[:4], row[4].name.lower()] for row in kept.rows()]}


def _scaled(plugin: ModuleType, values: Mapping[str, Any], factor: Fraction) -> dict[str, Any]:
    """Settings with token counts shrunk by a factor, as far as the plug-in takes them."""
    made = dict(values)
    for field in dataclasses.fields(plugin.Params):
        told, value = info(field), values.get(field.name)
        if told.tokens and type(value) is int and factor < 1:
            made[field.name] = max(int(value * factor), min(value, int(told.ge or 0)))
    return made


def _on_the_cpu(
    strategy: ModuleType, item: Mapping[str, Any], shape: Shape, cp_size: int, *, needs_backward: bool
) -> Mapping[str, Any]:
    """The same strategy, with `reference` where it takes that and its own kernel does not run on the CPU."""
    taken = runnable_kernels(strategy)
    if taken is not None and KERNEL not in taken:
        return item
    (asked,) = (Asked.load(one.implementation) for one in parse_strategies([item]))
    cpu = Device(type="cpu")
    runs = cpu.type in asked.kernel.SUPPORT.devices
    if runs and refused_part(asked, shape, device=cpu, needs_backward=needs_backward, cp_size=cp_size) is None:
        return item
    ((name, settings),) = item.items()
    beside = {key: value for key, value in settings.items() if key not in ("backend", "provider")}
    return {name: {**beside, "kernel": KERNEL}}


def _fitting(
    strategy: ModuleType, settings: Mapping[str, Any], shape: Shape, num_sizes: int
) -> tuple[dict[str, Any], tuple[int, ...]]:
    """A strategy's parameters and the numbers of ranks, at most `num_sizes`, that it takes with them.

    Numbers other than token counts stay, or become 2 or 1, whichever is taken first by most numbers of ranks. Where
    none is taken everything stays, and its cases tell why.
    """
    own = {key: value for key, value in settings.items() if key not in STRATEGY_KEYS}
    tokens = {field.name for field in dataclasses.fields(strategy.Params) if info(field).tokens}
    choices = (
        [value, *(n for n in (2, 1) if n < value)] if type(value) is int and name not in tokens else [value]
        for name, value in own.items()
    )
    best: tuple[dict[str, Any], tuple[int, ...]] = own, ()
    for values in itertools.product(*choices):
        params = dict(zip(own, values, strict=True))
        taken = tuple(size for size in CP_SIZES if _takes(strategy, params, shape, size))[:num_sizes]
        if len(taken) > len(best[1]):
            best = params, tuple(sorted(taken))
    return best if best[1] else (own, tuple(sorted(CP_SIZES[:num_sizes])))


def _takes(strategy: ModuleType, params: Mapping[str, Any], shape: Shape, cp_size: int) -> bool:
    try:
        strategy.check(plugins.make_params(strategy, params), shape, cp_size)
    except UnsupportedError:
        return False
    return True
