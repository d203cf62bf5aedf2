"""Kernels whose libraries take canonical tensors and give them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnspec.kernels._calls import Grads
from attnspec.support import Forward

if TYPE_CHECKING:
    from torch import Tensor


class CanonicalKernel:
    """All of a BoundKernel but `forward`, `backward`, `backend` and `expected_kernels`. lse (B, N, T), float32."""

    explicit_backward = True
    frees_graph = False

    def load(self, q_BTND: Tensor, k_BSGD: Tensor, v_BSGD: Tensor) -> Grads:
        """As they are."""
        return q_BTND, k_BSGD, v_BSGD

    def load_dout(self, dout_BTND: Tensor) -> Tensor:
        """As it is."""
        return dout_BTND

    def load_forward(self, out_BTND: Tensor, lse_BNT: Tensor) -> Forward:
        """As they are."""
        return Forward(out=out_BTND, lse=lse_BNT.float().contiguous())

    def canonical_out(self, forward: Forward) -> tuple[Tensor, Tensor | None]:
        """Contiguous."""
        assert forward.lse is not None
        return forward.out.contiguous(), forward.lse.contiguous()

    def canonical_grads(self, grads: Grads) -> Grads:
        """Contiguous."""
        dq, dk, dv = (part.contiguous() for part in grads)
        return dq, dk, dv
