"""varlen_causal: same document and k <= q.

Packed (varlen) causal attention, the mask of pre-training on packed documents. Source: flash-attn's varlen interface
with cu_seqlens, causal=True.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnspec.slices import AttnSlices, SliceType
from attnspec.slices.documents import check_square, document_bounds
from attnspec.slices.edges import IntArray

USES_DOCUMENTS = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """This mask has no parameters."""


def slices(params: Params, docs: IntArray, seqlen_q: int, seqlen_k: int) -> AttnSlices:
    """One causal slice per document that is not empty."""
    check_square(seqlen_q, seqlen_k)
    starts, ends = document_bounds(docs, seqlen_q)
    ranges = np.stack([starts, ends, starts, ends], axis=1)[starts < ends]
    types = np.full(len(ranges), SliceType.CAUSAL, dtype=np.int8)
    return AttnSlices(ranges=ranges, types=types, seqlen_q=seqlen_q, seqlen_k=seqlen_k)
