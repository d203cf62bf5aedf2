"""Whether a kernel takes the shape that a strategy gives it on a rank, whatever the mask. Pure.

What a rank computes of a mask is known to the worker alone, so a no here must hold for any part of any mask: the kernel
refuses one slice of every type over a short square in the same words, and on a ground that is none of the slices.
"""

from __future__ import annotations

from typing import Any

from attnspec.errors import UnsupportedError
from attnspec.plan.asked import Asked
from attnspec.plan.devices import joined, possible_devices
from attnspec.plan.model import Unsupported
from attnspec.shape import Shape
from attnspec.slices import AttnSlices, SliceType
from attnspec.support import Device, Problem

_GROUNDS = frozenset({"device", "dtype", "head_dim", "heads", "backend", "direction"})
_SIDE = 128
_TOKENS_PER_RANK = 4


def refused_part(
    asked: Asked, shape: Shape, *, device: Device | None, needs_backward: bool, cp_size: int
) -> Unsupported | None:
    """Why the kernel of a strategy takes no part of any mask; None where it may take some, or nobody can tell.

    device: None where nobody has looked at one.
    """
    part = _part_shape(asked, shape, cp_size)
    if part is None:
        return None
    found: list[Unsupported] = []
    devices = possible_devices(device)
    for where in devices:
        told = {_answer(asked, part, kind, needs_backward, where) for kind in SliceType}
        said = told.pop()
        if told or said is None or said.reason_code not in _GROUNDS:
            return None
        found.append(said)
    return joined(devices, found).why


def _part_shape(asked: Asked, shape: Shape, cp_size: int) -> Shape | None:
    """The shape of the kernel's calls; None where a library makes them, or the strategy's plan does not tell."""
    strategy: Any = asked.strategy
    if hasattr(strategy, "KERNEL_PROVIDER") or not hasattr(strategy, "shard"):
        return None
    seqlen = _TOKENS_PER_RANK * cp_size
    slices = AttnSlices.from_rows([(0, seqlen, 0, seqlen, SliceType.FULL)], seqlen_q=seqlen, seqlen_k=seqlen)
    try:
        plan = strategy.shard(asked.strategy_params, slices, [seqlen], shape, cp_size)
    except UnsupportedError:  # of this mask, which says nothing of others
        return None
    return getattr(plan, "kernel_shape", None)


def _answer(asked: Asked, shape: Shape, kind: SliceType, needs_backward: bool, device: Device) -> Unsupported | None:
    slices = AttnSlices.from_rows([(0, _SIDE, 0, _SIDE, kind)], seqlen_q=_SIDE, seqlen_k=_SIDE)
    problem = Problem(shape=shape, slices=slices, needs_backward=needs_backward, device=device)
    try:
        asked.kernel.SUPPORT.check(problem)
        asked.kernel.lower(problem, asked.kernel_params, asked.implementation.provider)
    except UnsupportedError as error:
        return Unsupported(reason_code=error.reason_code, reason=error.reason)
    return None
