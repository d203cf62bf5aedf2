"""ring_p2p: K and V go round a ring while all ranks compute (Ring Attention, Liu et al. 2023); zigzag per document."""

from __future__ import annotations

from dataclasses import dataclass

from attnspec.shape import Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Parameters of the strategy: none."""


def check(params: Params, shape: Shape, cp_size: int) -> None:
    """Any heads on any number of ranks."""
