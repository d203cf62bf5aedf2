"""The drawn distribution: exactly the definition's on small populations, and the source's on the real one.

All seeds are fixed, so no test here is decided by chance. Bounds lie five standard deviations out.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import permutations, product

import numpy as np
import pytest

from attnspec.sample import draw_packs, read_lengths
from attnspec.sample.documents import draw_pieces
from attnspec.sample.histogram import found, in_packs, octaves, standard_errors
from attnspec.sample.lengths import Bin, from_counts
from attnspec.sample.row import stretches


def _split(length, longest):
    return [longest] * (length // longest) + [length % longest] * (length % longest > 0)


def _cut(pieces, seqlen):
    """Complete packs of a row of pieces, token by token as the definition says."""
    owners = [index for index, piece in enumerate(pieces) for _ in range(piece)]
    windows = [owners[start : start + seqlen] for start in range(0, len(owners) - seqlen + 1, seqlen)]
    return [tuple(window.count(owner) for owner in dict.fromkeys(window)) for window in windows]


def exact_law(bins, *, seqlen, longest, num_packs):
    """The probability of every outcome, by going through all lengths, all orders and all choices of packs."""
    law = Counter()
    documents = [range(max(lo, 1), hi) for lo, hi, count in bins for _ in range(count)]
    for drawn in product(*documents):
        pieces = [piece for length in drawn for piece in _split(length, longest)]
        orders = list(permutations(pieces))
        for order in orders:
            choices = list(permutations(_cut(order, seqlen), num_packs))
            for chosen in choices:
                law[chosen] += Fraction(1, len(orders) * len(choices))
    total = sum(law.values())
    return {outcome: float(weight / total) for outcome, weight in law.items()}


CASES = [
    pytest.param([(2, 3, 4)], 3, Fraction(1), 1, id="packs that start with the rest of a document"),
    pytest.param([(1, 2, 2), (2, 3, 1), (3, 4, 1)], 3, Fraction(1), 1, id="one of two packs"),
    pytest.param([(1, 2, 2), (2, 3, 1), (3, 4, 1)], 3, Fraction(1), 2, id="both packs and their order"),
    pytest.param([(5, 6, 1), (1, 2, 2), (2, 3, 1)], 4, Fraction(1, 2), 1, id="a document that is split"),
    pytest.param([(0, 4, 2), (4, 5, 1)], 4, Fraction(1), 1, id="random lengths, a bin from 0, a width of 3"),
    pytest.param([(1, 2, 1), (4, 6, 2)], 3, Fraction(1), 2, id="cuts through most documents"),
]


def _lengths(bins):
    return from_counts("small", [Bin(lo=lo, hi=hi, amount=Fraction(count), place="") for lo, hi, count in bins])


def _chi_square(law, seen):
    draws = sum(seen.values())
    assert set(seen) <= set(law)
    return sum((seen[outcome] - draws * chance) ** 2 / (draws * chance) for outcome, chance in law.items())


def _bound(law):
    return len(law) - 1 + 5 * np.sqrt(2 * len(law))


def _compare(bins, seqlen, fraction, num_packs, num_seeds):
    law = exact_law(bins, seqlen=seqlen, longest=int(seqlen * fraction), num_packs=num_packs)
    seen = Counter()
    for seed in range(num_seeds):
        packs = draw_packs(_lengths(bins), seqlen=seqlen, num_packs=num_packs, max_doc_fraction=fraction, seed=seed)
        seen[tuple(tuple(pack.tolist()) for pack in packs)] += 1
    assert _chi_square(law, seen) < _bound(law)


@pytest.fixture(params=[1, 4096], ids=["tree to the last piece", "one leaf"])
def _leaf_pieces(request, monkeypatch):
    monkeypatch.setattr(stretches, "__kwdefaults__", {"leaf_pieces": request.param})


@pytest.mark.usefixtures("_leaf_pieces")
@pytest.mark.parametrize(("bins", "seqlen", "fraction", "num_packs"), [CASES[0], CASES[4]])
def test_small_populations_follow_the_definition(bins, seqlen, fraction, num_packs):
    _compare(bins, seqlen, fraction, num_packs, num_seeds=200)


@pytest.mark.slow
@pytest.mark.usefixtures("_leaf_pieces")
@pytest.mark.parametrize(("bins", "seqlen", "fraction", "num_packs"), CASES)
def test_small_populations_follow_the_definition_over_many_seeds(bins, seqlen, fraction, num_packs):
    _compare(bins, seqlen, fraction, num_packs, num_seeds=2000)


def test_the_comparison_tells_the_first_pack_from_a_random_one():
    law = exact_law([(2, 3, 4)], seqlen=3, longest=3, num_packs=1)
    assert law == {((2, 1),): 0.5, ((1, 2),): 0.5}
    assert _chi_square(law, Counter({((2, 1),): 250})) > _bound(law)


SEQLEN, LONGEST = 8192, 2048


@pytest.fixture(scope="module")
def page_packs():
    return draw_packs(read_lengths("page"), seqlen=SEQLEN, num_packs=400, max_doc_fraction=Fraction(1, 4), seed=2026)


@pytest.fixture(scope="module")
def page_pieces():
    return draw_pieces(read_lengths("page"), max_length=LONGEST, seed=2026)


def test_the_page_has_its_documents(page_pieces):
    page = read_lengths("page")
    values, counts = draw_pieces(page, max_length=200_000, seed=2026)
    assert counts.sum() == page.num_documents == 13_463_214
    means = np.dot(page.counts, (page.lo + page.hi - 1) / 2)
    spread = np.sqrt(np.dot(page.counts, ((page.hi - page.lo) ** 2 - 1) / 12))
    assert abs(np.dot(values, counts) - means) < 5 * spread
    assert np.dot(*page_pieces) == np.dot(values, counts)


def test_the_piece_at_the_middle_of_a_pack_has_the_source_distribution(page_packs, page_pieces):
    """A piece over the middle token is whole, since it is at most a quarter: its chance is its tokens' share."""
    lengths = [int(pack[np.searchsorted(np.cumsum(pack), SEQLEN // 2, side="right")]) for pack in page_packs]
    values, counts = page_pieces
    edges = np.array([1, 385, 769, 1025, 1281, 1537, 1793, LONGEST, LONGEST + 1])
    weights, _ = np.histogram(values, bins=edges, weights=(values * counts).astype(float))
    expected = weights / weights.sum() * len(lengths)
    seen, _ = np.histogram(lengths, bins=edges)
    assert expected.min() > 5
    assert ((seen - expected) ** 2 / expected).sum() < len(seen) - 1 + 5 * np.sqrt(2 * len(seen))


def test_packs_hold_what_their_average_says(page_packs, page_pieces):
    edges = octaves(LONGEST)
    average, drawn = in_packs(page_pieces, SEQLEN, edges), found(page_packs, edges)
    errors = standard_errors(page_packs, edges)
    held = drawn.documents >= 20
    assert held.sum() >= 8
    documents = (drawn.document_shares - average.document_shares)[held] / errors[0][held]
    tokens = (drawn.token_shares - average.token_shares)[held] / errors[1][held]
    assert np.abs(documents).max() < 4 and np.abs(tokens).max() < 4
    assert average.tokens.sum() == pytest.approx(float(np.dot(*page_pieces)))
    assert average.documents.sum() / average.tokens.sum() * SEQLEN == pytest.approx(
        np.mean([len(pack) for pack in page_packs]), rel=0.05
    )
