"""Which query rows are compared with the oracle: the edges of slices and tiles, and some at random. Pure.

Edges are where masks go wrong (documents, windows and blocks all show as edges of slices); uniform rows alone miss a
single boundary shifted by one.
"""

from __future__ import annotations

import numpy as np

from attnspec.slices import AttnSlices, edges
from attnspec.slices.edges import IntArray

ALL_ROWS = 64
RANDOM_SHARE = 64
TILE = 64
MAX_RANDOM = 1024
MAX_EDGES = 1024


def sample_rows(slices: AttnSlices, *, seed: int) -> IntArray:
    """Sorted distinct query rows: first two and last two of every slice and of the sequence, one of 64 at random.

    Half of the random rows touch a multiple of 64, where tiles of kernels end. At most 1,024 rows of each kind; all
    rows of a sequence of at most 64.

    >>> slices = AttnSlices.from_rows([(0, 500, 0, 500, 1), (500, 1000, 500, 1000, 1)], seqlen_q=1000, seqlen_k=1000)
    >>> rows = sample_rows(slices, seed=0)
    >>> {0, 1, 498, 499, 500, 501, 998, 999} <= set(rows.tolist()), len(rows) < 30
    (True, True)
    """
    seqlen = slices.seqlen_q
    if seqlen <= ALL_ROWS:
        return np.arange(seqlen, dtype=np.int64)
    rng = np.random.default_rng(seed)
    made = edges(slices)
    starts = np.concatenate([made.q_start, slices.ranges[:, 0]])
    ends = np.concatenate([made.q_end, slices.ranges[:, 1]])
    kept = starts < ends
    starts, ends = starts[kept], ends[kept]
    second, before_last = np.minimum(starts + 1, ends - 1), np.maximum(ends - 2, starts)
    at_edges = np.unique(np.concatenate([starts, second, before_last, ends - 1]))
    if len(at_edges) > MAX_EDGES:
        at_edges = rng.choice(at_edges, MAX_EDGES, replace=False)
    num_random = min(-(-seqlen // RANDOM_SHARE), MAX_RANDOM)
    anywhere = rng.integers(seqlen, size=num_random - num_random // 2)
    tiles = TILE * rng.integers(1, max(seqlen // TILE, 2), size=num_random // 2) - rng.integers(2, size=num_random // 2)
    ends_of_all = np.array([0, 1, seqlen - 2, seqlen - 1])
    found = np.unique(np.concatenate([ends_of_all, at_edges, anywhere, tiles]))
    return np.asarray(found[found < seqlen], dtype=np.int64)


def components(slices: AttnSlices) -> tuple[IntArray, IntArray, int]:
    """Parts of a mask that share neither rows nor keys (documents, mostly): (of each query, of each key, how many).

    -1 marks rows and keys that take part in nothing. Time and memory are proportional to slices, rows and keys.

    >>> slices = AttnSlices.from_rows([(0, 2, 0, 2, 0), (2, 4, 2, 3, 0), (3, 4, 4, 5, 0)], seqlen_q=4, seqlen_k=5)
    >>> [part if isinstance(part, int) else part.tolist() for part in components(slices)]
    [[0, 0, 1, 1], [0, 0, 1, -1, 1], 2]
    """
    made = edges(slices)
    if len(made) == 0:
        return np.full(slices.seqlen_q, -1, dtype=np.int64), np.full(slices.seqlen_k, -1, dtype=np.int64), 0
    last = made.q_end - 1 - made.q_start
    k_start, k_end = made.lo, made.hi + made.hi_slope * last
    by_q, by_k = _overlap_groups(made.q_start, made.q_end), _overlap_groups(k_start, k_end)
    names, label = np.unique(_connected(by_q, by_k), return_inverse=True)
    of_q = _paint(made.q_start, made.q_end, label, slices.seqlen_q)
    of_k = _paint(k_start, k_end, label, slices.seqlen_k)
    return of_q, of_k, len(names)


def _overlap_groups(starts: IntArray, ends: IntArray) -> IntArray:
    """Number intervals so that overlapping ones, also over others, have one number."""
    order = np.argsort(starts, kind="stable")
    reach = np.maximum.accumulate(ends[order])
    new = np.concatenate([[True], starts[order][1:] >= reach[:-1]])
    groups = np.empty(len(order), dtype=np.int64)
    groups[order] = np.cumsum(new) - 1
    return groups


def _connected(by_q: IntArray, by_k: IntArray) -> IntArray:
    """Smallest slice number reachable over shared groups, for every slice."""
    label = np.arange(len(by_q), dtype=np.int64)
    while True:
        before = label
        for group in (by_q, by_k):
            least = np.full(int(group.max()) + 1, len(label), dtype=np.int64)
            np.minimum.at(least, group, label)
            label = least[group]
        label = label[label]
        if np.array_equal(label, before):
            return label


def _paint(starts: IntArray, ends: IntArray, label: IntArray, length: int) -> IntArray:
    """Label of the interval over each position, -1 where there is none. Overlapping intervals have one label."""
    steps = np.zeros(length + 1, dtype=np.int64)
    count = np.zeros(length + 1, dtype=np.int64)
    np.add.at(steps, starts, label)
    np.add.at(steps, ends, -label)
    np.add.at(count, starts, 1)
    np.add.at(count, ends, -1)
    over = np.cumsum(count)[:length]
    return np.asarray(np.where(over > 0, np.cumsum(steps)[:length] // np.maximum(over, 1), -1))
