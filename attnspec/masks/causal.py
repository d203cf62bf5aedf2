"""causal: k <= q + (seqlen_k - seqlen_q), aligned at the bottom right corner.

With more keys than queries the first query sees seqlen_k - seqlen_q + 1 keys (decoding with a cache); with fewer, the
first seqlen_q - seqlen_k queries see none: their output is 0 and their lse -inf. Source: Vaswani et al. 2017, section
3.2.3; alignment of flash-attn since 2.1 and of flex-flash-attention (torch's is_causal is top-left).
"""

from __future__ import annotations

from dataclasses import dataclass

from attnspec.params import param
from attnspec.slices import AttnSlices, SliceType
from attnspec.slices.edges import IntArray

USES_DOCUMENTS = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Parameters of the mask."""

    seqlen_k: int | None = param(
        default=None, ge=1, tokens=True, doc="Number of keys; as many as queries if not given."
    )


def slices(params: Params, docs: IntArray, seqlen_q: int, seqlen_k: int) -> AttnSlices:
    """One causal slice."""
    return AttnSlices.from_rows([(0, seqlen_q, 0, seqlen_k, SliceType.CAUSAL)], seqlen_q=seqlen_q, seqlen_k=seqlen_k)
