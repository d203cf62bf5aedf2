"""ring_allgather: K and V gathered on all ranks, dK and dV reduced and scattered (Llama 3, Dubey et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass

from attnspec.shape import Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Parameters of the strategy: none."""


def check(params: Params, shape: Shape, cp_size: int) -> None:
    """Any heads on any number of ranks."""
