"""Slices to the ranges of flex-flash-attention (MagiAttention): its own description, one range pair per slice. Pure.

Types and corners of AttnSlices are its own: 0 full, 1 causal (bottom-right), 2 inverse causal (top-left), 3 both
(docstring of magi_attention.functional.flex_flash_attn_func, 1.1.1). Slices that continue each other are joined, and
empty ones dropped, so that it has as few ranges as the mask needs. Those that touch in keys, as the pieces of a zigzag
do, are joined where that takes no more ranges: a row in one range alone needs no reduction of its output.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from attnspec.lower.segments import Segment, join, pieces_of_bands
from attnspec.slices import AttnSlices, edges, joined_bands, merge
from attnspec.slices.bands import cut

_MOST_PIECES = 2**17
"""Most parts of slices between row boundaries that are looked at; n slices may have as many as n squared."""


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
    if not _disjoint(held):
        joined = _joined_in_keys(held)
        if joined is not None and (len(joined), not _disjoint(joined)) < (len(held), True):
            held = joined
    row = np.repeat(np.arange(batch), len(held))[:, None]
    q_ranges = np.tile(held.ranges[:, :2], (batch, 1)) + row * slices.seqlen_q
    k_ranges = np.tile(held.ranges[:, 2:], (batch, 1)) + row * slices.seqlen_k
    return FfaRanges(
        q_ranges=q_ranges.astype(np.int32),
        k_ranges=k_ranges.astype(np.int32),
        types=np.tile(held.types, batch).astype(np.int32),
        q_disjoint=_disjoint(held),
    )


def _disjoint(slices: AttnSlices) -> bool:
    """Whether no two slices, sorted by q_start, meet in rows."""
    return bool((slices.ranges[1:, 0] >= slices.ranges[:-1, 1]).all())


def _joined_in_keys(slices: AttnSlices) -> AttnSlices | None:
    """The same mask with slices joined that touch in keys, too; None where there are too many to look at."""
    if cut(edges(slices)).count.sum() > _MOST_PIECES:
        return None
    segments = join(pieces_of_bands(joined_bands(slices)))
    rows = [row for segment in segments for row in _cut_at_corners(segment)]
    return merge(AttnSlices.from_rows(rows, seqlen_q=slices.seqlen_q, seqlen_k=slices.seqlen_k))


def _cut_at_corners(one: Segment) -> Iterator[tuple[int, int, int, int, int]]:
    """A segment as slices, each edge of which is flat or runs along a diagonal on all of its rows.

    The row on which an edge turns fits either side: a turn on the first or last row is none, and where the lower edge
    turns on the row where the upper one does, or on the row before, one cut does for both.
    """
    falls, rises = one.q_end, one.q_start  # the lower edge slopes from row `falls` on, the upper one before row `rises`
    if one.lower is not None and one.k_start - one.lower < one.q_end - 1:
        falls = one.k_start - one.lower
    if one.upper is not None and one.k_end - one.upper - 1 > one.q_start:
        rises = one.k_end - one.upper
    if falls > one.q_start and rises < one.q_end and rises - falls in (1, 2):
        falls, rises = rises - 1, rises - 1
    turns = sorted({one.q_start, falls, rises, one.q_end})
    for q_start, q_end in pairwise(turns):
        lower, upper = q_start >= falls, q_end <= rises
        k_start = max(one.k_start, q_start + one.lower) if one.lower is not None else one.k_start
        k_end = min(one.k_end, q_end + one.upper) if one.upper is not None else one.k_end
        yield q_start, q_end, k_start, k_end, 2 * lower + upper
