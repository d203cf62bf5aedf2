"""Cutting slices to rectangles and to the pieces of the sequence that a rank holds. Pure, vectorised.

A slice cut by a rectangle is at most 1 (full), 2 (causal, inv_causal) or 3 (bi_causal) slices: a sloped edge is flat
where it lies outside the rectangle, so rows are cut where an edge enters or leaves it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attnspec.errors import InputError
from attnspec.slices.edges import Edges, IntArray, edges, expand
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


def take(slices: AttnSlices, q_pieces: IntArray, k_pieces: IntArray, *, seqlen_q: int, seqlen_k: int) -> AttnSlices:
    """The mask between the queries and the keys that somebody holds, in the coordinates of what is held.

    q_pieces, k_pieces: int64 (n, 3) rows (start, end, place): tokens [start, end) of the sequence lie at `place` and
    after it. Pieces of one side are disjoint, in any order; places that no piece fills (padding) allow nothing.
    seqlen_q, seqlen_k: how many places there are. Time goes with the pairs of pieces that a slice touches, not with
    all pairs.

    >>> causal = AttnSlices.from_rows([(0, 8, 0, 8, 1)], seqlen_q=8, seqlen_k=8)
    >>> zigzag = np.array([[0, 2, 0], [6, 8, 2]])
    >>> [(*row[:4], row[4].name) for row in take(causal, zigzag, zigzag, seqlen_q=4, seqlen_k=4).rows()]
    [(0, 2, 0, 2, 'CAUSAL'), (2, 4, 0, 2, 'FULL'), (2, 4, 2, 4, 'CAUSAL')]
    """
    made = edges(slices)
    queries, keys = _joined(q_pieces), _joined(k_pieces)
    which = np.arange(len(made), dtype=np.int64)
    pair, q_piece = _meeting(queries, made.q_start, made.q_end)
    which = which[pair]
    first = np.maximum(made.q_start[which], queries[q_piece, 0])
    last = np.minimum(made.q_end[which], queries[q_piece, 1]) - 1
    pair, k_piece = _meeting(keys, made.lo_at(which, first), made.hi_at(which, last))
    which, q_piece = which[pair], q_piece[pair]
    q_start, q_end, q_place = queries[q_piece].T
    k_start, k_end, k_place = keys[k_piece].T
    ranges, types, origin = _cut(made, which, q_start, q_end, k_start, k_end)
    moves = np.stack([q_place - q_start, k_place - k_start], axis=1)[origin]
    return AttnSlices(ranges=ranges + np.repeat(moves, 2, axis=1), types=types, seqlen_q=seqlen_q, seqlen_k=seqlen_k)


def _joined(pieces: IntArray) -> IntArray:
    """Pieces sorted by start, without empty ones, those joined that go on in the sequence and in place alike."""
    held = np.asarray(pieces, dtype=np.int64).reshape(-1, 3)
    held = held[held[:, 0] < held[:, 1]]
    held = held[np.argsort(held[:, 0], kind="stable")]
    assert (held[1:, 0] >= held[:-1, 1]).all(), "pieces overlap"
    moves = held[:, 2] - held[:, 0]
    goes_on = (held[1:, 0] == held[:-1, 1]) & (moves[1:] == moves[:-1])
    starts = np.concatenate([[True], ~goes_on])[: len(held)]
    ends = np.concatenate([~goes_on, [True]])[: len(held)]
    return np.stack([held[starts, 0], held[ends, 1], held[starts, 2]], axis=1)


def _meeting(pieces: IntArray, start: IntArray, end: IntArray) -> tuple[IntArray, IntArray]:
    """Pairs (number of an interval [start, end), number of a piece) that share a token."""
    first = np.searchsorted(pieces[:, 1], start, side="right")
    beyond = np.searchsorted(pieces[:, 0], end, side="left")
    interval, step = expand(np.maximum(beyond - first, 0))
    return interval, first[interval] + step


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
