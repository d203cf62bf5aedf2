"""Example documents, and the likeness of masks: what planning needs to ask a kernel once instead of 10^4 times. Pure.

Whether a library can express a mask depends on how its slices lie to each other and hardly on the tokens they span. Two
digests say how alike two masks are. `structure` is exact: types, the order of all corners and of all diagonals.
`pattern` forgets how often something repeats, so that a mask of blocks has one pattern at (nearly) every length.
"""

from __future__ import annotations

import hashlib
from array import array
from fractions import Fraction
from functools import cache

import numpy as np
from numpy.typing import NDArray

from attnspec.slices import AttnSlices, SliceType

# Lengths over the longest one. Uneven, no two alike, no common divisor.
_UNEVEN = tuple(Fraction(part, 97) for part in (97, 61, 19, 83, 7, 43, 29, 71, 13))
_MAX_EXAMPLES = 64
_MAX_EQUAL = 2048
"""Equal documents that stand for any number of them: a mask of many holds that of fewer."""

# What is looked at, from q_start, q_end, k_start, k_end: the corners, both diagonals, the sides and their difference.
_LINES = np.array(
    [
        [1, 0, 0, 0, -1, 0, -1, 0, -1],
        [0, 1, 0, 0, 0, -1, 1, 0, 1],
        [0, 0, 1, 0, 1, 0, 0, -1, 1],
        [0, 0, 0, 1, 0, 1, 0, 1, -1],
    ]
)
_POWERS = 3 ** np.arange(9 + 6 + 2 + 2)


def example_documents(seqlen: int, max_doc_fraction: Fraction | None) -> NDArray[np.int64]:
    """Document lengths that stand for those that sampling will draw: uneven, at most max_doc_fraction of seqlen.

    Their number depends on max_doc_fraction alone, so that the structure of a mask is the same at every seqlen; a short
    seqlen makes some of them 0. Shape (num_docs,), summing to seqlen. Shares under 1/64 count as 1/64.

    >>> example_documents(64, Fraction(1, 4)).tolist()
    [12, 8, 3, 11, 1, 5, 4, 10, 1, 9]
    """
    ends = np.array([seqlen * end.numerator // end.denominator for end in _boundaries(max_doc_fraction or Fraction(1))])
    return np.diff(ends, prepend=0).astype(np.int64)


def equal_documents(seqlen: int, length: int) -> NDArray[np.int64]:
    """Documents of one length that fill seqlen, the last one shorter where it must be; at most 2048, and then a shorter
    sequence. Shape (num_docs,).

    >>> equal_documents(10, 4).tolist(), int(equal_documents(65536, 1).sum())
    ([4, 4, 2], 2048)
    """
    seqlen = min(seqlen, _MAX_EQUAL * length)
    ends = np.arange(length, seqlen + length, length)
    return np.diff(np.minimum(ends, seqlen), prepend=0).astype(np.int64)


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


def pattern(slices: AttnSlices) -> bytes:
    """A digest of the set of ways in which a slice lies to the one listed before it, to the diagonal and to the edges.

    >>> few = [(start, start + 2, 0, start + 2, 0) for start in range(0, 8, 2)]
    >>> many = [(start, start + 4, 0, start + 4, 0) for start in range(0, 400, 4)]
    >>> pattern(AttnSlices.from_rows(few, seqlen_q=8, seqlen_k=8)) == pattern(
    ...     AttnSlices.from_rows(many, seqlen_q=400, seqlen_k=400)
    ... )
    True
    """
    bounds = np.concatenate((slices.ranges[:1], slices.ranges))  # the first slice counts as listed before itself
    lines = bounds @ _LINES
    parts = (
        lines[1:],
        lines[1:, :6] - lines[:-1, :6],
        bounds[1:, ::2] - bounds[:-1, 1::2],
        bounds[1:, 1::2] - (slices.seqlen_q, slices.seqlen_k),
    )
    signs = np.sign(np.hstack(parts)) + 1
    codes = np.unique(signs @ _POWERS * len(SliceType) + slices.types)
    sizes = (slices.seqlen_q < slices.seqlen_k, slices.seqlen_q > slices.seqlen_k, len(slices) > 1)
    return codes.tobytes() + bytes(sizes)


def _order(values: list[int]) -> bytes:
    """The rank of each value among the distinct ones. In plain Python: there are few, and numpy takes longer."""
    ranks = {value: rank for rank, value in enumerate(sorted(set(values)))}
    return array("q", map(ranks.__getitem__, values)).tobytes()
