"""How documents and their tokens spread over lengths: expected from a population, and found in packs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnspec.sample.lengths import Lengths

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Histogram:
    """Documents and tokens by length: `documents[i]` and `tokens[i]` for lengths in [edges[i], edges[i + 1]).

    edges: int64 (n + 1,). documents, tokens: float64 (n,), expected or counted.
    """

    edges: NDArray[np.int64]
    documents: Floats
    tokens: Floats

    @property
    def document_shares(self) -> Floats:
        """Documents as shares of all documents."""
        return np.asarray(self.documents / self.documents.sum(), dtype=np.float64)

    @property
    def token_shares(self) -> Floats:
        """Tokens as shares of all tokens."""
        return np.asarray(self.tokens / self.tokens.sum(), dtype=np.float64)


def octaves(longest: int) -> NDArray[np.int64]:
    """Edges of the bins 1, 2, 3 to 4, 5 to 8 and so on until `longest` is inside.

    Each bin ends with a power of two, so pieces of a capped length share a bin with what is just shorter.

    >>> octaves(16).tolist()
    [1, 2, 3, 5, 9, 17]
    """
    return np.array([1, *(2**power + 1 for power in range((longest - 1).bit_length() + 1))], dtype=np.int64)


def expected(lengths: Lengths, edges: NDArray[np.int64], max_length: int | None = None) -> Histogram:
    """What a population holds on average, its documents split at `max_length` tokens if that is given.

    >>> from attnspec.sample.lengths import from_tally
    >>> lengths = from_tally("tens", np.array([10]), np.array([3]))
    >>> expected(lengths, octaves(16), max_length=4).documents.tolist()
    [0.0, 3.0, 6.0, 0.0, 0.0]
    """
    piece = float(lengths.hi.max() if max_length is None else max_length)
    weight = lengths.counts / (lengths.hi - lengths.lo)
    documents, tokens = [], []
    for low, high in zip(edges[:-1].astype(float), edges[1:].astype(float), strict=True):
        rests = [_rests(bound.astype(float), piece, low, min(high, piece)) for bound in (lengths.lo, lengths.hi)]
        num_documents = float(np.dot(weight, rests[1][0] - rests[0][0]))
        num_tokens = float(np.dot(weight, rests[1][1] - rests[0][1]))
        if low <= piece < high:
            wholes = [_wholes(bound.astype(float), piece) for bound in (lengths.lo, lengths.hi)]
            num_wholes = float(np.dot(weight, wholes[1] - wholes[0]))
            num_documents += num_wholes
            num_tokens += num_wholes * piece
        documents.append(num_documents)
        tokens.append(num_tokens)
    return Histogram(edges=edges, documents=np.array(documents), tokens=np.array(tokens))


def found(packs: Sequence[NDArray[np.int64]], edges: NDArray[np.int64]) -> Histogram:
    """What packs hold: whole documents, pieces, and the parts on both sides of a pack's ends."""
    rows = np.concatenate(packs)
    where = np.searchsorted(edges, rows, side="right") - 1
    num_bins = len(edges) - 1
    return Histogram(
        edges=edges,
        documents=np.bincount(where, minlength=num_bins).astype(np.float64),
        tokens=np.bincount(where, weights=rows, minlength=num_bins).astype(np.float64),
    )


def _rests(bound: Floats, piece: float, low: float, high: float) -> tuple[Floats, Floats]:
    """Over the lengths below each bound: how many leave a rest in [low, high), and the sum of those rests."""
    if high <= low:
        return np.zeros_like(bound), np.zeros_like(bound)
    rounds, rest = np.divmod(bound, piece)
    last = np.clip(rest, low, high)
    return rounds * (high - low) + last - low, rounds * _sum(low, high) + _sum(low, last)


def _wholes(bound: Floats, piece: float) -> Floats:
    """Over the lengths below each bound: how many whole pieces they give together."""
    rounds, rest = np.divmod(bound, piece)
    return np.asarray(rounds * (rounds - 1) / 2 * piece + rounds * rest)


def _sum(low: float, high: float | Floats) -> float | Floats:
    """low + (low + 1) + ... + (high - 1)."""
    return (high * (high - 1) - low * (low - 1)) / 2
