"""ulysses, ring_p2p, usp and loongtrain at run time: an all-to-all of heads around a ring, or one of the two alone.

Stages of heads overlap: while one is computed the next comes in and the one before goes back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from attnspec.exchange.accumulate import lse_type
from attnspec.exchange.alone import Alone, AloneForward
from attnspec.exchange.guard import Guard
from attnspec.exchange.head_exchange import HeadExchange, Spread
from attnspec.exchange.kernel_call import Bind, require_explicit
from attnspec.exchange.ring import Ring, RingForward
from attnspec.exchange.tokens import Slots
from attnspec.exchange.transport import Transport
from attnspec.sharding.head_ring import HeadRing
from attnspec.support import BoundKernel, Device, Forward

Grads = tuple[Tensor, Tensor, Tensor]


@dataclass(slots=True, kw_only=True)
class Inputs:
    """A rank's queries in their slots, and keys and values stacked: (2, B, L, G, D)."""

    q_BLND: Tensor
    kv: Tensor


@dataclass(slots=True, kw_only=True)
class Stage:
    """What the forward of one stage of heads leaves for its backward: its inputs over all slots of the group."""

    q_BTHD: Tensor
    kv: Tensor
    forward: RingForward | AloneForward


class HeadRingAttention:
    """A BoundKernel over one rank's tokens, in the order of `plan.q_tokens(rank)`."""

    explicit_backward = False

    def __init__(
        self, plan: HeadRing, bind: Bind, transport: Transport, device: Device, *, needs_backward: bool
    ) -> None:
        head, place = plan.ranks.place(transport.rank)
        group = plan.ranks.head_group(place)
        self.transport = transport
        self._stages, self._num_heads_q = plan.split.stages, plan.shape.num_heads_q
        self._exchange = HeadExchange(plan.split, group, head) if len(group) > 1 else None
        self._q_slots = Slots(plan.queries.slots(transport.rank), plan.queries.num_slots, device.type)
        self._k_slots = Slots(plan.keys.slots(transport.rank), plan.keys.num_slots, device.type)
        self._inner: Ring | Alone
        bound: list[BoundKernel]
        if plan.ring_degree == 1:
            self._inner = Alone(bind(plan.split.local_shape, plan.whole()))
            bound = [self._inner.bound]
        else:
            self._inner = Ring(
                bind,
                plan.split.local_shape,
                plan.calls(transport.rank),
                plan.ways,
                place,
                plan.ranks.ring(head),
                plan.q_ring.num_slots,
                plan.k_ring.num_slots,
            )
            bound = [call.bound for call in self._inner.calls if call is not None]
            require_explicit(bound, needs_backward=needs_backward)
        self.frees_graph = plan.ring_degree == 1 and bound[0].frees_graph
        self.expected_kernels = bound[0].expected_kernels if bound else ""
        self.backend = bound[0].backend if bound else None
        self.lse_tolerance = max((getattr(one, "lse_tolerance", 0.0) for one in bound), default=0.0)

    def load(self, q_BTND: Tensor, k_BSGD: Tensor, v_BSGD: Tensor) -> Inputs:
        """Tokens in their slots, K and V in one tensor."""
        kv = torch.stack([self._k_slots.fill(k_BSGD), self._k_slots.fill(v_BSGD)])
        return Inputs(q_BLND=self._q_slots.fill(q_BTND), kv=kv)

    def load_dout(self, dout_BTND: Tensor) -> Tensor:
        """Tokens in their slots."""
        return self._q_slots.fill(dout_BTND)

    def load_forward(self, out_BTND: Tensor, lse_BNT: Tensor) -> Forward:
        """Never called: a strategy goes backward from its own forward."""
        raise AssertionError("a strategy has no backward from a given output")

    def forward(self, inputs: Inputs) -> Forward:
        """All stages. `saved` holds a list of Stage."""
        guard = Guard()
        if self._exchange is None:
            made = self._inner.forward(inputs.q_BLND, inputs.kv, self.transport, guard)
            guard.finish()
            stage = Stage(q_BTHD=inputs.q_BLND, kv=inputs.kv, forward=made)
            return Forward(out=made.out_BTND, lse=None, saved=[stage])
        exchange = self._exchange
        out_BLND = guard.room(inputs.q_BLND, inputs.q_BLND.shape)
        saved, coming_back = [], []
        coming = exchange.spread(0, inputs.q_BLND, inputs.kv, self.transport, guard)
        for number in range(self._stages):
            q_BTHD, kv = coming.wait()
            assert kv is not None
            if number + 1 < self._stages:
                coming = exchange.spread(number + 1, inputs.q_BLND, inputs.kv, self.transport, guard)
            made = self._inner.forward(q_BTHD, kv, self.transport, guard)
            saved.append(Stage(q_BTHD=q_BTHD, kv=kv, forward=made))
            coming_back.append(exchange.collect(number, [made.out_BTND], self.transport, guard))
        for one in coming_back:
            one.into([out_BLND], guard)
        guard.finish()
        return Forward(out=out_BLND, lse=None, saved=saved)

    def backward(self, inputs: Inputs, forward: Forward, dout: Tensor) -> Grads:
        """All stages, in the same order."""
        guard = Guard()
        saved = cast(list[Stage], forward.saved)
        if self._exchange is None:
            (stage,) = saved
            dq, dk, dv = self._differentiate(stage, dout, guard)
            guard.finish()
            return dq, dk, dv
        exchange = self._exchange
        dq_BLND = guard.room(inputs.q_BLND, inputs.q_BLND.shape)
        dkv = guard.room(inputs.kv, inputs.kv.shape)
        coming_back = []
        coming: Spread = exchange.spread(0, dout, None, self.transport, guard)
        for number, stage in enumerate(saved):
            dout_BTHD, _ = coming.wait()
            if number + 1 < self._stages:
                coming = exchange.spread(number + 1, dout, None, self.transport, guard)
            grads = self._differentiate(stage, dout_BTHD, guard)
            coming_back.append(exchange.collect(number, grads, self.transport, guard))
        for one in coming_back:
            one.into([dq_BLND, dkv[0], dkv[1]], guard)
        guard.finish()
        return dq_BLND, dkv[0], dkv[1]

    def canonical_out(self, forward: Forward) -> tuple[Tensor, Tensor | None]:
        """out and lse of the rank's tokens; all ranks call this together, since lse comes from those of its heads."""
        saved = cast(list[Stage], forward.saved)
        parts = [self._lse(stage) for stage in saved]
        held = [one for one in parts if one is not None]
        lse_BNT = None
        if len(held) == len(parts):
            lse_BNT = held[0] if self._exchange is None else self._collected(self._exchange, held)
            lse_BNT = self._q_slots.read(lse_BNT, dim=2)
            lse_BNT = lse_BNT.masked_fill(lse_BNT == torch.inf, -torch.inf)
        return self._q_slots.read(forward.out), lse_BNT

    def canonical_grads(self, grads: Grads) -> Grads:
        """Of the rank's tokens."""
        dq, dk, dv = grads
        return self._q_slots.read(dq), self._k_slots.read(dk), self._k_slots.read(dv)

    def _differentiate(self, stage: Stage, dout_BTHD: Tensor, guard: Guard) -> Grads:
        inner, forward = self._inner, stage.forward
        if isinstance(inner, Ring):
            assert isinstance(forward, RingForward)
            return inner.backward(stage.q_BTHD, stage.kv, forward, dout_BTHD, self.transport, guard)
        assert isinstance(forward, AloneForward)
        return inner.backward(stage.q_BTHD, stage.kv, forward, dout_BTHD, self.transport, guard)

    def _lse(self, stage: Stage) -> Tensor | None:
        if isinstance(stage.forward, RingForward):
            return stage.forward.lse_BNT
        assert isinstance(self._inner, Alone)
        lse_BNT = self._inner.lse(stage.forward)
        return None if lse_BNT is None else lse_BNT.to(lse_type(stage.q_BTHD.dtype))

    def _collected(self, exchange: HeadExchange, parts: list[Tensor]) -> Tensor:
        """lse of all heads of the rank's slots from all stages."""
        guard = Guard()
        batch, _, num_slots = parts[0].shape
        share = num_slots // exchange.size
        lse_BLN1 = parts[0].new_empty((batch, share, self._num_heads_q, 1))
        for number, part in enumerate(parts):
            exchange.collect(number, [part.transpose(1, 2)[..., None]], self.transport, guard).into([lse_BLN1], guard)
        guard.finish()
        return lse_BLN1[..., 0].transpose(1, 2)
