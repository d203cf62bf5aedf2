"""Row intervals as 1-D arrays: what an arithmetic mask (`mask_mod`) reads. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
