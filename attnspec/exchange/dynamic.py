"""hybrid_dcp at run time: tokens to the groups of their samples, one ring per group, results back.

Shape suffixes as in attnspec.support.bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from attnspec.exchange.accumulate import lse_type
from attnspec.exchange.bound import BoundStrategy, Grads
from attnspec.exchange.guard import Guard
from attnspec.exchange.kernel_call import Bind, require_explicit
from attnspec.exchange.reshard import Reshard
from attnspec.exchange.ring import Ring, RingForward
from attnspec.exchange.tokens import Slots
from attnspec.exchange.transport import Transport
from attnspec.sharding.dynamic import Dynamic, Section
from attnspec.support import Device, Forward


def bind_dynamic(
    plan: Dynamic, kernel: Bind, transport: Transport, device: Device, *, needs_backward: bool
) -> BoundStrategy:
    """One rank's part of a plan, ready to run. Raises UnsupportedError where the kernel cannot compute a call."""
    rank = transport.rank
    parts = [SectionRing.of(section, kernel, plan) for section in plan.sections(rank)]
    kernels = [one for part in parts for one in part.ring.kernels]
    require_explicit(kernels, needs_backward=needs_backward)
    num_q, num_k = plan.num_slots(rank)
    reshard = None
    q_slots = Slots(plan.q_slots(rank), num_q, device.type)
    k_slots = Slots(plan.k_slots(rank), num_k, device.type)
    if plan.reshard:
        queries, keys = plan.home
        reshard = (
            Reshard(plan.q_moves(rank), queries.num_slots, num_q, device.type),
            Reshard(plan.k_moves(rank), keys.num_slots, num_k, device.type),
        )
        q_slots = Slots(queries.slots(rank), queries.num_slots, device.type)
        k_slots = Slots(keys.slots(rank), keys.num_slots, device.type)
    return BoundStrategy(DynamicGroups(parts, reshard), kernels, q_slots, k_slots, transport)


@dataclass(slots=True, kw_only=True)
class SectionRing:
    """A section with its ring, and which of the rank's slots are its own."""

    ring: Ring
    rows: slice
    keys: slice

    @classmethod
    def of(cls, section: Section, kernel: Bind, plan: Dynamic) -> SectionRing:
        """Bind the section's calls."""
        group, place = section.ring, section.place
        num_q, num_k = group.queries.num_slots, group.keys.num_slots
        return cls(
            ring=Ring(kernel, plan.shape, group.calls(place), group.ways, place, group.ranks, num_q, num_k),
            rows=slice(section.q_start, section.q_start + num_q),
            keys=slice(section.k_start, section.k_start + num_k),
        )


@dataclass(slots=True, kw_only=True)
class Saved:
    """What the forward of one section leaves for its backward."""

    q_BTND: Tensor
    kv: Tensor
    forward: RingForward


class DynamicGroups:
    """A Work. reshard: how queries and keys are brought to work, None where they live there."""

    def __init__(self, parts: list[SectionRing], reshard: tuple[Reshard, Reshard] | None) -> None:
        self._parts, self._reshard = parts, reshard

    def forward(self, q_BTND: Tensor, kv: Tensor, transport: Transport, guard: Guard) -> tuple[Tensor, list[Saved]]:
        """Bring tokens, go round each ring, fetch outputs."""
        k_BSGD, v_BSGD = kv
        if self._reshard is not None:
            queries = self._reshard[0].bring([q_BTND], transport, guard)
            keys = self._reshard[1].bring([k_BSGD, v_BSGD], transport, guard)
            (q_BTND,), (k_BSGD, v_BSGD) = queries.wait(), keys.wait()
        saved = []
        for part in self._parts:
            q_part = guard.contiguous(q_BTND[:, part.rows])
            kv_part = guard.room(kv, (2, *k_BSGD[:, part.keys].shape))
            guard.run(_stack, k_BSGD[:, part.keys], v_BSGD[:, part.keys], kv_part)
            made = part.ring.forward(q_part, kv_part, transport, guard)
            saved.append(Saved(q_BTND=q_part, kv=kv_part, forward=made))
        out_BTND = _joined([one.forward.out_BTND for one in saved], q_BTND, guard)
        if self._reshard is not None:
            (out_BTND,) = self._reshard[0].fetch([out_BTND], transport, guard).wait()
        return out_BTND, saved

    def backward(
        self, q_BTND: Tensor, kv: Tensor, forward: Forward, dout_BTND: Tensor, transport: Transport, guard: Guard
    ) -> Grads:
        """Bring dO, go round each ring, fetch gradients."""
        if self._reshard is not None:
            (dout_BTND,) = self._reshard[0].bring([dout_BTND], transport, guard).wait()
        made = [
            part.ring.backward(
                held.q_BTND, held.kv, held.forward, guard.contiguous(dout_BTND[:, part.rows]), transport, guard
            )
            for part, held in zip(self._parts, cast(list[Saved], forward.saved), strict=True)
        ]
        dq = _joined([one[0] for one in made], q_BTND, guard)
        dk, dv = (_joined([one[which] for one in made], kv[0], guard) for which in (1, 2))
        if self._reshard is not None:
            queries = self._reshard[0].fetch([dq], transport, guard)
            keys = self._reshard[1].fetch([dk, dv], transport, guard)
            (dq,), (dk, dv) = queries.wait(), keys.wait()
        return dq, dk, dv

    def lse(self, forward: Forward, transport: Transport) -> Tensor | None:
        """From where the rank's queries worked."""
        guard, out_BTND = Guard(), forward.out
        like = guard.room(out_BTND, (*out_BTND.shape[:3], 1), lse_type(out_BTND.dtype))
        held = (one.forward.lse_BNT.transpose(1, 2)[..., None] for one in cast(list[Saved], forward.saved))
        lse_BTN1 = _joined([guard.copied(one, like.dtype) for one in held], like, guard)
        if self._reshard is not None:
            (lse_BTN1,) = self._reshard[0].fetch([lse_BTN1], transport, guard).wait()
        guard.finish()
        return lse_BTN1[..., 0].transpose(1, 2)


def _stack(k_BSGD: Tensor, v_BSGD: Tensor, kv: Tensor) -> None:
    torch.stack([k_BSGD, v_BSGD], out=kv)


def _joined(parts: list[Tensor], like: Tensor, guard: Guard) -> Tensor:
    """Sections one after another; nothing for a rank without any."""
    if len(parts) == 1:
        return parts[0]
    whole = guard.room(like, (like.shape[0], sum(one.shape[1] for one in parts), *like.shape[2:]))
    if parts:
        guard.run(_concatenate, parts, whole)
    return whole


def _concatenate(parts: list[Tensor], whole: Tensor) -> None:
    torch.cat(parts, dim=1, out=whole)
