"""Slices for a call that takes a dense mask, or that takes one plain rectangle. Pure.

The dense mask itself is built on the device from the intervals, since a copy of seqlen_q x seqlen_k cells from the host
would take longer than the attention.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnspec.lower.intervals import IntervalMask, interval_mask
from attnspec.lower.segments import single
from attnspec.slices import AttnSlices


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
    """The slices together as one full or causal rectangle, or None. Empty rows at its top are cut off.

    >>> rectangle(AttnSlices.from_rows([(0, 5, 0, 2, 1)], seqlen_q=5, seqlen_k=2))
    Rectangle(q_start=3, q_end=5, k_start=0, k_end=2, causal=True)
    >>> rectangle(AttnSlices.from_rows([(0, 2, 0, 2, 2)], seqlen_q=2, seqlen_k=2)) is None
    True
    """
    one = single(slices)
    if one is None or one.lower is not None:
        return None
    # A causal rectangle ends on its diagonal; behind a diagonal that reaches the last key earlier comes a full one.
    if one.upper is not None and one.q_end - 1 + one.upper != one.k_end - 1:
        return None
    return Rectangle(
        q_start=one.q_start, q_end=one.q_end, k_start=one.k_start, k_end=one.k_end, causal=one.upper is not None
    )


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
