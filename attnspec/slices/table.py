"""AttnSlices: the only description of a mask. Pure; numpy only.

A slice (q_start, q_end, k_start, k_end, type) allows cells of its rectangle, half-open, zero-based:
full: all; causal (bottom-right): k - k_end <= q - q_end; inv_causal (top-left): k - k_start >= q - q_start;
bi_causal: both. Numbering and corners are those of flex-flash-attention (MagiAttention).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class SliceType(IntEnum):
    """Which corner or corners of the rectangle are cut."""

    FULL = 0
    CAUSAL = 1
    INV_CAUSAL = 2
    BI_CAUSAL = 3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttnSlices:
    """A mask over seqlen_q queries and seqlen_k keys as n slices.

    ranges: int64 (n, 4), columns q_start, q_end, k_start, k_end. types: int8 (n,), values of SliceType.
    Allowed cells of different slices are disjoint; a slice may be empty (area 0).
    """

    ranges: NDArray[np.int64]
    types: NDArray[np.int8]
    seqlen_q: int
    seqlen_k: int

    @classmethod
    def from_rows(
        cls, rows: Iterable[tuple[int, int, int, int, SliceType | int]], *, seqlen_q: int, seqlen_k: int
    ) -> AttnSlices:
        """Build from rows (q_start, q_end, k_start, k_end, type) without checks; see `attnspec.slices.check`."""
        held = list(rows)
        ranges = np.array([row[:4] for row in held], dtype=np.int64).reshape(-1, 4)
        types = np.array([int(row[4]) for row in held], dtype=np.int8)
        return cls(ranges=ranges, types=types, seqlen_q=seqlen_q, seqlen_k=seqlen_k)

    def __len__(self) -> int:
        return len(self.types)

    def rows(self) -> list[tuple[int, int, int, int, SliceType]]:
        """The slices as Python rows."""
        held = zip(self.ranges.tolist(), self.types.tolist(), strict=True)
        return [(q_start, q_end, k_start, k_end, SliceType(kind)) for (q_start, q_end, k_start, k_end), kind in held]
