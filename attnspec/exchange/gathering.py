"""ring_allgather at run time: all keys on every rank, gathered in one message and brought into the sequence's order.

Calls over different rows are kept apart, so no results are merged. Gradients of keys are reduced and scattered. Shape
suffixes as in attnspec.support.bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from attnspec.exchange.accumulate import lse_type, wide
from attnspec.exchange.guard import Guard
from attnspec.exchange.kernel_call import Bind, KernelCall, require_explicit, results
from attnspec.exchange.tokens import Slots
from attnspec.exchange.transport import Transport
from attnspec.sharding.gathering import Gathering
from attnspec.support import Device, Forward

Grads = tuple[Tensor, Tensor, Tensor]


@dataclass(slots=True, kw_only=True)
class Inputs:
    """A rank's queries in their slots, and keys and values stacked: (2, B, S, G, D)."""

    q_BTND: Tensor
    kv: Tensor


class KeyOrder:
    """Between keys as ranks gather them, (P, 2, B, S, G, D), and keys in the order of the sequence, (2, B, all, G, D).

    Padding is left out on the way there and zero on the way back.
    """

    def __init__(self, plan: Gathering, device: str) -> None:
        keys = plan.keys
        self._num_ranks, self._num_slots, self._num_tokens = keys.num_holders, keys.num_slots, keys.num_tokens
        self._padded = keys.padding_tokens > 0
        places = keys.places()
        rank, slot = places // max(keys.num_slots, 1), places % max(keys.num_slots, 1)
        parts = np.arange(2 * plan.shape.batch)[:, None]
        rows = (rank * len(parts) + parts) * keys.num_slots + slot
        self._rows = torch.from_numpy(rows.reshape(-1)).to(device)

    def in_sequence(self, gathered: Tensor) -> Tensor:
        """One pass over all keys."""
        _, two, batch, _, heads, width = gathered.shape
        rows = gathered.view(-1, heads, width).index_select(0, self._rows)
        return rows.view(two, batch, self._num_tokens, heads, width)

    def by_rank(self, in_sequence: Tensor) -> Tensor:
        """One pass back."""
        two, batch, _, heads, width = in_sequence.shape
        shape = (self._num_ranks, two, batch, self._num_slots, heads, width)
        made = in_sequence.new_zeros(shape) if self._padded else in_sequence.new_empty(shape)
        made.view(-1, heads, width).index_copy_(0, self._rows, in_sequence.view(-1, heads, width))
        return made


class GatheringAttention:
    """A BoundKernel over one rank's tokens, in the order of `plan.q_tokens(rank)`."""

    explicit_backward = False

    def __init__(
        self, plan: Gathering, bind: Bind, transport: Transport, device: Device, *, needs_backward: bool
    ) -> None:
        self.transport = transport
        self._order = KeyOrder(plan, device.type)
        self._q_slots = Slots(plan.queries.slots(transport.rank), plan.queries.num_slots, device.type)
        self._k_slots = Slots(plan.keys.slots(transport.rank), plan.keys.num_slots, device.type)
        self._widened = plan.widening > 1
        self._calls = [
            KernelCall.of(bind, plan.shape, call, plan.queries.num_slots, plan.slices.seqlen_k)
            for call in plan.calls(transport.rank)
        ]
        bound = [call.bound for call in self._calls]
        require_explicit(bound, needs_backward=needs_backward)
        self.frees_graph = any(one.frees_graph for one in bound)
        self.expected_kernels = bound[0].expected_kernels if bound else ""
        self.backend = bound[0].backend if bound else None
        self.lse_tolerance = max((getattr(one, "lse_tolerance", 0.0) for one in bound), default=0.0)

    def load(self, q_BTND: Tensor, k_BSGD: Tensor, v_BSGD: Tensor) -> Inputs:
        """Tokens in their slots, K and V in one tensor."""
        kv = torch.stack([self._k_slots.fill(k_BSGD), self._k_slots.fill(v_BSGD)])
        return Inputs(q_BTND=self._q_slots.fill(q_BTND), kv=kv)

    def load_dout(self, dout_BTND: Tensor) -> Tensor:
        """Tokens in their slots."""
        return self._q_slots.fill(dout_BTND)

    def load_forward(self, out_BTND: Tensor, lse_BNT: Tensor) -> Forward:
        """Never called: a strategy goes backward from its own forward."""
        raise AssertionError("a strategy has no backward from a given output")

    def forward(self, inputs: Inputs) -> Forward:
        """Gather, then each call over its rows. `saved` holds each call's lse_BNT."""
        guard = Guard()
        made = guard.run(self._run, inputs.q_BTND, self._gathered(inputs.kv, guard))
        guard.finish()
        assert made is not None
        return made

    def backward(self, inputs: Inputs, forward: Forward, dout: Tensor) -> Grads:
        """Gather again, each call over its rows, then reduce and scatter what the keys got."""
        guard = Guard()
        made = guard.run(self._differentiate, inputs.q_BTND, self._gathered(inputs.kv, guard), forward, dout)
        dtype = wide(inputs.kv.dtype) if self._widened else inputs.kv.dtype
        dkv = guard.room(inputs.kv, inputs.kv.shape, dtype)
        parts = guard.room(inputs.kv, (self.transport.size, *inputs.kv.shape), dtype) if made is None else made[1]
        self.transport.reduce_scatter(parts, dkv)
        narrow = guard.run(dkv.to, inputs.kv.dtype)
        guard.finish()
        assert made is not None and narrow is not None
        return made[0], narrow[0], narrow[1]

    def canonical_out(self, forward: Forward) -> tuple[Tensor, Tensor | None]:
        """out and lse of the rank's tokens."""
        batch, num_slots, num_heads, _ = forward.out.shape
        saved = cast(list[Tensor | None], forward.saved)
        out_BTND = self._q_slots.read(forward.out)
        held = [lse for lse in saved if lse is not None]
        if len(held) < len(saved):
            return out_BTND, None
        dtype = lse_type(forward.out.dtype)
        lse_BNT = forward.out.new_full((batch, num_heads, num_slots), -torch.inf, dtype=dtype)
        for call, lse in zip(self._calls, held, strict=True):
            lse_BNT[:, :, call.rows] = lse
        return out_BTND, self._q_slots.read(lse_BNT.masked_fill_(lse_BNT == torch.inf, -torch.inf), dim=2)

    def canonical_grads(self, grads: Grads) -> Grads:
        """Of the rank's tokens."""
        dq, dk, dv = grads
        return self._q_slots.read(dq), self._k_slots.read(dk), self._k_slots.read(dv)

    def _gathered(self, kv: Tensor, guard: Guard) -> Tensor | None:
        """Keys and values of all ranks in the order of the sequence."""
        gathered = guard.room(kv, (self.transport.size, *kv.shape))
        self.transport.gather(kv, gathered)
        return guard.run(self._order.in_sequence, gathered)

    def _run(self, q_BTND: Tensor, kv: Tensor | None) -> Forward:
        assert kv is not None
        rows = _Rows(q_BTND, self._calls)
        saved: list[Tensor | None] = []
        for call in self._calls:
            out_BTND, lse_BTN = results(call.bound, call.bound.forward(call.inputs(q_BTND, kv)))
            rows.put(call, out_BTND)
            saved.append(None if lse_BTN is None else lse_BTN.transpose(1, 2))
        return Forward(out=rows.whole, lse=None, saved=saved)

    def _differentiate(
        self, q_BTND: Tensor, kv: Tensor | None, forward: Forward, dout_BTND: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(dq of the rank, gradients of all keys by rank)."""
        assert kv is not None
        rows = _Rows(q_BTND, self._calls)
        dtype = wide(kv.dtype) if self._widened else kv.dtype
        complete = any(call.all_keys for call in self._calls)
        total = torch.empty_like(kv, dtype=dtype) if complete else torch.zeros_like(kv, dtype=dtype)
        pairs = list(zip(self._calls, cast(list[Tensor], forward.saved), strict=True))
        pairs.sort(key=lambda pair: not pair[0].all_keys)
        for number, (call, lse_BNT) in enumerate(pairs):
            dq, dk, dv = call.backward_of_rows(q_BTND, kv, forward.out, lse_BNT, dout_BTND)
            rows.put(call, dq)
            for target, part in zip(total, (dk, dv), strict=True):
                if number == 0:
                    target[:, call.keys].copy_(part)
                else:
                    target[:, call.keys].add_(part)
        return rows.whole, self._order.by_rank(total)


class _Rows:
    """A tensor over all query slots, put together from calls over different rows; zero where there is none."""

    def __init__(self, like_BTND: Tensor, calls: list[KernelCall]) -> None:
        self._like, self._calls = like_BTND, calls
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
