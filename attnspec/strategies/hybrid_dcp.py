"""hybrid_dcp: each document on a group of ranks of its own size (hybrid context parallelism of Megatron Core, 2025)."""

from __future__ import annotations

from dataclasses import dataclass

from attnspec.errors import UnsupportedError
from attnspec.params import param
from attnspec.shape import Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Parameters of the strategy."""

    tokens_per_rank: int | None = param(
        default=None,
        ge=1,
        tokens=True,
        doc="Most tokens of one document on a rank before its group doubles; without it seqlen / cp_size.",
    )


def check(params: Params, shape: Shape, cp_size: int) -> None:
    """Groups are powers of two, so the ranks must be one."""
    if cp_size & (cp_size - 1):
        below = 1 << (cp_size.bit_length() - 1)
        raise UnsupportedError(
            "mesh", f"groups of a power of two do not tile {cp_size} ranks; allowed cp_size: {below}, {2 * below}"
        )
