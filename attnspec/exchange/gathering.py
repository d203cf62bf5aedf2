"""ring_allgather at run time: all keys on every rank, gathered in one message and brought into the sequence's order.

Calls over different rows are kept apart, so no results are merged; where the kernel gains by it they take two streams
in turn (as TransformerEngine's do). Gradients of keys are reduced and scattered. Shape suffixes as in
attnspec.support.bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import numpy as np
import torch
from torch import Tensor

from attnspec.exchange.accumulate import lse_type, wide
from attnspec.exchange.bound import BoundStrategy, Grads
from attnspec.exchange.guard import Guard
from attnspec.exchange.kernel_call import Bind, KernelCall, require_explicit, results
from attnspec.exchange.lanes import Lanes, overlap, use
from attnspec.exchange.tokens import Slots
from attnspec.exchange.transport import Transport
from attnspec.sharding.gathering import Gathering
from attnspec.support import Device, Forward


def bind_gathering(
    plan: Gathering, kernel: Bind, transport: Transport, device: Device, *, needs_backward: bool
) -> BoundStrategy:
    """One rank's part of a plan, ready to run. Raises UnsupportedError where the kernel cannot compute a call."""
    rank, num_slots = transport.rank, plan.queries.num_slots
    calls = [KernelCall.of(kernel, plan.shape, call, num_slots, plan.slices.seqlen_k) for call in plan.calls(rank)]
    kernels = [call.bound for call in calls]
    require_explicit(kernels, needs_backward=needs_backward)
    return BoundStrategy(
        GatheredKeys(calls, KeyOrder(plan, device.type), widened=plan.widening > 1),
        kernels,
        Slots(plan.queries.slots(rank), num_slots, device.type),
        Slots(plan.keys.slots(rank), plan.keys.num_slots, device.type),
        transport,
    )


KeyPart = tuple[slice, Tensor, Tensor]
"""Keys that a call saw, and the gradients dk and dv of these."""


class KeyOrder:
    """Between keys as ranks gather them, (P, 2, B, S, G, D), and keys in the order of the sequence, (2, B, all, G, D).

    Padding is left out on the way there and zero on the way back.
    """

    def __init__(self, plan: Gathering, device: str) -> None:
        keys = plan.keys
        self._num_ranks, self._num_slots, self._num_tokens = keys.num_holders, keys.num_slots, keys.num_tokens
        places = keys.places()
        rank, slot = places // max(keys.num_slots, 1), places % max(keys.num_slots, 1)
        parts = np.arange(2 * plan.shape.batch)[:, None]
        rows = ((rank * len(parts) + parts) * keys.num_slots + slot).reshape(-1)
        back = np.full(self._num_ranks * len(parts) * self._num_slots, -1)
        back[rows] = np.arange(len(rows))
        padding = np.flatnonzero(back < 0)
        self._rows, self._back = (torch.from_numpy(one).to(device) for one in (rows, np.maximum(back, 0)))
        self._padding = torch.from_numpy(padding).to(device) if len(padding) else None

    def in_sequence(self, gathered: Tensor) -> Tensor:
        """One pass over all keys."""
        _, two, batch, _, heads, width = gathered.shape
        rows = gathered.view(-1, heads, width).index_select(0, self._rows)
        return rows.view(two, batch, self._num_tokens, heads, width)

    def by_rank(self, in_sequence: Tensor) -> Tensor:
        """One pass back; it gathers as well, since scattering rows of bfloat16 goes element by element (torch 2.11)."""
        two, batch, _, heads, width = in_sequence.shape
        made = in_sequence.view(-1, heads, width).index_select(0, self._back)
        if self._padding is not None:
            made.index_fill_(0, self._padding, 0)
        return made.view(self._num_ranks, two, batch, self._num_slots, heads, width)


class GatheredKeys:
    """A Work: gather, compute, and on the way back reduce and scatter. widened: sums of gradients are float32."""

    def __init__(self, calls: list[KernelCall], order: KeyOrder, *, widened: bool) -> None:
        self._calls, self._order, self._widened = calls, order, widened
        kernels = [call.bound for call in calls]
        self._overlapped_forward, self._overlapped_backward = overlap(kernels, "fwd"), overlap(kernels, "bwd")

    def forward(
        self, q_BTND: Tensor, kv: Tensor, transport: Transport, guard: Guard
    ) -> tuple[Tensor, list[Tensor | None]]:
        """Gather, then each call over its rows; leaves each call's lse."""
        made = guard.run(self._run, q_BTND, self._gathered(kv, transport, guard))
        return (q_BTND, []) if made is None else made

    def backward(
        self, q_BTND: Tensor, kv: Tensor, forward: Forward, dout_BTND: Tensor, transport: Transport, guard: Guard
    ) -> Grads:
        """Gather again, each call over its rows, then reduce and scatter what the keys got."""
        every = self._gathered(kv, transport, guard)
        made = guard.run(self._differentiate, q_BTND, every, forward, dout_BTND)
        dtype = wide(kv.dtype) if self._widened else kv.dtype
        parts = guard.room(kv, (transport.size, *kv.shape), dtype) if made is None else made[1]
        total = guard.room(kv, kv.shape, dtype)
        transport.reduce_scatter(parts, total)
        dkv = guard.run(total.to, kv.dtype)
        if made is None or dkv is None:
            return q_BTND, kv[0], kv[1]
        return made[0], dkv[0], dkv[1]

    def lse(self, forward: Forward, transport: Transport) -> Tensor | None:
        """Each call's, at its rows."""
        batch, num_slots, num_heads, _ = forward.out.shape
        dtype = lse_type(forward.out.dtype)
        lse_BNT = forward.out.new_full((batch, num_heads, num_slots), -torch.inf, dtype=dtype)
        for call, part in zip(self._calls, cast(list[Tensor | None], forward.saved), strict=True):
            if part is None:
                return None
            lse_BNT[:, :, call.rows] = part
        return lse_BNT

    def _gathered(self, kv: Tensor, transport: Transport, guard: Guard) -> Tensor | None:
        """Keys and values of all ranks in the order of the sequence."""
        gathered = guard.room(kv, (transport.size, *kv.shape))
        transport.gather(kv, gathered)
        return guard.run(self._order.in_sequence, gathered)

    def _run(self, q_BTND: Tensor, kv: Tensor | None) -> tuple[Tensor, list[Tensor | None]]:
        assert kv is not None
        rows = _Rows(q_BTND, self._calls)
        saved: list[Tensor | None] = []
        with Lanes(q_BTND, overlapped=self._overlapped_forward) as lanes:
            for number, call in enumerate(self._calls):
                with lanes.on(number):
                    out_BTND, lse_BTN = results(call.bound, call.bound.forward(call.inputs(q_BTND, kv)))
                    rows.put(call, out_BTND)
                saved.append(None if lse_BTN is None else lse_BTN.transpose(1, 2))
        return rows.whole, saved

    def _differentiate(
        self, q_BTND: Tensor, kv: Tensor | None, forward: Forward, dout_BTND: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(dq of the rank, gradients of all keys by rank)."""
        assert kv is not None
        rows = _Rows(q_BTND, self._calls)
        dtype = wide(kv.dtype) if self._widened else kv.dtype
        pairs = list(zip(self._calls, cast(list[Tensor], forward.saved), strict=True))
        pairs.sort(key=lambda pair: not pair[0].all_keys)

        def parts(lanes: Lanes) -> Iterator[KeyPart]:
            for number, (call, lse_BNR) in enumerate(pairs):
                with lanes.on(number):
                    dq, dk, dv = call.backward_of_rows(q_BTND, kv, forward.out, lse_BNR, dout_BTND)
                    rows.put(call, dq)
                lanes.join()
                if number + 2 < len(pairs):  # else no call of this block can get their memory
                    use(dk)
                    use(dv)
                yield call.keys, dk, dv

        with Lanes(q_BTND, overlapped=self._overlapped_backward) as lanes:
            total = summed(parts(lanes), kv, dtype)
        return rows.whole, self._order.by_rank(total)


def summed(parts: Iterator[KeyPart], like: Tensor, dtype: torch.dtype) -> Tensor:
    """Gradients of keys and values, (2, B, S, G, D), from parts over some keys each; one over all of them comes first.

    Where that has the wanted type, it and the next are added in one pass.
    """
    first = next(parts, None)
    if first is None:
        return torch.zeros_like(like, dtype=dtype)
    keys, *grads = first
    complete = grads[0].shape == like[0].shape
    second = next(parts, None) if complete and grads[0].dtype == dtype else None
    total = torch.empty_like(like, dtype=dtype) if complete else torch.zeros_like(like, dtype=dtype)
    if second is None:
        for target, part in zip(total, grads, strict=True):
            target[:, keys].copy_(part)
    else:
        keys, *others = second
        for target, part, other in zip(total, grads, others, strict=True):
            torch.add(part[:, keys], other, out=target[:, keys])
            for alone in (slice(0, keys.start), slice(keys.stop, None)):
                target[:, alone].copy_(part[:, alone])
        del others
    del first, second, grads, part
    for keys, *grads in parts:
        for target, part in zip(total, grads, strict=True):
            target[:, keys].add_(part)
    return total


class _Rows:
    """A tensor over all query slots, put together from calls over different rows; zero where there is none."""

    def __init__(self, like_BTND: Tensor, calls: list[KernelCall]) -> None:
        self.whole = like_BTND
        if not any(call.whole for call in calls):
            covered = sum(call.rows.stop - call.rows.start for call in calls) == like_BTND.shape[1]
            self.whole = torch.empty_like(like_BTND) if covered else torch.zeros_like(like_BTND)

    def put(self, call: KernelCall, part_BTND: Tensor) -> None:
        """Results of a call; those of a call over all rows are taken as they are."""
        if call.whole:
            self.whole = part_BTND
        else:
            self.whole[:, call.rows] = part_BTND
