"""Drawing packs: rows of documents whose lengths sum to exactly the total seqlen. Pure.

The definition: every document of the population gets a length from its bin; documents over `max_doc_fraction` of the
seqlen are split into pieces of that length; all pieces are shuffled and laid one after another; the row is cut every
`seqlen` tokens (what crosses a cut starts the next pack); the incomplete rest at the very end is dropped; the packs are
shuffled and the first `num_packs` are taken.

What runs here has exactly the same distribution and looks only at the wanted packs. Shuffled packs of which the first
few are taken are distinct pack numbers drawn at random, and only those places of the row are needed. The shuffled row
is found as a radix tree: give every piece an endless row of fair coins and sort by it, which is a uniformly random
order. At a node, the pieces whose next coin is heads come first; how many of each length do is Binomial(count, 1/2),
one bit a piece; and a side without a wanted place is not followed. Every node's coins are addressed by its path, so
nothing depends on which other places are visited: the first packs of a longer draw are those of a shorter one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from attnspec.errors import InputError
from attnspec.sample.coins import Coins
from attnspec.sample.documents import Tally, draw_pieces
from attnspec.sample.lengths import MAX_DOCUMENTS, Lengths

LEAF_PIECES = 4096  # nodes up to this size are shuffled outright; other values give other packs


def draw_packs(
    lengths: Lengths, *, seqlen: int, num_packs: int, max_doc_fraction: Fraction, seed: int
) -> list[NDArray[np.int64]]:
    """`num_packs` arrays (int64) of document lengths, each at least 1, that sum to `seqlen` tokens each.

    The same arguments give the same packs on every machine, rank and numpy version. Raises InputError when the
    documents hold fewer complete packs than asked, or an argument is outside its range.

    >>> from attnspec.sample.lengths import from_tally
    >>> lengths = from_tally("threes", np.array([3]), np.array([100]))
    >>> draw_packs(lengths, seqlen=12, num_packs=2, max_doc_fraction=Fraction(1, 4), seed=0)
    [array([3, 3, 3, 3]), array([3, 3, 3, 3])]
    """
    _check_whole("seqlen", seqlen, at_least=1)
    _check_whole("num_packs", num_packs, at_least=1)
    _check_whole("seed", seed, at_least=0)
    max_length = max_piece(seqlen, max_doc_fraction)
    num_pieces = int(np.dot(lengths.counts, -(-(lengths.hi - 1) // max_length)))
    if num_pieces > MAX_DOCUMENTS:
        raise InputError(
            f"{lengths.name}: up to {num_pieces} pieces of at most {max_length} tokens; allowed: up to 2**34; "
            "scale the counts down, or give shares"
        )
    pieces = draw_pieces(lengths, max_length=max_length, seed=seed)
    num_tokens = int(np.dot(*pieces))
    if num_tokens // seqlen < num_packs:
        raise InputError(
            f"{lengths.name} holds {lengths.num_documents} documents with {num_tokens} tokens, which fill "
            f"{num_tokens // seqlen} packs of {seqlen}; got num_packs {num_packs}; "
            f"allowed: at most {num_tokens // seqlen}, a shorter seqlen, or more documents"
        )
    numbers = _choose(num_tokens // seqlen, num_packs, Coins(seed, "packs", seqlen))
    parts: dict[int, list[NDArray[np.int64]]] = {number: [] for number in numbers}
    for ends, row in _visit(pieces, sorted(numbers), seqlen, seed):
        _cut(ends, row, seqlen, parts)
    return [np.concatenate(parts[number]) for number in numbers]


def max_piece(seqlen: int, max_doc_fraction: Fraction) -> int:
    """Tokens of the longest piece in a pack: `max_doc_fraction` of the seqlen, rounded down.

    >>> max_piece(65536, Fraction(1, 4))
    16384
    """
    if not 0 < max_doc_fraction <= 1:
        raise InputError(f"max_doc_fraction: got {max_doc_fraction}; allowed: a share over 0 and at most 1")
    longest = int(seqlen * max_doc_fraction)
    if longest < 1:
        raise InputError(
            f"max_doc_fraction: {max_doc_fraction} of a seqlen of {seqlen} is less than one token; "
            f"allowed: at least 1/{seqlen}"
        )
    return longest


def _choose(population: int, count: int, coins: Coins) -> list[int]:
    """The first `count` of a random order of range(population): Fisher and Yates, with only the moved ones held."""
    moved: dict[int, int] = {}
    chosen = []
    for place in range(count):
        other = place + coins.below(population - place)
        chosen.append(moved.get(other, other))
        moved[other] = moved.get(place, place)
    return chosen


def _visit(
    pieces: Tally, numbers: list[int], seqlen: int, seed: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Stretches of the shuffled row that touch a wanted pack, in order: the pieces' ends in tokens, their lengths."""
    waiting = [(*pieces, 0, "")]
    while waiting:
        values, counts, start, path = waiting.pop()
        end = start + int(np.dot(values, counts))
        if start == end or bisect_left(numbers, start // seqlen) == bisect_right(numbers, (end - 1) // seqlen):
            continue
        num_pieces = int(counts.sum())
        coins = Coins(seed, "row", seqlen, path)
        if num_pieces <= LEAF_PIECES:
            row = np.repeat(values, counts)[coins.order(num_pieces)]
            yield start + np.cumsum(row), row
            continue
        first = coins.heads(counts)
        second = counts - first
        middle = start + int(np.dot(values, first))
        waiting.append((values[second > 0], second[second > 0], middle, path + "1"))
        waiting.append((values[first > 0], first[first > 0], start, path + "0"))


def _cut(
    ends: NDArray[np.int64], row: NDArray[np.int64], seqlen: int, parts: dict[int, list[NDArray[np.int64]]]
) -> None:
    """Add to each wanted pack what this stretch of the row holds of it."""
    starts = ends - row
    for number in range(int(starts[0]) // seqlen, int(ends[-1] - 1) // seqlen + 1):
        if number in parts:
            low, high = number * seqlen, (number + 1) * seqlen
            inside = slice(int(np.searchsorted(ends, low, "right")), int(np.searchsorted(starts, high, "left")))
            parts[number].append(np.minimum(ends[inside], high) - np.maximum(starts[inside], low))


def _check_whole(name: str, value: int, *, at_least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise InputError(f"{name}: got {value!r}; allowed: an integer of {at_least} or more")
