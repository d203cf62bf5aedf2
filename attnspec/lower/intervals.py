"""Masks as arithmetic: row intervals as 1-D arrays, or one band between two diagonals. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnspec.lower.segments import single
from attnspec.slices import AttnSlices, row_intervals


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IntervalMask:
    """Query q sees key k where (k >= lo[i][q]) & (k < hi[i][q]) for some i.

    lo, hi: tuples of contiguous int32 arrays (seqlen_q,), at least one pair. Separate arrays, since compilers that
    recognise interval masks want 1-D tensors indexed by the query alone.
    """

    lo: tuple[NDArray[np.int32], ...]
    hi: tuple[NDArray[np.int32], ...]


def interval_mask(slices: AttnSlices) -> IntervalMask:
    """The fewest interval pairs that express the slices: one for most masks, two where a row has a gap.

    >>> made = interval_mask(AttnSlices.from_rows([(0, 2, 0, 3, 1)], seqlen_q=2, seqlen_k=3))
    >>> [part.tolist() for part in (*made.lo, *made.hi)]
    [[0, 0], [2, 3]]
    """
    made = row_intervals(slices)
    if made.num_intervals == 0:
        nothing = np.zeros(slices.seqlen_q, dtype=np.int32)
        return IntervalMask(lo=(nothing,), hi=(nothing,))
    return IntervalMask(
        lo=tuple(np.ascontiguousarray(row, dtype=np.int32) for row in made.lo),
        hi=tuple(np.ascontiguousarray(row, dtype=np.int32) for row in made.hi),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Query q sees key k where k_start <= k < k_end and lower <= k - q <= upper; None is no bound."""

    k_start: int | None = None
    k_end: int | None = None
    lower: int | None = None
    upper: int | None = None


def band(slices: AttnSlices) -> Band | None:
    """The whole mask as one band, in the fewest comparisons, or None: full, causal and sliding windows are bands.

    >>> band(AttnSlices.from_rows([(0, 2, 0, 3, 1)], seqlen_q=2, seqlen_k=3))
    Band(k_start=None, k_end=None, lower=None, upper=1)
    >>> band(AttnSlices.from_rows([(0, 2, 0, 2, 0), (2, 4, 2, 4, 0)], seqlen_q=4, seqlen_k=4)) is None
    True
    """
    one = single(slices)
    if one is None:
        return None
    # Rows above and below the segment see nothing only where a diagonal has left the keys by then.
    above = one.q_start == 0 or (one.upper is not None and one.q_start + one.upper <= one.k_start)
    below = one.q_end == slices.seqlen_q or (one.lower is not None and one.q_end - 1 + one.lower >= one.k_end - 1)
    if not (above and below):
        return None
    return Band(
        k_start=one.k_start if one.k_start > 0 else None,
        k_end=one.k_end if one.k_end < slices.seqlen_k else None,
        lower=one.lower,
        upper=one.upper,
    )
