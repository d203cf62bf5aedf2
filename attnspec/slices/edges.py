"""Slices as trapezoids: on each of its rows a slice allows one interval of keys whose two ends have slope 0 or 1. Pure.

Every exact algorithm over slices (bands, overlap, clipping, block masks) works on this form.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnspec.slices.table import AttnSlices

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Edges:
    """m trapezoids, int64 arrays of length m, one for each slice that allows a cell; rows without keys are cut off.

    On row q in [q_start, q_end) the allowed keys are [lo + lo_slope (q - q_start), hi + hi_slope (q - q_start)), never
    empty. index: which slice of the table it is.
    """

    index: IntArray
    q_start: IntArray
    q_end: IntArray
    lo: IntArray
    hi: IntArray
    lo_slope: IntArray
    hi_slope: IntArray

    def __len__(self) -> int:
        return len(self.index)

    def lo_at(self, which: IntArray, rows: IntArray) -> IntArray:
        """First allowed key of trapezoids `which` on `rows`."""
        return self.lo[which] + self.lo_slope[which] * (rows - self.q_start[which])

    def hi_at(self, which: IntArray, rows: IntArray) -> IntArray:
        """End of the allowed keys of trapezoids `which` on `rows`."""
        return self.hi[which] + self.hi_slope[which] * (rows - self.q_start[which])


def edges(slices: AttnSlices) -> Edges:
    """The trapezoids of all slices that allow at least one cell, in table order.

    >>> made = edges(AttnSlices.from_rows([(0, 5, 0, 2, 1)], seqlen_q=5, seqlen_k=2))
    >>> int(made.q_start[0]), int(made.q_end[0]), int(made.lo[0]), int(made.hi[0])
    (3, 5, 0, 1)
    """
    q0, q1, k0, k1 = slices.ranges.T
    lo_slope: IntArray = (slices.types.astype(np.int64) >> 1) & 1
    hi_slope: IntArray = slices.types.astype(np.int64) & 1
    num_rows, num_keys = q1 - q0, k1 - k0
    both = (lo_slope & hi_slope).astype(bool)
    first = np.where((hi_slope == 1) & ~both, np.maximum(q0, q1 - num_keys), q0)
    end = np.where((lo_slope == 1) & ~both, np.minimum(q1, q0 + num_keys), q1)
    kept = (first < end) & (num_keys > 0) & (~both | (num_keys >= num_rows))
    lo: IntArray = k0 + lo_slope * (first - q0)
    hi: IntArray = k1 - hi_slope * (q1 - 1 - first)
    return Edges(
        index=np.flatnonzero(kept),
        q_start=first[kept],
        q_end=end[kept],
        lo=lo[kept],
        hi=hi[kept],
        lo_slope=lo_slope[kept],
        hi_slope=hi_slope[kept],
    )


def expand(counts: IntArray) -> tuple[IntArray, IntArray]:
    """For each item repeated `counts` times: its number, and the number of the repetition.

    >>> [part.tolist() for part in expand(np.array([2, 0, 3]))]
    [[0, 0, 2, 2, 2], [0, 1, 0, 1, 2]]
    """
    item = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    starts = np.cumsum(counts) - counts
    return item, np.arange(len(item), dtype=np.int64) - starts[item]
