"""prefix_lm_document: same document and (k - s < prefix or k <= q), with s the document's start.

prefix_lm_causal in every document; documents no longer than the prefix are full. Source: Raffel et al. 2020 (T5),
section 3.2.1; FlashMask (Wang et al. 2025), figure 1(a), prefix LM document mask.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnspec.params import param
from attnspec.slices import AttnSlices, SliceType, merge
from attnspec.slices.documents import check_square, document_bounds
from attnspec.slices.edges import IntArray

USES_DOCUMENTS = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Parameters of the mask."""

    prefix: int = param(ge=0, tokens=True, doc="First tokens of each document, which all its tokens see.")


def slices(params: Params, docs: IntArray, seqlen_q: int, seqlen_k: int) -> AttnSlices:
    """At most two slices per document: full for the rows of its prefix, causal for the others."""
    check_square(seqlen_q, seqlen_k)
    starts, ends = document_bounds(docs, seqlen_q)
    # The first token sees itself anyway, so a prefix of one token adds nothing.
    middle = np.minimum(starts + (params.prefix if params.prefix > 1 else 0), ends)
    ranges = np.concatenate(
        [np.stack([starts, middle, starts, middle], axis=1), np.stack([middle, ends, starts, ends], axis=1)]
    )
    types = np.repeat(np.array([SliceType.FULL, SliceType.CAUSAL], dtype=np.int8), len(starts))
    return merge(AttnSlices(ranges=ranges, types=types, seqlen_q=seqlen_q, seqlen_k=seqlen_k))
