"""global_sliding_window: |q - k| < window or q < global_tokens or k < global_tokens.

The first tokens see all and are seen by all. Source: Beltagy et al. 2020 (Longformer), section 3.1, global attention;
Zaheer et al. 2020 (BigBird), section 2, without random blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnspec.params import param
from attnspec.slices import AttnSlices, SliceType, clip, merge
from attnspec.slices.documents import check_square
from attnspec.slices.edges import IntArray

USES_DOCUMENTS = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Parameters of the mask."""

    window: int = param(ge=1, tokens=True, doc="Keys that a query sees to either side, its own included.")
    global_tokens: int = param(ge=0, tokens=True, doc="First tokens that see all tokens and are seen by all.")


def slices(params: Params, docs: IntArray, seqlen_q: int, seqlen_k: int) -> AttnSlices:
    """At most five slices: rows of the global tokens, their columns, the band of the window in what is left."""
    check_square(seqlen_q, seqlen_k)
    first = min(params.global_tokens, seqlen_q)
    side = min(params.window, seqlen_q) - 1
    band = (0, seqlen_q, -side, seqlen_k + side, SliceType.BI_CAUSAL)
    local = clip(AttnSlices.from_rows([band], seqlen_q=seqlen_q, seqlen_k=seqlen_k), first, seqlen_q, first, seqlen_k)
    tokens = AttnSlices.from_rows(
        [(0, first, 0, seqlen_k, SliceType.FULL), (first, seqlen_q, 0, first, SliceType.FULL)],
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_k,
    )
    both = AttnSlices(
        ranges=np.concatenate([tokens.ranges, local.ranges]),
        types=np.concatenate([tokens.types, local.types]),
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_k,
    )
    return merge(both)
