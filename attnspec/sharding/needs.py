"""Who needs whose keys under a mask. Pure, vectorised."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attnspec.sharding.layout import Layout
from attnspec.slices import AttnSlices, edges
from attnspec.slices.edges import expand


def needs(slices: AttnSlices, queries: Layout, keys: Layout) -> NDArray[np.bool_]:
    """Whether holder i of queries sees any key of holder j: bool (queries.num_holders, keys.num_holders).

    Time goes with the pieces of queries that slices touch, and with holders times pieces of keys.

    >>> from attnspec.sharding.layout import contiguous
    >>> causal = AttnSlices.from_rows([(0, 8, 0, 8, 1)], seqlen_q=8, seqlen_k=8)
    >>> needs(causal, contiguous(8, 2), contiguous(8, 2)).tolist()
    [[True, False], [True, True]]
    """
    made = edges(slices)
    by_start = queries.pieces[np.argsort(queries.pieces[:, 1], kind="stable")]
    key_pieces = keys.pieces[np.argsort(keys.pieces[:, 1], kind="stable")]
    first = np.searchsorted(by_start[:, 2], made.q_start, side="right")
    beyond = np.searchsorted(by_start[:, 1], made.q_end, side="left")
    which, step = expand(np.maximum(beyond - first, 0))
    piece = by_start[first[which] + step]
    # In one slice the rows of a piece together see a run of keys: from the first row's first to the last row's last.
    row = np.maximum(made.q_start[which], piece[:, 1])
    last = np.minimum(made.q_end[which], piece[:, 2]) - 1
    low = np.searchsorted(key_pieces[:, 2], made.lo_at(which, row), side="right")
    high = np.searchsorted(key_pieces[:, 1], made.hi_at(which, last), side="left")
    touched = low < high
    covered = np.zeros((queries.num_holders, len(key_pieces) + 1), dtype=np.int32)
    np.add.at(covered, (piece[touched, 0], low[touched]), 1)
    np.add.at(covered, (piece[touched, 0], high[touched]), -1)
    seen = np.cumsum(covered[:, :-1], axis=1, dtype=np.int32) > 0
    by_holder = np.argsort(key_pieces[:, 0], kind="stable")
    holders, starts = np.unique(key_pieces[by_holder, 0], return_index=True)
    found = np.zeros((queries.num_holders, keys.num_holders), dtype=bool)
    if len(holders):
        found[:, holders] = np.logical_or.reduceat(seen[:, by_holder], starts, axis=1)
    return found
