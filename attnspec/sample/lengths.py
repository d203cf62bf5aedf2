"""The distribution of document lengths: bins and how many documents each holds. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from attnspec.errors import InputError

NOMINAL_DOCUMENTS = 10_000_000
"""Documents of a population that is given by shares only."""
MAX_LENGTH = 2**40
MAX_DOCUMENTS = 2**34
MAX_TOKENS = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """One line of a histogram: lengths in [lo, hi) tokens, an amount (a count or a share), and where it was read."""

    lo: int
    hi: int
    amount: Fraction
    place: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lengths:
    """A population of documents: `counts[i]` documents with lengths uniform over the integers of [lo[i], hi[i]).

    lo, hi, counts: int64 (n,), bins disjoint and ascending, 1 <= lo < hi, counts over 0.
    nominal: only shares were given; counts are those of NOMINAL_DOCUMENTS documents.
    num_empty: documents of length zero that were given; they hold no token, so no pack can show them.
    """

    name: str
    lo: NDArray[np.int64]
    hi: NDArray[np.int64]
    counts: NDArray[np.int64]
    nominal: bool = False
    num_empty: int = 0

    @property
    def num_documents(self) -> int:
        """Documents of one token or more."""
        return int(self.counts.sum())

    @property
    def mean_length(self) -> float:
        """Expected tokens per document."""
        return float(np.dot(self.counts, (self.lo + self.hi - 1) / 2)) / self.num_documents

    @property
    def sha256(self) -> str:
        """Digest of the bins and counts, whatever file or format they came from."""
        rows = np.stack([self.lo, self.hi, self.counts], axis=1).astype("<i8")
        return hashlib.sha256(b"attnspec lengths 1\n" + rows.tobytes()).hexdigest()


def from_counts(name: str, bins: Sequence[Bin]) -> Lengths:
    """A population from bins whose amounts are numbers of documents.

    Raises InputError, naming the place, for a negative or fractional count, a bin without lengths, overlapping bins,
    and for bins that hold no document.
    """
    for item in bins:
        if item.amount < 0 or item.amount.denominator != 1:
            raise InputError(f"{item.place}: {_number(item.amount)} documents; allowed: 0, 1, 2 and so on")
    return _population(name, bins, [int(item.amount) for item in bins], nominal=False)


def from_shares(name: str, bins: Sequence[Bin]) -> Lengths:
    """A population of NOMINAL_DOCUMENTS documents from bins whose amounts are shares that sum to 1 or to 100.

    Raises InputError as `from_counts` does, and with the sum when it is neither 1 nor 100 within 0.5 percent.
    """
    for item in bins:
        if item.amount < 0:
            raise InputError(f"{item.place}: the share is {_number(item.amount)}; allowed: 0 or more")
    total = sum((item.amount for item in bins), start=Fraction(0))
    if bins and not any(abs(total - whole) * 200 <= whole for whole in (1, 100)):
        raise InputError(f"{name}: the shares sum to {_number(total)}; allowed: 1 or 100, within 0.5 percent")
    counts = share_out([item.amount for item in bins], NOMINAL_DOCUMENTS)
    return _population(name, bins, counts, nominal=True)


def share_out(shares: Sequence[Fraction], total: int) -> list[int]:
    """Whole numbers in proportion to shares that sum to `total`, by largest remainder; ties go to the earlier one.

    >>> share_out([Fraction("33.3")] * 3, 10)
    [4, 3, 3]
    """
    whole = sum(shares, start=Fraction(0))
    quotas = [share * total / whole for share in shares]
    counts = [int(quota) for quota in quotas]
    by_remainder = sorted(range(len(quotas)), key=lambda index: (counts[index] - quotas[index], index))
    for index in by_remainder[: total - sum(counts)]:
        counts[index] += 1
    return counts


def from_tally(name: str, lengths: NDArray[np.int64], counts: NDArray[np.int64]) -> Lengths:
    """A population from distinct lengths (0 or more, in any order) and how many documents have each."""
    order = np.argsort(lengths, kind="stable")
    lengths, counts = lengths[order], counts[order]
    held = (lengths > 0) & (counts > 0)
    num_empty = int(counts[lengths == 0].sum())
    lengths, counts = lengths[held], counts[held]
    return _checked(Lengths(name=name, lo=lengths, hi=lengths + 1, counts=counts, nominal=False, num_empty=num_empty))


def _population(name: str, bins: Sequence[Bin], counts: Sequence[int], *, nominal: bool) -> Lengths:
    for item in bins:
        if not 0 <= item.lo < item.hi:
            raise InputError(f"{item.place}: bin [{item.lo}, {item.hi}) holds no length; allowed: 0 <= lo < hi")
        if item.hi - 1 > MAX_LENGTH:
            raise InputError(
                f"{item.place}: bin [{item.lo}, {item.hi}) passes 2**40 tokens, the longest length allowed"
            )
    ordered = sorted(zip(bins, counts, strict=True), key=lambda pair: pair[0].lo)
    for (left, _), (right, _) in pairwise(ordered):
        if right.lo < left.hi:
            raise InputError(
                f"{right.place}: bin [{right.lo}, {right.hi}) overlaps [{left.lo}, {left.hi}) of {left.place}; "
                "allowed: disjoint bins"
            )
    held = [(max(item.lo, 1), item.hi, count) for item, count in ordered if count and item.hi > 1]
    if sum(count for _, _, count in held) > MAX_DOCUMENTS:
        raise InputError(f"{name}: over 2**34 documents; scale the counts down, or give shares")
    lo, hi, kept = np.array(held, dtype=np.int64).reshape(-1, 3).T.copy()
    num_empty = sum(count for item, count in ordered if item.hi <= 1)
    return _checked(Lengths(name=name, lo=lo, hi=hi, counts=kept, nominal=nominal, num_empty=num_empty))


def _checked(lengths: Lengths) -> Lengths:
    if not len(lengths.counts):
        empty = f" ({lengths.num_empty} of length 0)" if lengths.num_empty else ""
        raise InputError(f"{lengths.name}: no document holds a token{empty}; allowed: at least one document")
    if lengths.num_documents > MAX_DOCUMENTS:
        raise InputError(f"{lengths.name}: over 2**34 documents; scale the counts down, or give shares")
    if (
        sum(count * (hi - 1) for hi, count in zip(lengths.hi.tolist(), lengths.counts.tolist(), strict=True))
        > MAX_TOKENS
    ):
        raise InputError(f"{lengths.name}: over 2**62 tokens; scale the counts down, or give shares")
    return lengths


def _number(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else f"{float(value):g}"
