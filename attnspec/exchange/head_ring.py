"""ulysses, ring_p2p, usp and loongtrain at run time: an all-to-all of heads around a ring, or one of the two alone.

Stages of heads overlap: all are packed while the first travels; while one is computed the next comes in and the one
before goes back. Where a kernel that sees all keys gains by it, stages take two streams in turn.

Where its forward deals its blocks to the SMs before it begins, messages go before the first stage and after the last.
Beside such a kernel NCCL has no SMs until it ends; or it has some on one rank and waits there for the other rank, and
the blocks of these SMs wait with it. Over fa3 that cost most of a stage (two H200, full: 4.4 of 30.8 ms at 16K tokens a
rank, 19 of 123 at 32K).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import cast

from torch import Tensor

from attnspec.exchange.accumulate import lse_type
from attnspec.exchange.alone import Alone, AloneForward
from attnspec.exchange.bound import BoundStrategy, Grads
from attnspec.exchange.guard import Guard
from attnspec.exchange.head_exchange import Collect, HeadExchange
from attnspec.exchange.kernel_call import Bind, require_explicit
from attnspec.exchange.lanes import Lanes, overlap
from attnspec.exchange.ring import Ring, RingForward
from attnspec.exchange.tokens import Slots
from attnspec.exchange.transport import Transport
from attnspec.sharding.head_ring import HeadRing
from attnspec.support import BoundKernel, Device, Forward


def bind_head_ring(
    plan: HeadRing, kernel: Bind, transport: Transport, device: Device, *, needs_backward: bool
) -> BoundStrategy:
    """One rank's part of a plan, ready to run. Raises UnsupportedError where the kernel cannot compute a call."""
    rank = transport.rank
    head, place = plan.ranks.place(rank)
    shape, group = plan.split.local_shape, plan.ranks.head_group(place)
    inner: Ring | Alone
    kernels: list[BoundKernel]
    if plan.ring_degree == 1:
        inner = Alone(kernel(shape, plan.whole()))
        kernels = [inner.bound]
    else:
        slots = plan.q_ring.num_slots, plan.k_ring.num_slots
        inner = Ring(kernel, shape, plan.calls(rank), plan.ways, place, plan.ranks.ring(head), *slots)
        kernels = inner.kernels
        require_explicit(kernels, needs_backward=needs_backward)
    work: HeadStages | OneStage = OneStage(inner)
    if len(group) > 1:
        work = HeadStages(inner, HeadExchange(plan.split, group, head), plan.split.stages)
    return BoundStrategy(
        work,
        kernels,
        Slots(plan.queries.slots(rank), plan.queries.num_slots, device.type),
        Slots(plan.keys.slots(rank), plan.keys.num_slots, device.type),
        transport,
    )


@dataclass(slots=True, kw_only=True)
class Stage:
    """What the forward of one stage of heads leaves for its backward: its inputs over all slots of the group."""

    q_BTHD: Tensor
    kv: Tensor
    forward: RingForward | AloneForward

    def backward(self, inner: Ring | Alone, dout_BTHD: Tensor, transport: Transport, guard: Guard) -> Grads:
        """The stage's gradients."""
        if isinstance(inner, Ring):
            held = cast(RingForward, self.forward)
            return inner.backward(self.q_BTHD, self.kv, held, dout_BTHD, transport, guard)
        return inner.backward(self.q_BTHD, self.kv, cast(AloneForward, self.forward), dout_BTHD, transport, guard)

    def lse(self, inner: Ring | Alone) -> Tensor | None:
        """The stage's lse_BHT."""
        if isinstance(inner, Ring):
            return cast(RingForward, self.forward).lse_BNT
        found = inner.lse(cast(AloneForward, self.forward))
        return None if found is None else found.to(lse_type(self.q_BTHD.dtype))


class OneStage:
    """A Work of ranks that hold all heads: nothing but the ring."""

    def __init__(self, inner: Ring | Alone) -> None:
        self._inner = inner

    def forward(self, q_BTND: Tensor, kv: Tensor, transport: Transport, guard: Guard) -> tuple[Tensor, Stage]:
        """Round the ring."""
        made = self._inner.forward(q_BTND, kv, transport, guard)
        return made.out_BTND, Stage(q_BTHD=q_BTND, kv=kv, forward=made)

    def backward(
        self, q_BTND: Tensor, kv: Tensor, forward: Forward, dout_BTND: Tensor, transport: Transport, guard: Guard
    ) -> Grads:
        """Round the ring, backwards."""
        return cast(Stage, forward.saved).backward(self._inner, dout_BTND, transport, guard)

    def lse(self, forward: Forward, transport: Transport) -> Tensor | None:
        """The ring's."""
        return cast(Stage, forward.saved).lse(self._inner)


class HeadStages:
    """A Work of ranks that share heads."""

    def __init__(self, inner: Ring | Alone, exchange: HeadExchange, num_stages: int) -> None:
        self._inner, self._exchange, self._num_stages = inner, exchange, num_stages
        kernels = [inner.bound] if isinstance(inner, Alone) else []  # steps of a ring overlap themselves
        self._overlapped_forward = bool(kernels) and overlap(kernels, "fwd")
        self._overlapped_backward = bool(kernels) and overlap(kernels, "bwd")
        self._apart = any(getattr(one, "static_schedule", False) for one in kernels)

    def forward(self, q_BTND: Tensor, kv: Tensor, transport: Transport, guard: Guard) -> tuple[Tensor, list[Stage]]:
        """All stages."""
        exchange = self._exchange
        out_BTND = guard.room(q_BTND, q_BTND.shape)
        saved: list[Stage] = []
        coming_back: list[Collect] = []
        coming = deque(exchange.spread(number, q_BTND, kv, transport, guard) for number in range(self._num_stages))
        if self._apart:
            for one in coming:
                one.arrive()
        with Lanes(q_BTND, overlapped=self._overlapped_forward) as lanes:
            for number in range(self._num_stages):
                with lanes.on(number):
                    q_BTHD, kv_BTHD = coming.popleft().wait()
                    assert kv_BTHD is not None
                    made = self._inner.forward(q_BTHD, kv_BTHD, transport, guard)
                    if not self._apart:
                        coming_back.append(exchange.collect(number, [made.out_BTND], transport, guard))
                saved.append(Stage(q_BTHD=q_BTHD, kv=kv_BTHD, forward=made))
        if self._apart:
            outputs = [stage.forward.out_BTND for stage in saved]
            coming_back = [exchange.collect(number, [out], transport, guard) for number, out in enumerate(outputs)]
        for back in coming_back:
            back.into([out_BTND], guard)
        return out_BTND, saved

    def backward(
        self, q_BTND: Tensor, kv: Tensor, forward: Forward, dout_BTND: Tensor, transport: Transport, guard: Guard
    ) -> Grads:
        """All stages, in the same order."""
        exchange = self._exchange
        dq_BTND, dkv = guard.room(q_BTND, q_BTND.shape), guard.room(kv, kv.shape)
        coming_back = []
        coming = deque(exchange.spread(number, dout_BTND, None, transport, guard) for number in range(self._num_stages))
        with Lanes(q_BTND, overlapped=self._overlapped_backward) as lanes:
            for number, stage in enumerate(cast(list[Stage], forward.saved)):
                with lanes.on(number):
                    dout_BTHD, _ = coming.popleft().wait()
                    grads = stage.backward(self._inner, dout_BTHD, transport, guard)
                    coming_back.append(exchange.collect(number, grads, transport, guard))
        for one in coming_back:
            one.into([dq_BTND, dkv[0], dkv[1]], guard)
        return dq_BTND, dkv[0], dkv[1]

    def lse(self, forward: Forward, transport: Transport) -> Tensor | None:
        """From the ranks of its heads."""
        parts = [one.lse(self._inner) for one in cast(list[Stage], forward.saved)]
        batch, num_slots, num_heads, _ = forward.out.shape
        lse_BTN1 = forward.out.new_empty((batch, num_slots, num_heads, 1), dtype=lse_type(forward.out.dtype))
        guard = Guard()
        for number, part in enumerate(parts):
            if part is None:
                return None
            part_BTH1 = part.transpose(1, 2)[..., None]
            self._exchange.collect(number, [part_BTH1], transport, guard).into([lse_BTN1], guard)
        guard.finish()
        return lse_BTN1[..., 0].transpose(1, 2)
