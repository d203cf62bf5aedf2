"""A rank that sees all keys of its heads: one call of any kernel. Shape suffixes as in attnspec.support.bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from attnspec.exchange.guard import Guard
from attnspec.exchange.kernel_call import results
from attnspec.exchange.transport import Transport
from attnspec.support import BoundKernel, Forward

Grads = tuple[Tensor, Tensor, Tensor]


@dataclass(slots=True, kw_only=True)
class AloneForward:
    """The kernel's own inputs and results; out_BTND is canonical."""

    out_BTND: Tensor
    inputs: Any
    forward: Forward | None

    @property
    def has_lse(self) -> bool:
        """Whether the kernel gives one."""
        return self.forward is not None and self.forward.lse is not None


class Alone:
    """Stands where a `attnspec.exchange.ring.Ring` stands, for a ring of one place."""

    def __init__(self, bound: BoundKernel) -> None:
        self.bound = bound

    @property
    def kernels(self) -> list[BoundKernel]:
        """The one."""
        return [self.bound]

    def forward(self, q_BTND: Tensor, kv: Tensor, transport: Transport, guard: Guard) -> AloneForward:
        """One call; right unless `guard` holds an error."""
        made = guard.run(self._run, q_BTND, kv)
        return AloneForward(out_BTND=q_BTND, inputs=None, forward=None) if made is None else made

    def backward(
        self, q_BTND: Tensor, kv: Tensor, forward: AloneForward, dout_BTND: Tensor, transport: Transport, guard: Guard
    ) -> Grads:
        """One call; right unless `guard` holds an error."""
        made = guard.run(self._differentiate, forward, dout_BTND)
        return (q_BTND, kv[0], kv[1]) if made is None else made

    def lse(self, forward: AloneForward) -> Tensor | None:
        """The kernel's lse, canonical; untimed."""
        assert forward.forward is not None
        return self.bound.canonical_out(forward.forward)[1]

    def _run(self, q_BTND: Tensor, kv: Tensor) -> AloneForward:
        inputs = self.bound.load(q_BTND, kv[0], kv[1])
        forward = self.bound.forward(inputs)
        return AloneForward(out_BTND=results(self.bound, forward)[0], inputs=inputs, forward=forward)

    def _differentiate(self, forward: AloneForward, dout_BTND: Tensor) -> Grads:
        assert forward.forward is not None
        dout = self.bound.load_dout(dout_BTND)
        return self.bound.canonical_grads(self.bound.backward(forward.inputs, forward.forward, dout))
