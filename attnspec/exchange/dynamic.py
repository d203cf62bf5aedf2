"""hybrid_dcp at run time: tokens to the groups of their samples, one ring per group, results back.

Shape suffixes as in attnspec.support.bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from attnspec.exchange.guard import Guard
from attnspec.exchange.kernel_call import Bind, require_explicit
from attnspec.exchange.reshard import Reshard
from attnspec.exchange.ring import Ring, RingForward
from attnspec.exchange.tokens import Slots
from attnspec.exchange.transport import Transport
from attnspec.sharding.dynamic import Dynamic, Section
from attnspec.support import Device, Forward

Grads = tuple[Tensor, Tensor, Tensor]


@dataclass(slots=True, kw_only=True)
class Inputs:
    """A rank's queries, keys and values: where they live, or (without a re-shard) in their slots where they work."""

    q_BTND: Tensor
    k_BSGD: Tensor
    v_BSGD: Tensor


@dataclass(slots=True, kw_only=True)
class Saved:
    """What the forward leaves for the backward: inputs and results per section, where they work."""

    q_parts: list[Tensor]
    kv_parts: list[Tensor]
    forwards: list[RingForward]


@dataclass(slots=True, kw_only=True)
class _Ringed:
    """A section with its ring."""

    section: Section
    ring: Ring

    @property
    def rows(self) -> slice:
        """Its slots of queries among the rank's."""
        return slice(self.section.q_start, self.section.q_start + self.section.ring.queries.num_slots)

    @property
    def keys(self) -> slice:
        """Its slots of keys among the rank's."""
        return slice(self.section.k_start, self.section.k_start + self.section.ring.keys.num_slots)


class DynamicAttention:
    """A BoundKernel over one rank's tokens, in the order of `plan.q_tokens(rank)`."""

    explicit_backward = False
    frees_graph = False

    def __init__(
        self, plan: Dynamic, bind: Bind, transport: Transport, device: Device, *, needs_backward: bool
    ) -> None:
        rank = transport.rank
        self.transport = transport
        num_q, num_k = plan.num_slots(rank)
        self._queries = self._keys = None
        if plan.reshard:
            queries, keys = plan.home
            self._queries = Reshard(plan.q_moves(rank), queries.num_slots, num_q, device.type)
            self._keys = Reshard(plan.k_moves(rank), keys.num_slots, num_k, device.type)
            self._q_slots = Slots(queries.slots(rank), queries.num_slots, device.type)
            self._k_slots = Slots(keys.slots(rank), keys.num_slots, device.type)
        else:
            self._q_slots = Slots(plan.q_slots(rank), num_q, device.type)
            self._k_slots = Slots(plan.k_slots(rank), num_k, device.type)
        self._parts = [
            _Ringed(
                section=one,
                ring=Ring(
                    bind,
                    plan.shape,
                    one.ring.calls(one.place),
                    one.ring.ways,
                    one.place,
                    one.ring.ranks,
                    one.ring.queries.num_slots,
                    one.ring.keys.num_slots,
                ),
            )
            for one in plan.sections(rank)
        ]
        bound = [call.bound for part in self._parts for call in part.ring.calls if call is not None]
        require_explicit(bound, needs_backward=needs_backward)
        self.expected_kernels = bound[0].expected_kernels if bound else ""
        self.backend = bound[0].backend if bound else None
        self.lse_tolerance = max((getattr(one, "lse_tolerance", 0.0) for one in bound), default=0.0)

    def load(self, q_BTND: Tensor, k_BSGD: Tensor, v_BSGD: Tensor) -> Inputs:
        """Tokens in their slots."""
        return Inputs(
            q_BTND=self._q_slots.fill(q_BTND), k_BSGD=self._k_slots.fill(k_BSGD), v_BSGD=self._k_slots.fill(v_BSGD)
        )

    def load_dout(self, dout_BTND: Tensor) -> Tensor:
        """Tokens in their slots."""
        return self._q_slots.fill(dout_BTND)

    def load_forward(self, out_BTND: Tensor, lse_BNT: Tensor) -> Forward:
        """Never called: a strategy goes backward from its own forward."""
        raise AssertionError("a strategy has no backward from a given output")

    def forward(self, inputs: Inputs) -> Forward:
        """Bring tokens, go round each ring, fetch outputs. `saved` is a Saved."""
        guard = Guard()
        q_BTND, k_BSGD, v_BSGD = inputs.q_BTND, inputs.k_BSGD, inputs.v_BSGD
        if self._queries is not None and self._keys is not None:
            queries = self._queries.bring([q_BTND], self.transport, guard)
            keys = self._keys.bring([k_BSGD, v_BSGD], self.transport, guard)
            (q_BTND,), (k_BSGD, v_BSGD) = queries.wait(), keys.wait()
        saved = Saved(q_parts=[], kv_parts=[], forwards=[])
        for part in self._parts:
            q_part = q_BTND[:, part.rows].contiguous()
            kv_part = torch.stack([k_BSGD[:, part.keys], v_BSGD[:, part.keys]])
            saved.q_parts.append(q_part)
            saved.kv_parts.append(kv_part)
            saved.forwards.append(part.ring.forward(q_part, kv_part, self.transport, guard))
        out_BTND = self._joined([one.out_BTND for one in saved.forwards], q_BTND)
        if self._queries is not None:
            (out_BTND,) = self._queries.fetch([out_BTND], self.transport, guard).wait()
        guard.finish()
        return Forward(out=out_BTND, lse=None, saved=saved)

    def backward(self, inputs: Inputs, forward: Forward, dout: Tensor) -> Grads:
        """Bring dO, go round each ring, fetch gradients."""
        guard = Guard()
        saved = cast(Saved, forward.saved)
        if self._queries is not None:
            (dout,) = self._queries.bring([dout], self.transport, guard).wait()
        made = [
            part.ring.backward(q_part, kv_part, held, dout[:, part.rows].contiguous(), self.transport, guard)
            for part, q_part, kv_part, held in zip(
                self._parts, saved.q_parts, saved.kv_parts, saved.forwards, strict=True
            )
        ]
        dq = self._joined([one[0] for one in made], inputs.q_BTND)
        dk, dv = (self._joined([one[which] for one in made], inputs.k_BSGD) for which in (1, 2))
        if self._queries is not None and self._keys is not None:
            queries = self._queries.fetch([dq], self.transport, guard)
            keys = self._keys.fetch([dk, dv], self.transport, guard)
            (dq,), (dk, dv) = queries.wait(), keys.wait()
        guard.finish()
        return dq, dk, dv

    def canonical_out(self, forward: Forward) -> tuple[Tensor, Tensor | None]:
        """out and lse of the rank's tokens; all ranks call this together, since lse comes from where they work."""
        saved = cast(Saved, forward.saved)
        lse_BTN1 = self._joined(
            [one.lse_BNT.transpose(1, 2)[..., None] for one in saved.forwards], forward.out[..., :1]
        )
        if self._queries is not None:
            guard = Guard()
            (lse_BTN1,) = self._queries.fetch([lse_BTN1], self.transport, guard).wait()
            guard.finish()
        lse_BTN = self._q_slots.read(lse_BTN1)[..., 0]
        lse_BNT = lse_BTN.transpose(1, 2).masked_fill(lse_BTN.transpose(1, 2) == torch.inf, -torch.inf)
        return self._q_slots.read(forward.out), lse_BNT

    def canonical_grads(self, grads: Grads) -> Grads:
        """Of the rank's tokens."""
        dq, dk, dv = grads
        return self._q_slots.read(dq), self._k_slots.read(dk), self._k_slots.read(dv)

    def _joined(self, parts: list[Tensor], like: Tensor) -> Tensor:
        """Sections one after another; nothing for a rank without any."""
        if not parts:
            return like.new_empty((like.shape[0], 0, *like.shape[2:]))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
