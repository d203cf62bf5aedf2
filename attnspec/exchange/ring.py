"""Attention round a ring: keys and values travel while every place computes, gradients of them travel back.

One message holds K and V of a place, (2, B, S, G, D). Steps and transfers are those of `attnspec.sharding.routes`: at
the beginning of a step a place waits for the keys it needs, starts all transfers of that step, and computes meanwhile.
Where the kernel gains by it, forward steps alternate between two streams (as TransformerEngine's do), and a step's
output is merged while the next one computes. Backwards the steps count down. Partial outputs are merged by log-sum-exp;
each backward step uses the merged output and lse (Liu et al. 2023; Dao et al. 2022, appendix B.2). Shape suffixes as in
attnspec.support.bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from attnspec.exchange.accumulate import Outputs, Sum, wide
from attnspec.exchange.guard import Guard
from attnspec.exchange.kernel_call import Bind, KernelCall
from attnspec.exchange.lanes import Lanes, overlap, use
from attnspec.exchange.mailbox import Mailbox, Pair, errands_of
from attnspec.exchange.transport import Transport
from attnspec.shape import Shape
from attnspec.sharding.calls import Call
from attnspec.sharding.routes import Routes
from attnspec.support import BoundKernel

Grads = tuple[Tensor, Tensor, Tensor]


@dataclass(slots=True, kw_only=True)
class RingForward:
    """Merged out and lse_BNT, and by step the keys that nobody further on had: the backward starts from them."""

    out_BTND: Tensor
    lse_BNT: Tensor
    kept: dict[int, Tensor] = field(default_factory=dict)


class Ring:
    """One place of a ring. calls: what it computes at each step. ranks: the job's rank of each place."""

    def __init__(
        self,
        bind: Bind,
        shape: Shape,
        calls: Sequence[Call | None],
        ways: Routes,
        place: int,
        ranks: Sequence[int],
        num_slots_q: int,
        num_slots_k: int,
    ) -> None:
        self._ways, self._place, self._ranks = ways, place, ranks
        self.calls = [
            None if call is None else KernelCall.of(bind, shape, call, num_slots_q, num_slots_k) for call in calls
        ]
        self._many = sum(call is not None for call in calls) > 2
        self._overlapped = overlap(self.kernels, "fwd")
        self._forward = errands_of(place, ways.forward, (), len(calls))
        self._backward = errands_of(place, ways.backward_keys, ways.backward_grads, len(calls))

    @property
    def kernels(self) -> list[BoundKernel]:
        """Those of its calls."""
        return [call.bound for call in self.calls if call is not None]

    def forward(self, q_BTND: Tensor, kv: Tensor, transport: Transport, guard: Guard) -> RingForward:
        """All steps; right unless `guard` holds an error."""
        outputs = Outputs(q_BTND, many=self._many)
        mail = Mailbox(self._place, self._ranks, transport, guard, kv, wide(kv.dtype))
        kept: dict[int, Tensor] = {}
        computed: Partial | None = None
        with Lanes(q_BTND, overlapped=self._overlapped) as lanes:
            for step, call in enumerate(self.calls):
                part: Partial | None = None
                with lanes.on(step):
                    mail.need("keys", step)
                    mail.start(self._forward[step])
                    if call is not None:
                        use(mail.keys[step])
                        part = guard.run(_compute, step, call, q_BTND, mail.keys[step])
                if self._ways.kept[self._place, step]:
                    kept[step] = mail.keys[step]
                if step:
                    mail.keys.pop(step, None)
                _add(outputs, computed, lanes, guard)
                computed = part
            _add(outputs, computed, lanes, guard)
        mail.finish()
        made = guard.run(outputs.result)
        out_BTND, lse_BNT = (q_BTND, q_BTND[..., 0].transpose(1, 2)) if made is None else made
        return RingForward(out_BTND=out_BTND, lse_BNT=lse_BNT, kept=kept)

    def backward(
        self, q_BTND: Tensor, kv: Tensor, forward: RingForward, dout_BTND: Tensor, transport: Transport, guard: Guard
    ) -> Grads:
        """All steps, counting down; right unless `guard` holds an error."""
        dq = Sum(q_BTND, many=self._many)
        mail = Mailbox(self._place, self._ranks, transport, guard, kv, wide(kv.dtype))
        mail.keys.update(forward.kept)
        for step in reversed(range(len(self.calls))):
            mail.need("keys", step)
            mail.start(self._backward[step])
            call, part = self.calls[step], None
            if call is not None:
                use(mail.keys[step])  # kept by the forward, maybe on its other lane
                part = guard.run(_differentiate, call, q_BTND, mail.keys[step], forward, dout_BTND, dq)
            if step:
                mail.keys.pop(step, None)
            mail.need("grads", step)
            if self._ways.held[self._place, step]:
                mail.totals[step] = self._total(step, part, mail.incoming(step), kv, guard)
        mail.finish()
        made = guard.run(dq.result)
        return (q_BTND if made is None else made), *mail.totals[0]

    def _total(self, step: int, part: KeyGrads | None, incoming: list[Pair], kv: Tensor, guard: Guard) -> Pair:
        """Gradients of a step's keys, with what came of them; they travel on in float32 once they are a sum."""
        added = bool(incoming) if step else len(incoming) > 1 or any(pair[0].dtype != kv.dtype for pair in incoming)
        sums = guard.run(_summed, part, incoming, kv, wide(kv.dtype) if added else kv.dtype)
        dtype = wide(kv.dtype) if added and step else kv.dtype
        if sums is not None and sums[0].dtype != dtype:
            sums = guard.run(_cast, sums, dtype)
        if sums is None:
            return guard.room(kv, kv.shape[1:], dtype), guard.room(kv, kv.shape[1:], dtype)
        return sums


@dataclass(slots=True, kw_only=True)
class KeyGrads:
    """What one call gives for its keys."""

    dk: Tensor
    dv: Tensor
    keys: slice
    all_keys: bool


class Partial(NamedTuple):
    """What one forward call gives for its rows."""

    step: int
    call: KernelCall
    out_BTND: Tensor
    lse_BTN: Tensor


def _compute(step: int, call: KernelCall, q_BTND: Tensor, kv: Tensor) -> Partial:
    return Partial(step, call, *call.partial(call.bound.forward(call.inputs(q_BTND, kv))))


def _add(outputs: Outputs, partial: Partial | None, lanes: Lanes, guard: Guard) -> None:
    """Merge, on the lane that computed it."""
    if partial is not None:
        step, call, out_BTND, lse_BTN = partial
        with lanes.in_turn(step):
            guard.run(outputs.add, out_BTND, lse_BTN, call.rows, whole=call.whole)


def _differentiate(
    call: KernelCall, q_BTND: Tensor, kv: Tensor, forward: RingForward, dout_BTND: Tensor, dq: Sum
) -> KeyGrads:
    dq_part, dk, dv = call.backward(q_BTND, kv, forward.out_BTND, forward.lse_BNT, dout_BTND)
    dq.add(dq_part, call.rows, whole=call.whole)
    return KeyGrads(dk=dk, dv=dv, keys=call.keys, all_keys=call.all_keys)


def _summed(part: KeyGrads | None, incoming: list[Pair], kv: Tensor, dtype: torch.dtype) -> Pair:
    """The sum over all key slots in `dtype`, contiguous."""
    if not incoming and part is not None and part.all_keys:
        return part.dk.contiguous(), part.dv.contiguous()
    sums = []
    for which in (0, 1):
        received = [pair[which] for pair in incoming]
        # A received tensor is nobody else's, so it may hold the sum.
        total = next((one for one in received if one.dtype == dtype), None)
        others = [one for one in received if one is not total]
        if total is None:
            total = others.pop().to(dtype) if others else torch.zeros_like(kv[which], dtype=dtype)
        for one in others:
            total.add_(one)
        if part is not None:
            total[:, part.keys].add_(part.dv if which else part.dk)
        sums.append(total)
    return sums[0], sums[1]


def _cast(pair: Pair, dtype: torch.dtype) -> Pair:
    return pair[0].to(dtype), pair[1].to(dtype)
