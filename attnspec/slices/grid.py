"""Allowed cells counted per block of a grid, exactly, in time proportional to the blocks that slices touch. Pure."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from attnspec.slices.edges import Edges, IntArray, edges, expand
from attnspec.slices.table import AttnSlices

_CHUNK = 1 << 20


def grid_counts(slices: AttnSlices, q_bounds: IntArray, k_bounds: IntArray) -> IntArray:
    """How many cells are allowed in every block of a grid, int64 (len(q_bounds) - 1, len(k_bounds) - 1).

    Block (i, j) is [q_bounds[i], q_bounds[i+1]) x [k_bounds[j], k_bounds[j+1]); bounds ascend. This is the dense
    picture at any resolution without the picture: 64M tokens cost what 64 do.

    >>> causal = AttnSlices.from_rows([(0, 6, 0, 6, 1)], seqlen_q=6, seqlen_k=6)
    >>> grid_counts(causal, np.array([0, 3, 6]), np.array([0, 3, 6])).tolist()
    [[6, 0], [9, 6]]
    """
    made = edges(slices)
    q_bounds, k_bounds = np.asarray(q_bounds, dtype=np.int64), np.asarray(k_bounds, dtype=np.int64)
    shape = (max(len(q_bounds) - 1, 0), max(len(k_bounds) - 1, 0))
    counts = np.zeros(shape[0] * shape[1], dtype=np.int64)
    if not counts.size:
        return counts.reshape(shape)
    first = np.maximum(np.searchsorted(q_bounds, made.q_start, side="right") - 1, 0)
    end = np.minimum(np.searchsorted(q_bounds, made.q_end, side="left"), shape[0])
    touched = np.maximum(end - first, 0)
    for some in _parts(touched):
        which, step = expand(touched[some])
        which = which + some.start
        _add(counts, made, which, first[which] + step, q_bounds, k_bounds)
    return counts.reshape(shape)


def _add(counts: IntArray, made: Edges, which: IntArray, row: IntArray, q_bounds: IntArray, k_bounds: IntArray) -> None:
    """Add the cells of trapezoids `which` on block rows `row`."""
    start = np.maximum(made.q_start[which], q_bounds[row])
    num_rows = np.minimum(made.q_end[which], q_bounds[row + 1]) - start
    lo, hi = made.lo_at(which, start), made.hi_at(which, start)
    num_columns = len(k_bounds) - 1
    last = hi + made.hi_slope[which] * (num_rows - 1)
    first = np.maximum(np.searchsorted(k_bounds, lo, side="right") - 1, 0)
    end = np.minimum(np.searchsorted(k_bounds, last, side="left"), num_columns)
    touched = np.maximum(end - first, 0)
    for some in _parts(touched):
        piece, step = expand(touched[some])
        piece = piece + some.start
        column = first[piece] + step
        low, high = k_bounds[column], k_bounds[column + 1]
        slopes = made.lo_slope[which[piece]], made.hi_slope[which[piece]]
        cells = _clamped(hi[piece], slopes[1], num_rows[piece], low, high)
        cells -= _clamped(lo[piece], slopes[0], num_rows[piece], low, high)
        np.add.at(counts, row[piece] * num_columns + column, cells)


def _clamped(value: IntArray, slope: IntArray, num_rows: IntArray, low: IntArray, high: IntArray) -> IntArray:
    """The sum over rows i of value + slope i clamped to [low, high], less low each, in closed form."""
    flat = num_rows * (np.clip(value, low, high) - low)
    below = np.clip(low - value, 0, num_rows)
    above = np.clip(value + num_rows - high, 0, num_rows)
    between = num_rows - below - above
    sloped = above * (high - low) + between * (value + below - low) + between * (between - 1) // 2
    return np.asarray(np.where(slope == 1, sloped, flat))


def _parts(counts: IntArray) -> list[slice]:
    """Runs of items whose counts sum to about a million, so that what is expanded at once stays small."""
    if not len(counts):
        return []
    group = np.cumsum(counts) // _CHUNK
    starts = np.concatenate([[0], np.flatnonzero(group[1:] != group[:-1]) + 1, [len(counts)]])
    return [slice(int(one), int(other)) for one, other in pairwise(starts)]
