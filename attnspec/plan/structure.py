"""Example documents, and the structure of slices: what planning needs to ask a kernel once instead of 10^4 times. Pure.

Whether a library can express a mask depends on how its slices lie to each other and hardly on the tokens they span. The
structure of slices is their types, the order of all corners and the order of all diagonals.
"""

from __future__ import annotations

import hashlib
from array import array
from fractions import Fraction
from functools import cache

import numpy as np
from numpy.typing import NDArray

from attnspec.slices import AttnSlices

# Lengths over the longest one. Uneven, no two alike, no common divisor.
_UNEVEN = tuple(Fraction(part, 97) for part in (97, 61, 19, 83, 7, 43, 29, 71, 13))
_MAX_EXAMPLES = 64


def example_documents(seqlen: int, max_doc_fraction: Fraction | None) -> NDArray[np.int64]:
    """Document lengths that stand for those that sampling will draw: uneven, at most max_doc_fraction of seqlen.

    Their number depends on max_doc_fraction alone, so that the structure of a mask is the same at every seqlen; a short
    seqlen makes some of them 0. Shape (num_docs,), summing to seqlen. Shares under 1/64 count as 1/64.

    >>> example_documents(64, Fraction(1, 4)).tolist()
    [12, 8, 3, 11, 1, 5, 4, 10, 1, 9]
    """
    ends = np.array([seqlen * end.numerator // end.denominator for end in _boundaries(max_doc_fraction or Fraction(1))])
    return np.diff(ends, prepend=0).astype(np.int64)


@cache
def _boundaries(max_doc_fraction: Fraction) -> tuple[Fraction, ...]:
    longest = min(max(max_doc_fraction, Fraction(1, _MAX_EXAMPLES)), Fraction(1, 2)) * Fraction(4, 5)
    ends: list[Fraction] = []
    total = Fraction(0)
    while total < 1:
        total = min(total + longest * _UNEVEN[len(ends) % len(_UNEVEN)], Fraction(1))
        ends.append(total)
    return tuple(ends)


def structure(slices: AttnSlices) -> bytes:
    """A digest that is equal for masks whose slices lie to each other in the same way, whatever their lengths.

    >>> short = AttnSlices.from_rows([(0, 8, 0, 8, 1)], seqlen_q=8, seqlen_k=8)
    >>> long = AttnSlices.from_rows([(0, 9000, 0, 9000, 1)], seqlen_q=9000, seqlen_k=9000)
    >>> structure(short) == structure(long)
    True
    """
    bounds = slices.ranges
    corners = [0, slices.seqlen_q, slices.seqlen_k, *bounds.ravel().tolist()]
    diagonals = [0, *(bounds[:, 2:] - bounds[:, :2]).ravel().tolist()]
    return hashlib.sha256(_order(corners) + _order(diagonals) + slices.types.tobytes()).digest()


def _order(values: list[int]) -> bytes:
    """The rank of each value among the distinct ones. In plain Python: there are few, and numpy takes longer."""
    ranks = {value: rank for rank, value in enumerate(sorted(set(values)))}
    return array("q", map(ranks.__getitem__, values)).tobytes()
