"""What ffa and ffa_fa4 share: MagiAttention as a provider, its modules, and packed tokens in and out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from attnspec.errors import UnsupportedError
from attnspec.support import Forward, Provider

if TYPE_CHECKING:
    from torch import Tensor

Grads = tuple["Tensor", "Tensor", "Tensor"]


def magi_provider(how: str) -> Provider:
    """MagiAttention; how: what to do with its tag. The package index has an empty placeholder, 0.0.1, that imports."""
    return Provider(
        name="magi-attention",
        distribution="magi-attention",
        module="magi_attention",
        requires=">=1.1",
        fix=(
            "the package index has an empty placeholder only: build tag v1.1.1 of github.com/SandAI-org/MagiAttention "
            f"with {how}"
        ),
    )


def load_module(name: str, fix: str) -> Any:
    """magi_attention.functional.`name`; raises UnsupportedError for the placeholder of the package index."""
    import importlib

    package = importlib.import_module("magi_attention")
    try:
        return importlib.import_module(f"magi_attention.functional.{name}")
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("magi_attention."):
            raise
        where = getattr(package, "__file__", None)
        raise UnsupportedError("broken_package", f"magi_attention at {where} has no {error.name}; {fix}") from error


class PackedTokens:
    """Half a BoundKernel: tensors are (B T, heads, D), lse is (B T, N). An empty mask is to call nothing."""

    explicit_backward = True
    frees_graph = False
    backend = None

    def __init__(self, batch: int) -> None:
        self._batch = batch

    def load(self, q_BTND: Tensor, k_BSGD: Tensor, v_BSGD: Tensor) -> Grads:
        """Packed tokens."""
        return q_BTND.flatten(0, 1), k_BSGD.flatten(0, 1), v_BSGD.flatten(0, 1)

    def load_dout(self, dout_BTND: Tensor) -> Tensor:
        """Packed tokens."""
        return dout_BTND.flatten(0, 1)

    def partial(self, forward: Forward) -> tuple[Tensor, Tensor]:
        """(out_BTND, lse_BTN) as the library left them."""
        assert forward.lse is not None
        return self._batched(forward.out), forward.lse.view(self._batch, -1, forward.lse.shape[1])

    def canonical_out(self, forward: Forward) -> tuple[Tensor, Tensor]:
        """With the batch; lse_BNT."""
        assert forward.lse is not None
        lse_BTN = forward.lse.reshape(self._batch, -1, forward.lse.shape[1])
        return self._batched(forward.out), lse_BTN.transpose(1, 2).contiguous()

    def canonical_grads(self, grads: Grads) -> Grads:
        """With the batch."""
        dq, dk, dv = map(self._batched, grads)
        return dq, dk, dv

    def _batched(self, part: Tensor) -> Tensor:
        return part.view(self._batch, -1, *part.shape[1:]).contiguous()


def nothing_seen(q: Tensor) -> Forward:
    """The forward of an empty mask."""
    import torch

    lse = torch.full(q.shape[:2], -math.inf, dtype=torch.float32, device=q.device)
    return Forward(out=torch.zeros_like(q), lse=lse)


def no_grads(inputs: Grads) -> Grads:
    """The backward of an empty mask."""
    import torch

    dq, dk, dv = map(torch.zeros_like, inputs)
    return dq, dk, dv
