"""Slices to the ranges of flex-flash-attention (MagiAttention): its own description, one range pair per slice. Pure.

Types and corners of AttnSlices are its own: 0 full, 1 causal (bottom-right), 2 inverse causal (top-left), 3 both
(docstring of magi_attention.functional.flex_flash_attn_func, 1.1.1). Slices that continue each other are joined, and
empty ones dropped, so that it has as few ranges as the mask needs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnspec.slices import AttnSlices, merge


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FfaRanges:
    """q_ranges, k_ranges int32 (n, 2), types int32 (n,), over batch rows one after another.

    q_disjoint: no two ranges of queries meet, so that no output is reduced over ranges.
    """

    q_ranges: NDArray[np.int32]
    k_ranges: NDArray[np.int32]
    types: NDArray[np.int32]
    q_disjoint: bool


def ffa_ranges(slices: AttnSlices, batch: int = 1) -> FfaRanges:
    """The ranges of disjoint slices, repeated for every batch row.

    >>> made = ffa_ranges(AttnSlices.from_rows([(0, 2, 0, 3, 1)], seqlen_q=2, seqlen_k=3), batch=2)
    >>> made.q_ranges.tolist(), made.k_ranges.tolist(), made.types.tolist(), made.q_disjoint
    ([[0, 2], [2, 4]], [[0, 3], [3, 6]], [1, 1], True)
    """
    held = merge(slices)
    row = np.repeat(np.arange(batch), len(held))[:, None]
    q_ranges = np.tile(held.ranges[:, :2], (batch, 1)) + row * slices.seqlen_q
    k_ranges = np.tile(held.ranges[:, 2:], (batch, 1)) + row * slices.seqlen_k
    order = np.argsort(q_ranges[:, 0], kind="stable")
    starts, ends = q_ranges[order].T
    return FfaRanges(
        q_ranges=q_ranges.astype(np.int32),
        k_ranges=k_ranges.astype(np.int32),
        types=np.tile(held.types, batch).astype(np.int32),
        q_disjoint=bool((starts[1:] >= ends[:-1]).all()),
    )
