"""sliding_window_causal: q - window < k <= q, so `window` keys, the query's own included.

A window of w is window_size (w - 1, 0) of flash-attn; a window as long as the sequence is plain causal. Source: Child
et al. 2019; Beltagy et al. 2020 (Longformer), section 3.1; Jiang et al. 2023 (Mistral 7B), section 2.
"""

from __future__ import annotations

from dataclasses import dataclass

from attnspec.params import param
from attnspec.slices import AttnSlices, SliceType, clip
from attnspec.slices.documents import check_square
from attnspec.slices.edges import IntArray

USES_DOCUMENTS = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Parameters of the mask."""

    window: int = param(ge=1, tokens=True, doc="Keys that a query sees, its own included.")


def slices(params: Params, docs: IntArray, seqlen_q: int, seqlen_k: int) -> AttnSlices:
    """At most two slices: causal for the first `window` rows, bi_causal for the others."""
    check_square(seqlen_q, seqlen_k)
    before = min(params.window, seqlen_q) - 1
    band = (0, seqlen_q, -before, seqlen_k, SliceType.BI_CAUSAL)
    return clip(AttnSlices.from_rows([band], seqlen_q=seqlen_q, seqlen_k=seqlen_k), 0, seqlen_q, 0, seqlen_k)
