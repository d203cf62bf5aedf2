"""ulysses, ring_p2p, usp and loongtrain at run time: an all-to-all of heads around a ring, or one of the two alone.

Stages of heads overlap: all are packed while the first travels; while one is computed the next comes in and the one
before goes back. Where a kernel that sees all keys gains by it, stages take two streams in turn.
"""

from __future__ import annotations

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
from attnspec.support import Device, Forward


def bind_head_ring(
    plan: HeadRing, kernel: Bind, transport: Transport, device: Device, *, needs_backward: bool
) -> BoundStrategy:
    """One rank's part of a plan, ready to run. Raises UnsupportedError where the kernel cannot compute a call."""
    rank = transport.rank
    head, place = plan.ranks.place(rank)
    shape, group = plan.split.local_shape, plan.ranks.head_group(place)
    inner: Ring | Alone
    if plan.ring_degree == 1:
        inner = Alone(kernel(shape, plan.whole()))
    else:
        slots = plan.q_ring.num_slots, plan.k_ring.num_slots
        inner = Ring(kernel, shape, plan.calls(rank), plan.ways, place, plan.ranks.ring(head), *slots)
        require_explicit(inner.kernels, needs_backward=needs_backward)
    work: HeadStages | OneStage = OneStage(inner)
    if len(group) > 1:
        work = HeadStages(inner, HeadExchange(plan.split, group, head))
    return BoundStrategy(
        work,
        inner.kernels,
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

    @property
    def has_lse(self) -> bool:
        """Whether its kernel gives one."""
        return isinstance(self.forward, RingForward) or self.forward.has_lse

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

    def __init__(self, inner: Ring | Alone, exchange: HeadExchange) -> None:
        self._inner, self._exchange = inner, exchange
        alone = inner.kernels if isinstance(inner, Alone) else []  # a ring has its own lanes
        self._overlapped_forward, self._overlapped_backward = overlap(alone, "fwd"), overlap(alone, "bwd")

    def forward(self, q_BTND: Tensor, kv: Tensor, transport: Transport, guard: Guard) -> tuple[Tensor, list[Stage]]:
        """All stages."""
        out_BTND = guard.room(q_BTND, q_BTND.shape)
        coming = self._exchange.spread(q_BTND, kv, transport, guard)
        back = Collect(self._exchange, [out_BTND], guard)
        saved: list[Stage] = []
        with Lanes(q_BTND, overlapped=self._overlapped_forward) as lanes:
            for number in range(len(coming)):
                with lanes.on(number):
                    q_BTHD, kv_BTHD = coming.popleft().wait(guard)
                    assert kv_BTHD is not None
                    made = self._inner.forward(q_BTHD, kv_BTHD, transport, guard)
                    back.add([made.out_BTND], transport)
                saved.append(Stage(q_BTHD=q_BTHD, kv=kv_BTHD, forward=made))
        back.finish()
        return out_BTND, saved

    def backward(
        self, q_BTND: Tensor, kv: Tensor, forward: Forward, dout_BTND: Tensor, transport: Transport, guard: Guard
    ) -> Grads:
        """All stages, in the same order."""
        dq_BTND, dkv = guard.room(q_BTND, q_BTND.shape), guard.room(kv, kv.shape)
        coming = self._exchange.spread(dout_BTND, None, transport, guard)
        back = Collect(self._exchange, [dq_BTND, dkv[0], dkv[1]], guard)
        with Lanes(q_BTND, overlapped=self._overlapped_backward) as lanes:
            for number, stage in enumerate(cast(list[Stage], forward.saved)):
                with lanes.on(number):
                    dout_BTHD, _ = coming.popleft().wait(guard)
                    back.add(stage.backward(self._inner, dout_BTHD, transport, guard), transport)
        back.finish()
        return dq_BTND, dkv[0], dkv[1]

    def lse(self, forward: Forward, transport: Transport) -> Tensor | None:
        """From the ranks of its heads."""
        stages, out_BTND = cast(list[Stage], forward.saved), forward.out
        if not all(one.has_lse for one in stages):
            return None
        guard, dtype = Guard(), lse_type(out_BTND.dtype)
        lse_BTN1 = guard.room(out_BTND, (*out_BTND.shape[:3], 1), dtype)
        back = Collect(self._exchange, [lse_BTN1], guard)
        for one in stages:
            part = guard.run(one.lse, self._inner)
            if part is None:
                part_BTH1 = guard.room(one.q_BTHD, (*one.q_BTHD.shape[:3], 1), dtype)
            else:
                part_BTH1 = part.transpose(1, 2)[..., None]
            back.add([part_BTH1], transport)
        back.finish()
        guard.finish()
        return lse_BTN1[..., 0].transpose(1, 2)
