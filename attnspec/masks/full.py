"""full: every query sees every key; seqlen_k may differ from seqlen_q.

Bidirectional attention, also cross attention. Source: Vaswani et al. 2017, section 3.2, without masking.
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
    """One full slice."""
    return AttnSlices.from_rows([(0, seqlen_q, 0, seqlen_k, SliceType.FULL)], seqlen_q=seqlen_q, seqlen_k=seqlen_k)
