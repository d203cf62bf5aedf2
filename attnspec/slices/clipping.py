"""Cutting slices to rectangles and to the pieces of the sequence that a rank holds. Pure, vectorised.

A slice cut by a rectangle is at most 1 (full), 2 (causal, inv_causal) or 3 (bi_causal) slices: a sloped edge is flat
where it lies outside the rectangle, so rows are cut where an edge enters or leaves it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attnspec.errors import InputError
from attnspec.slices.edges import Edges, IntArray, edges
from attnspec.slices.table import AttnSlices


def clip(slices: AttnSlices, q_start: int, q_end: int, k_start: int, k_end: int, *, shift: bool = False) -> AttnSlices:
    """The part of a mask inside the rectangle [q_start, q_end) x [k_start, k_end), without empty slices.

    The rectangle may reach outside the sequence, where nothing is allowed. With `shift` coordinates start at the
    rectangle's corner and its size is the new seqlen_q and seqlen_k; otherwise both stay as they are.

    >>> causal = AttnSlices.from_rows([(0, 8, 0, 8, 1)], seqlen_q=8, seqlen_k=8)
    >>> [(*row[:4], row[4].name) for row in clip(causal, 2, 8, 0, 4).rows()]
    [(2, 3, 0, 3, 'CAUSAL'), (3, 8, 0, 4, 'FULL')]
    """
    if q_start > q_end or k_start > k_end:
        raise InputError(f"rectangle [{q_start}, {q_end}) x [{k_start}, {k_end}) ends before it starts")
    made = edges(slices)
    which = np.arange(len(made), dtype=np.int64)
    corners = (np.full(len(made), corner, dtype=np.int64) for corner in (q_start, q_end, k_start, k_end))
    ranges, types, _ = _cut(made, which, *corners)
    if not shift:
        return AttnSlices(ranges=ranges, types=types, seqlen_q=slices.seqlen_q, seqlen_k=slices.seqlen_k)
    moved = ranges - np.array([q_start, q_start, k_start, k_start], dtype=np.int64)
    return AttnSlices(ranges=moved, types=types, seqlen_q=q_end - q_start, seqlen_k=k_end - k_start)


def _cut(
    made: Edges, which: IntArray, q_start: IntArray, q_end: IntArray, k_start: IntArray, k_end: IntArray
) -> tuple[IntArray, NDArray[np.int8], IntArray]:
    """Trapezoids `which`, each cut to its own rectangle: ranges, types, and the number of the pair they come from."""
    base, lo, hi = made.q_start[which], made.lo[which], made.hi[which]
    lo_slope, hi_slope = made.lo_slope[which] == 1, made.hi_slope[which] == 1
    first = np.maximum(base, q_start)
    end = np.minimum(made.q_end[which], q_end)
    # Rows whose keys miss the rectangle go: their end is not past k_start, or their start not before k_end.
    first = np.where(hi_slope, np.maximum(first, base + k_start - hi + 1), first)
    end = np.where(lo_slope, np.minimum(end, base + k_end - lo), end)
    alive = (first < end) & (k_start < k_end) & (lo_slope | (lo < k_end)) & (hi_slope | (hi > k_start))
    # The start slopes from row `lo_cut` on, the end before row `hi_cut`. The row on which an edge meets the rectangle's
    # side fits both forms; it joins the flat rows where there are any, so that no piece of one row is left over.
    lo_meet = base + k_start - lo
    lo_cut = np.where(lo_slope, np.where(lo_meet <= first, first, np.minimum(lo_meet + 1, end)), end)
    hi_meet = base + k_end - hi
    hi_cut = np.where(hi_slope, np.where(hi_meet >= end - 1, end, np.maximum(hi_meet, first)), first)
    low, high = np.minimum(lo_cut, hi_cut), np.maximum(lo_cut, hi_cut)
    starts = np.stack([first, low, high], axis=1)[alive]
    ends = np.stack([low, high, end], axis=1)[alive]
    pair, part = np.nonzero(starts < ends)
    origin = np.flatnonzero(alive)[pair]
    s, e = starts[pair, part], ends[pair, part]
    lo_now, hi_now = s >= lo_cut[origin], s < hi_cut[origin]
    lo_moved = lo[origin] + np.where(lo_slope[origin], s - base[origin], 0)
    hi_moved = hi[origin] + np.where(hi_slope[origin], e - 1 - base[origin], 0)
    ranges = np.stack([s, e, np.maximum(lo_moved, k_start[origin]), np.minimum(hi_moved, k_end[origin])], axis=1)
    return ranges, (lo_now * 2 + hi_now).astype(np.int8), origin
