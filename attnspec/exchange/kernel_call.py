"""One call of a kernel on the tokens that it needs of those at hand. Shape suffixes as in attnspec.support.bound."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from attnspec.errors import UnsupportedError
from attnspec.shape import Shape
from attnspec.sharding.calls import Call
from attnspec.slices import AttnSlices
from attnspec.support import BoundKernel, Forward

Bind = Callable[[Shape, AttnSlices], BoundKernel]
"""Lowers and binds the case's kernel for a part of the mask. Raises UnsupportedError where it cannot."""


@dataclass(slots=True, kw_only=True)
class KernelCall:
    """A bound kernel, and the queries and keys that it gets of all slots. whole: it gets all queries."""

    bound: BoundKernel
    rows: slice
    keys: slice
    whole: bool
    all_keys: bool

    @classmethod
    def of(cls, bind: Bind, shape: Shape, call: Call, num_slots_q: int, num_slots_k: int) -> KernelCall:
        """Bind the kernel for a call."""
        return cls(
            bound=bind(shape, call.slices),
            rows=slice(call.q_start, call.q_end),
            keys=slice(call.k_start, call.k_end),
            whole=(call.q_start, call.q_end) == (0, num_slots_q),
            all_keys=(call.k_start, call.k_end) == (0, num_slots_k),
        )

    def inputs(self, q_BTND: Tensor, kv: Tensor) -> Any:
        """The kernel's inputs; kv is K and V stacked, (2, B, S, G, D)."""
        return self.bound.load(self._rows_of(q_BTND), self._keys_of(kv[0]), self._keys_of(kv[1]))

    def partial(self, forward: Forward) -> tuple[Tensor, Tensor]:
        """(out_BTND, lse_BTN) of its rows, as `merge_partials` takes them."""
        out_BTND, lse_BTN = results(self.bound, forward)
        if lse_BTN is None:
            raise UnsupportedError(
                "no_lowering", "partial results are merged by their log-sum-exp, and this kernel returns none"
            )
        return out_BTND, lse_BTN

    def backward(
        self, q_BTND: Tensor, kv: Tensor, out_BTND: Tensor, lse_BNT: Tensor, dout_BTND: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(dq of its rows, dk and dv of its keys) from the merged out and lse of all slots."""
        return self.backward_of_rows(
            q_BTND, kv, out_BTND, lse_BNT if self.whole else lse_BNT[..., self.rows], dout_BTND
        )

    def backward_of_rows(
        self, q_BTND: Tensor, kv: Tensor, out_BTND: Tensor, lse_BNR: Tensor, dout_BTND: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The same from the lse of its rows alone."""
        forward = self.bound.load_forward(self._rows_of(out_BTND), lse_BNR)
        dout = self.bound.load_dout(self._rows_of(dout_BTND))
        return self.bound.canonical_grads(self.bound.backward(self.inputs(q_BTND, kv), forward, dout))

    def _rows_of(self, part_BTND: Tensor) -> Tensor:
        return part_BTND if self.whole else part_BTND[:, self.rows]

    def _keys_of(self, part_BSGD: Tensor) -> Tensor:
        return part_BSGD if self.all_keys else part_BSGD[:, self.keys]


def require_explicit(bound: Iterable[BoundKernel], *, needs_backward: bool) -> None:
    """Raise UnsupportedError unless the kernels can go backward from merged results."""
    if needs_backward and not all(one.explicit_backward for one in bound):
        raise UnsupportedError(
            "direction",
            "the backward starts from merged or gathered results, and this kernel has none from a given output and "
            "log-sum-exp; ulysses needs none",
        )


def results(bound: BoundKernel, forward: Forward) -> tuple[Tensor, Tensor | None]:
    """(out_BTND, lse_BTN or None), without copies where the kernel has a `partial` method.

    That lse may hold +inf on rows without keys.
    """
    made = getattr(bound, "partial", None)
    if made is not None:
        out_BTND, lse_BTN = made(forward)
        return out_BTND, lse_BTN
    out_BTND, lse_BNT = bound.canonical_out(forward)
    return out_BTND.detach(), None if lse_BNT is None else lse_BNT.detach().transpose(1, 2)
