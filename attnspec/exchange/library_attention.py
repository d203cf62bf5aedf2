"""A library's own context parallelism on one rank: a function of the rank's tokens, and autograd for the backward.

Shape suffixes as in attnspec.support.bound; packed tokens are (T, N, D), of batch 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from attnspec.exchange.bound import Grads
from attnspec.exchange.guard import Guard
from attnspec.exchange.tokens import Slots
from attnspec.support import ExpectedKernels, Forward

Attend = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor | None]]
"""(out, natural lse or None) of q, k and v; out as q, lse (T, N), for packed tokens only."""


class LibraryAttention:
    """A RankKernel. Final. `slots`: where the rank's tokens lie; packed: whether the library wants (T, N, D).

    frees_graph: a backward can run once for each forward. The library exchanges tensors itself.
    """

    explicit_backward = False
    backend = None
    lse_tolerance = 0.0
    transport = None

    def __init__(
        self,
        attend: Attend,
        slots: Slots,
        *,
        packed: bool,
        needs_backward: bool,
        frees_graph: bool,
        expected_kernels: ExpectedKernels,
    ) -> None:
        self._attend, self._slots = attend, slots
        self._packed, self._needs_backward = packed, needs_backward
        self.frees_graph, self.expected_kernels = frees_graph, expected_kernels

    def load(self, q_BTND: Tensor, k_BSGD: Tensor, v_BSGD: Tensor) -> Grads:
        """Tokens in their slots, as leaves of a graph."""
        q, k, v = (self._filled(part).detach() for part in (q_BTND, k_BSGD, v_BSGD))
        for part in (q, k, v):
            part.requires_grad_(self._needs_backward)
        return q, k, v

    def load_dout(self, dout_BTND: Tensor) -> Tensor:
        """Tokens in their slots."""
        return self._filled(dout_BTND)

    def load_forward(self, out_BTND: Tensor, lse_BNT: Tensor) -> Forward:
        """Never called: a strategy goes backward from its own forward."""
        raise AssertionError("a strategy has no backward from a given output")

    def forward_with(self, inputs: Grads, guard: Guard) -> Forward:
        """One forward, on whose `out` the graph hangs; the library's messages stop when it fails."""
        made = guard.run(self._forward, inputs)
        return Forward(out=inputs[0], lse=None) if made is None else made

    def backward_with(self, inputs: Grads, forward: Forward, dout: Tensor, guard: Guard) -> Grads:
        """One backward; the library's messages stop when it fails."""
        made = guard.run(torch.autograd.grad, forward.out, inputs, dout, retain_graph=not self.frees_graph)
        return inputs if made is None else cast(Grads, made)

    def canonical_out(self, forward: Forward) -> tuple[Tensor, Tensor | None]:
        """out and lse of the rank's tokens."""
        out_BTND = self._read(forward.out.detach())
        if forward.lse is None:
            return out_BTND, None
        lse_TN = self._slots.read(forward.lse.detach().float(), dim=0)
        return out_BTND, lse_TN.T.contiguous()[None]

    def canonical_grads(self, grads: Grads) -> Grads:
        """Of the rank's tokens."""
        dq, dk, dv = map(self._read, grads)
        return dq, dk, dv

    def _forward(self, inputs: Grads) -> Forward:
        with torch.set_grad_enabled(self._needs_backward):
            out, lse = self._attend(*inputs)
        return Forward(out=out, lse=lse)

    def _filled(self, part_BTND: Tensor) -> Tensor:
        filled = self._slots.fill(part_BTND)
        return filled[0] if self._packed else filled

    def _read(self, part: Tensor) -> Tensor:
        return self._slots.read(part[None] if self._packed else part)
