"""Joining slices that continue each other, so that a mask has as few slices as it needs. Pure, vectorised."""

from __future__ import annotations

import numpy as np

from attnspec.slices.table import AttnSlices


def merge(slices: AttnSlices) -> AttnSlices:
    """The same mask with slices joined that have one type and straight common edges over neighbouring rows.

    Slices come back sorted by q_start, then k_start; those without rows or keys are dropped.

    >>> halves = AttnSlices.from_rows([(0, 3, 0, 3, 1), (3, 8, 0, 8, 1)], seqlen_q=8, seqlen_k=8)
    >>> [tuple(map(int, row)) for row in merge(halves).rows()]
    [(0, 8, 0, 8, 1)]
    """
    kept = (slices.ranges[:, 0] < slices.ranges[:, 1]) & (slices.ranges[:, 2] < slices.ranges[:, 3])
    ranges, types = slices.ranges[kept], slices.types[kept]
    # Two lines that agree mean the same edge: k_start for a flat one, k_start - q_start along a diagonal.
    left = ranges[:, 2] - np.where(types & 2, ranges[:, 0], 0)
    right = ranges[:, 3] - np.where(types & 1, ranges[:, 1], 0)
    order = np.lexsort((ranges[:, 0], right, left, types))
    ranges, types, left, right = ranges[order], types[order], left[order], right[order]
    goes_on = (
        (types[1:] == types[:-1])
        & (left[1:] == left[:-1])
        & (right[1:] == right[:-1])
        & (ranges[1:, 0] == ranges[:-1, 1])
    )
    starts = np.concatenate([[True], ~goes_on])[: len(types)]
    ends = np.concatenate([~goes_on, [True]])[: len(types)]
    joined = np.stack([ranges[starts, 0], ranges[ends, 1], ranges[starts, 2], ranges[ends, 3]], axis=1)
    types = types[starts]
    order = np.lexsort((joined[:, 2], joined[:, 0]))
    return AttnSlices(ranges=joined[order], types=types[order], seqlen_q=slices.seqlen_q, seqlen_k=slices.seqlen_k)
