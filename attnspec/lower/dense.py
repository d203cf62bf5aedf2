"""Slices for a call that takes a dense mask, or that takes one plain rectangle. Pure.

The dense mask itself is built on the device from the intervals, since a copy of seqlen_q x seqlen_k cells from the host
would take longer than the attention.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnspec.lower.intervals import IntervalMask, interval_mask
from attnspec.slices import AttnSlices, SliceType, merge


@dataclass(frozen=True, slots=True, kw_only=True)
class Rectangle:
    """One rectangle of queries and keys; all other rows see nothing.

    causal: bottom-right aligned, k - k_end <= q - q_end, and no row of the rectangle is empty (rows <= keys).
    """

    q_start: int
    q_end: int
    k_start: int
    k_end: int
    causal: bool

    @property
    def num_rows(self) -> int:
        """Queries of the rectangle."""
        return self.q_end - self.q_start

    @property
    def num_keys(self) -> int:
        """Keys of the rectangle."""
        return self.k_end - self.k_start

    @property
    def square(self) -> bool:
        """Whether top-left and bottom-right alignment mean the same."""
        return self.num_rows == self.num_keys


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DenseMask:
    """A mask as intervals, and which rows see no key: bool (seqlen_q,), None when every row sees one."""

    intervals: IntervalMask
    empty_rows: NDArray[np.bool_] | None


def rectangle(slices: AttnSlices) -> Rectangle | None:
    """The slices as one full or causal rectangle, or None. Empty rows at its top are cut off.

    >>> rectangle(AttnSlices.from_rows([(0, 5, 0, 2, 1)], seqlen_q=5, seqlen_k=2))
    Rectangle(q_start=3, q_end=5, k_start=0, k_end=2, causal=True)
    >>> rectangle(AttnSlices.from_rows([(0, 2, 0, 2, 2)], seqlen_q=2, seqlen_k=2)) is None
    True
    """
    held = merge(slices)
    if len(held) != 1:
        return None
    q_start, q_end, k_start, k_end = map(int, held.ranges[0])
    kind = SliceType(int(held.types[0]))
    if kind is SliceType.CAUSAL:
        q_start = max(q_start, q_end - (k_end - k_start))
        # A single row that sees every key is a full rectangle, whatever its type says.
        return Rectangle(q_start=q_start, q_end=q_end, k_start=k_start, k_end=k_end, causal=q_end - q_start > 1)
    if kind is SliceType.FULL or q_end - q_start == 1:
        return Rectangle(q_start=q_start, q_end=q_end, k_start=k_start, k_end=k_end, causal=False)
    return None


def dense_mask(slices: AttnSlices) -> DenseMask:
    """The slices as intervals, with the rows that see nothing.

    >>> dense_mask(AttnSlices.from_rows([(0, 5, 0, 2, 1)], seqlen_q=5, seqlen_k=2)).empty_rows.tolist()
    [True, True, True, False, False]
    """
    intervals = interval_mask(slices)
    empty = np.ones(slices.seqlen_q, dtype=np.bool_)
    for lo, hi in zip(intervals.lo, intervals.hi, strict=True):
        empty &= lo >= hi
    return DenseMask(intervals=intervals, empty_rows=empty if empty.any() else None)
