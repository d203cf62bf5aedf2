"""The shuffled row of a population's pieces, looked at only where packs are wanted. Pure.

The row is found as a radix tree: give every piece an endless row of fair coins and sort by it, which is a uniformly
random order. At a node, the pieces whose next coin shows heads come first; how many of each length do is
Binomial(count, 1/2), one coin a piece; and a side without a wanted pack is not followed. Every node's coins are
addressed by its path, so what a place holds does not depend on which other places are visited.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from attnspec.sample.coins import Coins
from attnspec.sample.documents import Tally

LEAF_PIECES = 4096
"""Nodes up to this size are shuffled outright. Another value gives other packs of the same distribution."""


def stretches(
    pieces: Tally, numbers: Sequence[int], *, seqlen: int, seed: int, leaf_pieces: int = LEAF_PIECES
) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """The stretches of the row, in order, that touch packs with these ascending numbers: first token, pieces' lengths.

    Pack n is the row's tokens [n seqlen, (n + 1) seqlen). Costs one coin a piece for the top of the tree and about as
    much again for all the rest; memory for the distinct lengths.
    """
    waiting = [(*pieces, 0, "")]
    while waiting:
        values, counts, start, path = waiting.pop()
        end = start + int(np.dot(values, counts))
        if start == end or bisect_left(numbers, start // seqlen) == bisect_right(numbers, (end - 1) // seqlen):
            continue
        num_pieces = int(counts.sum())
        coins = Coins(seed, "row", seqlen, path)
        if num_pieces <= leaf_pieces:
            yield start, np.repeat(values, counts)[coins.order(num_pieces)]
            continue
        heads = coins.heads(counts)
        tails = counts - heads
        middle = start + int(np.dot(values, heads))
        waiting.append((values[tails > 0], tails[tails > 0], middle, path + "1"))
        waiting.append((values[heads > 0], heads[heads > 0], start, path + "0"))
