"""varlen_block_causal: same document and k - s < (floor((q - s) / block) + 1) block, with s the document's start.

A query sees all earlier blocks of its document and the whole of its own block; blocks are counted from the start of
each document and the last one ends with it. Source: block-wise autoregressive diffusion and video models; MagiAttention
(varlen block causal). A block of 1 is varlen_causal, one as long as the documents varlen_full.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnspec.params import param
from attnspec.slices import AttnSlices, SliceType
from attnspec.slices.documents import check_square, document_bounds
from attnspec.slices.edges import IntArray, expand

USES_DOCUMENTS = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Parameters of the mask."""

    block: int = param(ge=1, tokens=True, doc="Tokens in a block, counted from the start of each document.")


def slices(params: Params, docs: IntArray, seqlen_q: int, seqlen_k: int) -> AttnSlices:
    """One full slice per document and block; one causal slice per document when a block is one token."""
    check_square(seqlen_q, seqlen_k)
    starts, ends = document_bounds(docs, seqlen_q)
    if params.block == 1:
        ranges = np.stack([starts, ends, starts, ends], axis=1)[starts < ends]
        kind = SliceType.CAUSAL
    else:
        document, number = expand(-(-(ends - starts) // params.block))
        start = starts[document]
        q_start = start + number * params.block
        q_end = np.minimum(q_start + params.block, ends[document])
        ranges = np.stack([q_start, q_end, start, q_end], axis=1)
        kind = SliceType.FULL
    types = np.full(len(ranges), kind, dtype=np.int8)
    return AttnSlices(ranges=ranges, types=types, seqlen_q=seqlen_q, seqlen_k=seqlen_k)
