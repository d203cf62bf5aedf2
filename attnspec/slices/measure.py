"""How many cells slices allow: in all, per query row, per key column. Pure, exact, nothing of size S x S."""

from __future__ import annotations

import numpy as np

from attnspec.errors import InputError
from attnspec.slices.edges import IntArray, edges
from attnspec.slices.table import AttnSlices, SliceType

_MAX = 2**63 - 1
_CHUNK = 1 << 14  # What fits a processor's cache: twice as fast as all at once.


def area(slices: AttnSlices) -> int:
    """MaskArea: the exact number of allowed cells. Raises InputError when it does not fit in int64.

    With n = min(rows, keys) of a slice: full rows keys; causal and inv_causal n keys - n(n-1)/2; bi_causal
    rows max(keys - rows + 1, 0).

    >>> area(AttnSlices.from_rows([(0, 3, 0, 3, 1), (3, 6, 1, 6, 3)], seqlen_q=6, seqlen_k=6))
    15
    """
    total = 0
    for start in range(0, len(slices), _CHUNK):
        ranges, types = slices.ranges[start : start + _CHUNK], slices.types[start : start + _CHUNK]
        num_rows, num_keys = ranges[:, 1] - ranges[:, 0], ranges[:, 3] - ranges[:, 2]
        if float(num_rows.max()) * float(num_keys.max()) * len(types) >= 2.0**61:
            # A sum in int64 could wrap in silence; Python's integers do not.
            num_rows, num_keys = num_rows.astype(object), num_keys.astype(object)
        for kind in SliceType:
            chosen = np.flatnonzero(types == kind)  # Indices gather faster than a random boolean mask.
            if len(chosen) == len(types):
                total += _area(kind, num_rows, num_keys)
            elif len(chosen):
                total += _area(kind, num_rows[chosen], num_keys[chosen])
    if total > _MAX:
        raise InputError(f"the mask allows {total} cells, more than int64 holds ({_MAX}); use a smaller seqlen")
    return total


def _area(kind: SliceType, num_rows: IntArray, num_keys: IntArray) -> int:
    """Cells of slices of one type."""
    if kind == SliceType.FULL:
        return int((num_rows * num_keys).sum())
    if kind == SliceType.BI_CAUSAL:
        return int((num_rows * np.maximum(num_keys - num_rows + 1, 0)).sum())
    n = np.minimum(num_rows, num_keys)
    return int((n * (2 * num_keys - n + 1)).sum()) // 2


def row_counts(slices: AttnSlices) -> IntArray:
    """Allowed keys of every query row, int64 (seqlen_q,), in time proportional to slices and rows.

    >>> row_counts(AttnSlices.from_rows([(0, 3, 0, 3, 1), (3, 6, 1, 6, 3)], seqlen_q=6, seqlen_k=6)).tolist()
    [1, 2, 3, 3, 3, 3]
    """
    made = edges(slices)
    count = made.hi - made.lo
    slope = made.hi_slope - made.lo_slope
    steps = np.zeros(slices.seqlen_q + 1, dtype=np.int64)
    slopes = np.zeros(slices.seqlen_q + 1, dtype=np.int64)
    np.add.at(steps, made.q_start, count - slope)
    np.add.at(steps, made.q_end, -(count + slope * (made.q_end - 1 - made.q_start)))
    np.add.at(slopes, made.q_start, slope)
    np.add.at(slopes, made.q_end, -slope)
    return np.cumsum(steps + np.cumsum(slopes))[: slices.seqlen_q]


def column_counts(slices: AttnSlices) -> IntArray:
    """Queries that may see each key, int64 (seqlen_k,), in time proportional to slices and keys.

    Of one trapezoid, column k is seen by the rows whose keys start at or before k, less those whose keys end there.

    >>> column_counts(AttnSlices.from_rows([(0, 3, 0, 3, 1), (3, 6, 1, 6, 3)], seqlen_q=6, seqlen_k=6)).tolist()
    [3, 3, 3, 3, 2, 1]
    """
    made = edges(slices)
    num_rows = made.q_end - made.q_start
    steps = np.zeros(slices.seqlen_k + 2, dtype=np.int64)
    slopes = np.zeros(slices.seqlen_k + 2, dtype=np.int64)
    for edge, sloped, sign in ((made.lo, made.lo_slope == 1, 1), (made.hi, made.hi_slope == 1, -1)):
        np.add.at(steps, edge[~sloped], sign * num_rows[~sloped])
        np.add.at(slopes, edge[sloped], sign)
        np.add.at(slopes, (edge + num_rows)[sloped], -sign)
    return np.cumsum(steps + np.cumsum(slopes))[: slices.seqlen_k]
