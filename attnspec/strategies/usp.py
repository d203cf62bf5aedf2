"""usp: Ulysses inside, rings across (USP, Fang and Zhao 2024)."""

from __future__ import annotations

from dataclasses import dataclass

from attnspec.params import param
from attnspec.shape import Shape
from attnspec.sharding.mesh import head_mesh


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Parameters of the strategy."""

    ulysses_degree: int | None = param(
        default=None, ge=1, doc="Ranks that share heads; without it the most that divide ranks and heads, up to 8."
    )


def check(params: Params, shape: Shape, cp_size: int) -> None:
    """The degree must divide the ranks, and heads must split over it."""
    head_mesh(shape, cp_size, params.ulysses_degree)
