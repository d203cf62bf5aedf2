"""The same mask seen from its keys: queries and keys exchanged. Pure, vectorised."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from attnspec.slices import AttnSlices


def transposed(slices: AttnSlices) -> AttnSlices:
    """Slices that allow (k, q) where `slices` allow (q, k); each becomes at most three, empty ones are dropped.

    A key of a causal slice is seen from the row on that the diagonal meets; of an inverse causal one up to that row.

    >>> causal = AttnSlices.from_rows([(0, 2, 0, 3, 1)], seqlen_q=2, seqlen_k=3)
    >>> [(*row[:4], row[4].name) for row in transposed(causal).rows()]
    [(0, 2, 0, 2, 'FULL'), (2, 3, 1, 2, 'INV_CAUSAL')]
    """
    q0, q1, k0, k1 = slices.ranges.T
    above = (slices.types & 1).astype(np.bool_)
    below = (slices.types & 2).astype(np.bool_)
    num_rows, num_keys = q1 - q0, k1 - k0
    alive = (num_rows > 0) & (num_keys > 0) & ~(above & below & (num_keys < num_rows))
    # Keys up to `opened` are seen by ever more rows, keys from `closing` on by ever fewer.
    opened = np.where(below, np.minimum(k0 + num_rows, k1), k0)
    closing = np.where(above, np.maximum(k1 - num_rows + 1, k0), k1)
    cuts = np.stack([k0, np.minimum(opened, closing), np.maximum(opened, closing), k1])
    parts, types = [], []
    for start, end in pairwise(cuts):
        grows, shrinks = below & (start < opened), above & (start >= closing)
        first = np.where(shrinks, start - k1 + q1, q0)
        last = np.where(grows, end - k0 + q0, q1)
        kept = alive & (start < end)
        parts.append(np.stack([start, end, first, last], axis=1)[kept])
        types.append((shrinks * 2 + grows).astype(np.int8)[kept])
    return AttnSlices(
        ranges=np.concatenate(parts), types=np.concatenate(types), seqlen_q=slices.seqlen_k, seqlen_k=slices.seqlen_q
    )
