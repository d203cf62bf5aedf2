"""ulysses: all-to-all from sequence shards to head shards and back (DeepSpeed-Ulysses, Jacobs et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass

from attnspec.shape import Shape
from attnspec.sharding.mesh import check_heads, head_degrees


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Parameters of the strategy: none."""


def check(params: Params, shape: Shape, cp_size: int) -> None:
    """Heads must split over the ranks."""
    sizes = head_degrees(shape, shape.num_heads_q)
    check_heads(shape, cp_size, f"allowed cp_size: {', '.join(map(str, sizes))}")
