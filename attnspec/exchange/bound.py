"""A strategy on one rank as a BoundKernel over the rank's tokens. Shape suffixes as in attnspec.support.bound.

Tokens are brought to their slots before timing and read from them after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from attnspec.exchange.guard import Guard
from attnspec.exchange.tokens import Slots
from attnspec.exchange.transport import Transport
from attnspec.support import BoundKernel, ExpectedKernels, Forward
from attnspec.support.kernel_names import every

Grads = tuple[Tensor, Tensor, Tensor]


class Work(Protocol):
    """What a strategy does on one rank. q_BTND: its query slots; kv: its key slots, K and V stacked, (2, B, S, G, D).

    Both directions exchange all their messages whatever goes wrong, and are right unless `guard` then holds an error.
    When they return the current stream waits for every other that they used, for what is sent as for what comes.
    """

    def forward(self, q_BTND: Tensor, kv: Tensor, transport: Transport, guard: Guard) -> tuple[Tensor, Any]:
        """(out_BTND, what the backward wants)."""
        ...

    def backward(
        self, q_BTND: Tensor, kv: Tensor, forward: Forward, dout_BTND: Tensor, transport: Transport, guard: Guard
    ) -> Grads:
        """(dq_BTND, dk_BSGD, dv_BSGD). forward: `out` and, as `saved`, what the forward left."""
        ...

    def lse(self, forward: Forward, transport: Transport) -> Tensor | None:
        """lse_BNT of the rank's slots, if the kernel gives one. Untimed; all ranks call it together."""
        ...


class RankKernel(Protocol):
    """A BoundKernel over the tokens that one rank holds, whose calls all ranks make together.

    transport: how it exchanges tensors, None where a library does that itself. The two `*_with` methods never raise
    what the kernel raises: they are right unless `guard` then holds an error.
    """

    explicit_backward: bool
    frees_graph: bool
    expected_kernels: ExpectedKernels
    backend: str | None
    lse_tolerance: float
    transport: Transport | None

    def load(self, q_BTND: Tensor, k_BSGD: Tensor, v_BSGD: Tensor) -> Any:
        """Inputs in the strategy's layout."""
        ...

    def load_dout(self, dout_BTND: Tensor) -> Any:
        """The output's gradient in the strategy's layout."""
        ...

    def load_forward(self, out_BTND: Tensor, lse_BNT: Tensor) -> Forward:
        """Never called."""
        ...

    def forward_with(self, inputs: Any, guard: Guard) -> Forward:
        """One forward."""
        ...

    def backward_with(self, inputs: Any, forward: Forward, dout: Any, guard: Guard) -> Any:
        """One backward."""
        ...

    def canonical_out(self, forward: Forward) -> tuple[Tensor, Tensor | None]:
        """out and lse of the rank's tokens."""
        ...

    def canonical_grads(self, grads: Any) -> Grads:
        """Gradients of the rank's tokens."""
        ...


@dataclass(slots=True, kw_only=True)
class Inputs:
    """What Work takes."""

    q_BTND: Tensor
    kv: Tensor


class BoundStrategy:
    """Final. kernels: those that the rank calls; q_slots, k_slots: where its tokens lie. transport may be exchanged."""

    explicit_backward = False

    def __init__(
        self, work: Work, kernels: Sequence[BoundKernel], q_slots: Slots, k_slots: Slots, transport: Transport
    ) -> None:
        self.transport: Transport | None = transport
        self._work, self._q_slots, self._k_slots = work, q_slots, k_slots
        self.frees_graph = any(one.frees_graph for one in kernels)
        self.expected_kernels = every(one.expected_kernels for one in kernels)
        self.backend = kernels[0].backend if kernels else None
        self.lse_tolerance = max((float(getattr(one, "lse_tolerance", 0.0)) for one in kernels), default=0.0)

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
        """One forward; raises what went wrong once all messages are exchanged."""
        guard = Guard()
        made = self.forward_with(inputs, guard)
        guard.finish()
        return made

    def forward_with(self, inputs: Inputs, guard: Guard) -> Forward:
        """One forward that never raises what the kernel raises: right unless `guard` then holds an error."""
        out_BTND, saved = self._work.forward(inputs.q_BTND, inputs.kv, self._way, guard)
        return Forward(out=out_BTND, lse=None, saved=saved)

    def backward(self, inputs: Inputs, forward: Forward, dout: Tensor) -> Grads:
        """One backward; raises what went wrong once all messages are exchanged."""
        guard = Guard()
        grads = self.backward_with(inputs, forward, dout, guard)
        guard.finish()
        return grads

    def backward_with(self, inputs: Inputs, forward: Forward, dout: Tensor, guard: Guard) -> Grads:
        """One backward that never raises what the kernel raises: right unless `guard` then holds an error."""
        return self._work.backward(inputs.q_BTND, inputs.kv, forward, dout, self._way, guard)

    def canonical_out(self, forward: Forward) -> tuple[Tensor, Tensor | None]:
        """out and lse of the rank's tokens; all ranks call this together, for lse may come from other ranks."""
        lse_BNT = self._work.lse(forward, self._way)  # first: others wait for its messages
        out_BTND = self._q_slots.read(forward.out)
        if lse_BNT is None:
            return out_BTND, None
        lse_BNT = self._q_slots.read(lse_BNT, dim=2)
        return out_BTND, lse_BNT.masked_fill(lse_BNT == torch.inf, -torch.inf)

    def canonical_grads(self, grads: Grads) -> Grads:
        """Of the rank's tokens."""
        dq, dk, dv = grads
        return self._q_slots.read(dq), self._k_slots.read(dk), self._k_slots.read(dv)

    @property
    def _way(self) -> Transport:
        assert self.transport is not None
        return self.transport
