"""Drawing packs: rows of documents whose lengths sum to exactly the total seqlen. Pure.

The definition: every document of the population gets a length from its bin; documents over `max_doc_fraction` of the
seqlen are split into pieces of that length; all pieces are shuffled and laid one after another; the row is cut every
`seqlen` tokens (what crosses a cut starts the next pack); the incomplete rest at the very end is dropped; the packs are
shuffled and the first `num_packs` are taken.

What runs here has exactly the same distribution and looks only at the wanted packs: shuffled packs of which the first
few are taken are distinct pack numbers drawn at random, and `attnspec.sample.row` finds those places of the row. The
first packs of a longer draw are those of a shorter one.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from attnspec.errors import InputError
from attnspec.sample.coins import Coins
from attnspec.sample.documents import draw_pieces
from attnspec.sample.lengths import MAX_DOCUMENTS, Lengths
from attnspec.sample.row import stretches


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
    held = num_tokens // seqlen
    if held < num_packs:
        raise InputError(
            f"{lengths.name} holds {lengths.num_documents} documents with {num_tokens} tokens, which fill {held} packs "
            f"of {seqlen}; got num_packs {num_packs}; allowed: "
            + (f"at most {held} packs, " if held else "")
            + "a shorter seqlen, or more documents"
        )
    numbers = _choose(held, num_packs, Coins(seed, "packs", seqlen))
    parts: dict[int, list[NDArray[np.int64]]] = {number: [] for number in numbers}
    for start, row in stretches(pieces, sorted(numbers), seqlen=seqlen, seed=seed):
        _cut(start, row, seqlen, parts)
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


def piece_bounds(lengths: Lengths, *, seqlen: int, max_doc_fraction: Fraction) -> tuple[int, int]:
    """The shortest and the longest document of which whole packs may consist.

    What is cut at the ends of a pack is shorter and not counted, except where a pack may hold nothing else.

    >>> from attnspec.sample.lengths import from_tally
    >>> lengths = from_tally("three", np.array([5, 8, 21]), np.array([9, 9, 9]))
    >>> piece_bounds(lengths, seqlen=64, max_doc_fraction=Fraction(1, 2))
    (5, 21)
    >>> piece_bounds(lengths, seqlen=64, max_doc_fraction=Fraction(1, 4))  # 21 is split into 16 and 5
    (5, 16)
    >>> piece_bounds(lengths, seqlen=40, max_doc_fraction=Fraction(1))
    (1, 21)
    """
    max_length = max_piece(seqlen, max_doc_fraction)
    longest = min(int(lengths.hi.max()) - 1, max_length)
    if seqlen < 2 * longest - 1:
        return 1, longest
    # The last piece of a document of n tokens has (n - 1) % max_length + 1 of them.
    pieces_lo, rest_lo = np.divmod(lengths.lo - 1, max_length)
    pieces_hi = (lengths.hi - 2) // max_length
    return int(np.where(pieces_lo == pieces_hi, rest_lo + 1, 1).min()), longest


def _choose(population: int, count: int, coins: Coins) -> list[int]:
    """The first `count` of a random order of range(population): Fisher and Yates, with only the moved ones held."""
    moved: dict[int, int] = {}
    chosen = []
    for place in range(count):
        other = place + coins.below(population - place)
        chosen.append(moved.get(other, other))
        moved[other] = moved.get(place, place)
    return chosen


def _cut(start: int, row: NDArray[np.int64], seqlen: int, parts: dict[int, list[NDArray[np.int64]]]) -> None:
    """Add to each wanted pack what this stretch of the row, beginning at token `start`, holds of it."""
    ends = start + np.cumsum(row)
    starts = ends - row
    for number in range(start // seqlen, int(ends[-1] - 1) // seqlen + 1):
        if number in parts:
            low, high = number * seqlen, (number + 1) * seqlen
            inside = slice(int(np.searchsorted(ends, low, "right")), int(np.searchsorted(starts, high, "left")))
            parts[number].append(np.minimum(ends[inside], high) - np.maximum(starts[inside], low))


def _check_whole(name: str, value: int, *, at_least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise InputError(f"{name}: got {value!r}; allowed: an integer of {at_least} or more")
