"""share_question: same document and k <= q, or k in the first document and q not.

The first document is a question, the others are answers to it that do not see each other. Source: FlashMask (Wang et
al. 2025), figure 1(a), share question mask (reward models, DPO). With an empty first document this is varlen_causal.
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
    """As many slices as documents: question and first answer together causal, the others causal, one full below."""
    check_square(seqlen_q, seqlen_k)
    starts, ends = document_bounds(docs, seqlen_q)
    question = int(ends[0]) if len(ends) else 0
    answers = ends[1:][ends[1:] > starts[1:]]
    first = int(answers[0]) if len(answers) else question
    causal = np.stack([starts, ends, starts, ends], axis=1)
    # The question and the first answer after it are one causal triangle; what is below it sees the question whole.
    rest = causal[starts >= first] if question else causal
    types = np.full(len(rest), SliceType.CAUSAL, dtype=np.int8)
    if question:
        whole = np.array([[0, first, 0, first], [first, seqlen_q, 0, question]], dtype=np.int64)
        rest = np.concatenate([whole, rest])
        types = np.concatenate([np.array([SliceType.CAUSAL, SliceType.FULL], dtype=np.int8), types])
    return merge(AttnSlices(ranges=rest, types=types, seqlen_q=seqlen_q, seqlen_k=seqlen_k))
