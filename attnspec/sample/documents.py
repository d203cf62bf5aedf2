"""Drawing a population's document lengths, and splitting long documents. Pure.

Populations are kept as a tally (distinct lengths, how many of each), never document by document.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attnspec.sample.coins import Coins
from attnspec.sample.lengths import Lengths

Tally = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Distinct lengths, ascending, and how many documents or pieces have each (over 0)."""


def draw_pieces(lengths: Lengths, *, max_length: int, seed: int) -> Tally:
    """The pieces that one seed's packs are made of: every document drawn, those over `max_length` tokens split."""
    return split_documents(draw_documents(lengths, Coins(seed, "documents")), max_length)


def draw_documents(lengths: Lengths, coins: Coins) -> Tally:
    """Give every document of the population a length, uniform over its bin: exactly, by fair coins.

    The documents of a bin go down a binary tree over the next power of two: at each node a coin per document says which
    half. Those that end outside the bin start again. Only the numbers at the nodes are kept.
    """
    width = lengths.hi - lengths.lo
    depth = _bit_length(width - 1)
    waiting = lengths.counts.copy()
    drawn: list[NDArray[np.int64]] = []
    amounts: list[NDArray[np.int64]] = []
    while waiting.any():
        where = np.flatnonzero(waiting)  # the bin of each node
        offset = np.zeros(len(where), dtype=np.int64)
        count = waiting[where]
        waiting[:] = 0
        for level in range(int(depth[where].max()), 0, -1):
            inner = depth[where] >= level
            heads = coins.heads(count[inner])
            offset = np.concatenate([offset[~inner], offset[inner], offset[inner] + (1 << (level - 1))])
            count = np.concatenate([count[~inner], heads, count[inner] - heads])
            where = np.concatenate([where[~inner], where[inner], where[inner]])
            outside = offset >= width[where]
            np.add.at(waiting, where[outside], count[outside])
            held = ~outside & (count > 0)
            where, offset, count = where[held], offset[held], count[held]
        drawn.append(lengths.lo[where] + offset)
        amounts.append(count)
    return _tally(np.concatenate(drawn), np.concatenate(amounts))


def split_documents(documents: Tally, max_length: int) -> Tally:
    """Split documents over `max_length` tokens into pieces of that length and the rest.

    >>> values, counts = split_documents((np.array([3, 10]), np.array([2, 1])), 4)
    >>> values.tolist(), counts.tolist()
    ([2, 3, 4], [1, 2, 2])
    """
    values, counts = documents
    whole, rest = np.divmod(values, max_length)
    num_whole = np.array([int(np.dot(whole, counts))], dtype=np.int64)
    return _tally(np.append(rest, max_length), np.append(counts, num_whole))


def _tally(values: NDArray[np.int64], counts: NDArray[np.int64]) -> Tally:
    held = (values > 0) & (counts > 0)
    order = np.argsort(values[held], kind="stable")
    values, counts = values[held][order], counts[held][order]
    first = np.flatnonzero(np.diff(values, prepend=-1))
    return values[first], np.add.reduceat(counts, first)


def _bit_length(values: NDArray[np.int64]) -> NDArray[np.int64]:
    depth = np.zeros(len(values), dtype=np.int64)
    for shift in range(int(values.max()).bit_length()):
        depth += (values >> shift) > 0
    return depth
