"""slices: a mask given slice by slice.

Each row is [q_start, q_end, k_start, k_end, type] with type full, causal, inv_causal or bi_causal; rows are half-open
and zero-based, and no two may allow the same cell. Source: AttnSlice of MagiAttention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from attnspec.errors import InputError
from attnspec.params import param
from attnspec.slices import AttnSlices, from_ranges
from attnspec.slices.edges import IntArray

USES_DOCUMENTS = False

TypeName = Literal["full", "causal", "inv_causal", "bi_causal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Parameters of the mask."""

    slices: tuple[tuple[int, int, int, int, TypeName], ...] = param(
        doc="Rows [q_start, q_end, k_start, k_end, type]; type: full, causal, inv_causal or bi_causal."
    )
    seqlen_k: int | None = param(
        default=None, ge=1, tokens=True, doc="Number of keys; as many as queries if not given."
    )


def slices(params: Params, docs: IntArray, seqlen_q: int, seqlen_k: int) -> AttnSlices:
    """The given slices. Raises InputError when they are not a mask (`attnspec.slices.check`)."""
    for number, row in enumerate(params.slices):
        if len(row) != 5:
            raise InputError(f"slice {number} is {list(row)}; allowed: [q_start, q_end, k_start, k_end, type]")
    return from_ranges(
        [row[0:2] for row in params.slices],
        [row[2:4] for row in params.slices],
        [row[4] for row in params.slices],
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_k,
    )
