"""causal_blockwise: same document and k <= q, or q in the last document and k <= q.

Documents do not see each other, except that the last one sees all. Source: FlashMask (Wang et al. 2025), figure
1(a), causal blockwise mask (in-context learning). With an empty last document this is varlen_causal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnspec.slices import AttnSlices, SliceType, merge
from attnspec.slices.documents import check_square, document_bounds
from attnspec.slices.edges import IntArray

USES_DOCUMENTS = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """This mask has no parameters."""


def slices(params: Params, docs: IntArray, seqlen_q: int, seqlen_k: int) -> AttnSlices:
    """One causal slice per document; the last one starts at key 0, and joins the one before it when there are two."""
    check_square(seqlen_q, seqlen_k)
    starts, ends = document_bounds(docs, seqlen_q)
    k_start = starts.copy()
    k_start[-1:] = 0
    types = np.full(len(starts), SliceType.CAUSAL, dtype=np.int8)
    ranges = np.stack([starts, ends, k_start, ends], axis=1)
    return merge(AttnSlices(ranges=ranges, types=types, seqlen_q=seqlen_q, seqlen_k=seqlen_k))
