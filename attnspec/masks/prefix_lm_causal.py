"""prefix_lm_causal: k < prefix or k <= q.

All tokens see the whole prefix, the rest is causal. A prefix of 0 or 1 is plain causal, one as long as the sequence
plain full. Source: Raffel et al. 2020 (T5), section 3.2.1, causal with prefix.
"""

from __future__ import annotations

from dataclasses import dataclass

from attnspec.params import param
from attnspec.slices import AttnSlices, SliceType, merge
from attnspec.slices.documents import check_square
from attnspec.slices.edges import IntArray

USES_DOCUMENTS = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Parameters of the mask."""

    prefix: int = param(ge=0, tokens=True, doc="First tokens, which all tokens see.")


def slices(params: Params, docs: IntArray, seqlen_q: int, seqlen_k: int) -> AttnSlices:
    """At most two slices: full for the rows of the prefix, causal for the others."""
    check_square(seqlen_q, seqlen_k)
    # The first token sees itself anyway, so a prefix of one token adds nothing.
    first = min(params.prefix, seqlen_q) if params.prefix > 1 else 0
    rows = [(0, first, 0, first, SliceType.FULL), (first, seqlen_q, 0, seqlen_k, SliceType.CAUSAL)]
    return merge(AttnSlices.from_rows(rows, seqlen_q=seqlen_q, seqlen_k=seqlen_k))
