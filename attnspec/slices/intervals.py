"""Every query row as a few disjoint intervals of allowed keys. Pure, vectorised, memory proportional to rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnspec.errors import InputError
from attnspec.slices.bands import Bands, bands, cut
from attnspec.slices.edges import IntArray, edges
from attnspec.slices.table import AttnSlices

MAX_INTERVALS = 2**29


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowIntervals:
    """Allowed keys of n rows: lo and hi int64 (num_intervals, n), row j allows the union of [lo[i, j], hi[i, j]).

    Intervals of a row are disjoint, do not touch, and ascend with i; unused ones are empty (lo = hi = 0) and come last.
    rows: int64 (n,), which query each is.
    """

    rows: IntArray
    lo: IntArray
    hi: IntArray

    @property
    def num_intervals(self) -> int:
        """The most intervals that a row has; 0 when no row allows a key."""
        return len(self.lo)

    @property
    def counts(self) -> IntArray:
        """Allowed keys per row, int64 (n,)."""
        return np.asarray((self.hi - self.lo).sum(axis=0))


def joined_bands(slices: AttnSlices) -> Bands:
    """The rows between neighbouring starts and ends of disjoint slices; slices that touch on all of them are one item.

    >>> halves = AttnSlices.from_rows([(0, 4, 0, 2, 0), (0, 4, 2, 6, 1)], seqlen_q=4, seqlen_k=6)
    >>> made = joined_bands(halves)
    >>> made.lo.tolist(), made.hi.tolist(), made.hi_slope.tolist()
    ([0], [3], [1])
    """
    made = edges(slices)
    cuts = cut(made)
    _check_size(int(cuts.count.sum()), "pieces of slices between row boundaries")
    return _joined(bands(made, cuts))


def row_intervals(slices: AttnSlices, rows: IntArray | None = None) -> RowIntervals:
    """The allowed keys of all query rows, or of `rows` (any order), as maximal intervals.

    The slices must be disjoint (`attnspec.slices.check`). Raises InputError when more than 2**29 intervals would have
    to be held, which needs thousands of separate intervals per row.

    >>> window = AttnSlices.from_rows([(0, 3, 0, 3, 1), (3, 6, 1, 6, 3)], seqlen_q=6, seqlen_k=6)
    >>> made = row_intervals(window)
    >>> made.lo.tolist(), made.hi.tolist()
    ([[0, 0, 0, 1, 2, 3]], [[1, 2, 3, 4, 5, 6]])
    """
    wanted = np.arange(slices.seqlen_q, dtype=np.int64) if rows is None else np.asarray(rows, dtype=np.int64)
    held = joined_bands(slices)
    if len(held.band) == 0 or len(wanted) == 0:
        empty = np.zeros((0, len(wanted)), dtype=np.int64)
        return RowIntervals(rows=wanted, lo=empty, hi=empty)
    band = np.searchsorted(held.q_start, wanted, side="right") - 1
    inside = (band >= 0) & (wanted < held.q_end[-1])
    band = np.where(inside, band, 0)
    counts = np.where(inside, np.diff(held.offsets)[band], 0)
    width = int(counts.max())
    _check_size(width * len(wanted), f"intervals, up to {width} in each of {len(wanted)} rows")
    lo = np.zeros((width, len(wanted)), dtype=np.int64)
    hi = np.zeros_like(lo)
    for place in range(width):
        has = np.flatnonzero(counts > place)
        item = held.offsets[band[has]] + place
        step = wanted[has] - held.q_start[band[has]]
        lo[place, has] = held.lo[item] + held.lo_slope[item] * step
        hi[place, has] = held.hi[item] + held.hi_slope[item] * step
    lo, hi = _merged(lo, hi)
    return RowIntervals(rows=wanted, lo=lo, hi=hi)


def _check_size(count: int, what: str) -> None:
    if count > MAX_INTERVALS:
        raise InputError(f"too many slices side by side: {count} {what}; at most 2**29")


def _joined(held: Bands) -> Bands:
    """Neighbours that touch on every row of their band become one item."""
    length = (held.q_end - held.q_start - 1)[held.band]
    last_lo, last_hi = held.lo + held.lo_slope * length, held.hi + held.hi_slope * length
    touches = (held.band[1:] == held.band[:-1]) & (held.hi[:-1] == held.lo[1:]) & (last_hi[:-1] == last_lo[1:])
    starts = np.concatenate([[True], ~touches])[: len(held.band)]
    ends = np.concatenate([~touches, [True]])[: len(held.band)]
    return Bands(
        q_start=held.q_start,
        q_end=held.q_end,
        offsets=np.searchsorted(held.band[starts], np.arange(len(held.offsets))),
        band=held.band[starts],
        which=held.which[starts],
        lo=held.lo[starts],
        hi=held.hi[ends],
        lo_slope=held.lo_slope[starts],
        hi_slope=held.hi_slope[ends],
    )


def _merged(lo: IntArray, hi: IntArray) -> tuple[IntArray, IntArray]:
    """Join intervals of a row that touch on that row only."""
    used = hi > lo
    joins = used[1:] & (hi[:-1] == lo[1:])
    if not joins.any():
        return lo, hi
    starts, ends = used.copy(), used.copy()
    starts[1:] &= ~joins
    ends[:-1] &= ~joins
    place = np.cumsum(starts, axis=0) - 1
    width = int(place.max()) + 1
    merged_lo = np.zeros((width, lo.shape[1]), dtype=np.int64)
    merged_hi = np.zeros_like(merged_lo)
    at = np.nonzero(starts)
    merged_lo[place[at], at[1]] = lo[at]
    at = np.nonzero(ends)
    merged_hi[place[at], at[1]] = hi[at]
    return merged_lo, merged_hi
