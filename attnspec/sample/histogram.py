"""How documents and their tokens spread over lengths: in a population, in packs on average, in drawn packs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnspec.sample.documents import Tally
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


def in_population(lengths: Lengths, edges: NDArray[np.int64]) -> Histogram:
    """What a population holds on average over its random lengths; nothing is drawn.

    >>> from attnspec.sample.lengths import from_tally
    >>> in_population(from_tally("tens", np.array([10]), np.array([3])), octaves(16)).tokens.tolist()
    [0.0, 0.0, 0.0, 0.0, 30.0]
    """
    weight = lengths.counts / (lengths.hi - lengths.lo)
    return _collect(edges, weight, lengths.lo.astype(np.float64), lengths.hi.astype(np.float64))


def in_packs(pieces: Tally, seqlen: int, edges: NDArray[np.int64]) -> Histogram:
    """What packs of a row of these pieces hold on average, their ends included.

    A cut every `seqlen` tokens goes through a piece of l tokens with probability (l - 1) / seqlen, at each of its
    l - 1 places alike, and leaves two parts. (Exact but for the row's first and last pack.)

    >>> in_packs((np.array([3]), np.array([4])), 12, octaves(4)).documents.round(3).tolist()
    [0.667, 0.667, 3.333]
    """
    values, counts = pieces[0].astype(np.float64), pieces[1].astype(np.float64)
    whole = _collect(edges, counts * (1 - (values - 1) / seqlen), values, values + 1)
    parts = _collect(edges, 2 * counts / seqlen, np.ones_like(values), values)
    return Histogram(edges=edges, documents=whole.documents + parts.documents, tokens=whole.tokens + parts.tokens)


def found(packs: Sequence[NDArray[np.int64]], edges: NDArray[np.int64]) -> Histogram:
    """What drawn packs hold: whole documents, pieces, and the parts on both sides of a pack's ends."""
    documents, tokens = (grid.sum(axis=0) for grid in _by_pack(packs, edges))
    return Histogram(edges=edges, documents=documents, tokens=tokens)


def standard_errors(packs: Sequence[NDArray[np.int64]], edges: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Standard errors (n,), (n,) of the shares in `found`, from the spread between packs; at least two packs.

    The share of documents is a ratio of two sums over packs, so its error is that of a ratio (Cochran 1977, 2.11).
    """
    assert len(packs) > 1, len(packs)
    errors = []
    for grid in _by_pack(packs, edges):
        totals = grid.sum(axis=1, keepdims=True)
        residual = grid - grid.sum(axis=0) / totals.sum() * totals
        errors.append(np.sqrt((residual**2).sum(axis=0) * len(packs) / (len(packs) - 1)) / totals.sum())
    return errors[0], errors[1]


def _by_pack(packs: Sequence[NDArray[np.int64]], edges: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Documents and tokens by pack and bin, (packs, n) each."""
    num_bins = len(edges) - 1
    row = np.concatenate(packs)
    pack = np.repeat(np.arange(len(packs)), [len(lengths) for lengths in packs])
    place = pack * num_bins + np.searchsorted(edges, row, side="right") - 1
    size = len(packs) * num_bins
    documents = np.bincount(place, minlength=size).astype(np.float64)
    tokens = np.bincount(place, weights=row, minlength=size).astype(np.float64)
    return documents.reshape(-1, num_bins), tokens.reshape(-1, num_bins)


def _collect(edges: NDArray[np.int64], weight: Floats, lo: Floats, hi: Floats) -> Histogram:
    """`weight[i]` documents of every length in [lo[i], hi[i]), by bin."""
    documents, tokens = [], []
    for low, high in zip(edges[:-1].astype(np.float64), edges[1:].astype(np.float64), strict=True):
        start, end = np.clip(lo, low, high), np.clip(hi, low, high)
        count = weight * (end - start)
        documents.append(float(count.sum()))
        tokens.append(float(np.dot(count, (start + end - 1) / 2)))
    return Histogram(edges=edges, documents=np.array(documents), tokens=np.array(tokens))
