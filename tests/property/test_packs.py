"""Packs: what holds for every population, seqlen and seed."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnspec.errors import InputError
from attnspec.sample import draw_packs, read_lengths
from attnspec.sample.coins import Coins
from attnspec.sample.documents import draw_documents, draw_pieces, split_documents
from attnspec.sample.lengths import Bin, from_counts, from_tally
from attnspec.sample.packs import max_piece
from attnspec.sample.row import stretches

FRACTIONS = st.sampled_from([Fraction(1, 4), Fraction(1, 3), Fraction(2, 5), Fraction(1, 1)])


@st.composite
def populations(draw):
    edges = sorted({*draw(st.sets(st.integers(0, 60), min_size=1, max_size=5)), 61})
    counts = draw(st.lists(st.integers(0, 40), min_size=len(edges) - 1, max_size=len(edges) - 1))
    bins = [
        Bin(lo=lo, hi=hi, amount=Fraction(count), place=f"bin {lo}")
        for lo, hi, count in zip(edges, edges[1:], [*counts[:-1], counts[-1] + 1], strict=False)
    ]
    return from_counts("drawn", bins)


@settings(deadline=None, max_examples=20)
@given(lengths=populations(), seed=st.integers(0, 2**70))
def test_every_document_gets_a_length_of_its_bin(lengths, seed):
    values, counts = draw_documents(lengths, Coins(seed, "documents"))
    assert (np.diff(values) > 0).all() and (counts > 0).all()
    for lo, hi, count in zip(lengths.lo, lengths.hi, lengths.counts, strict=True):
        assert counts[(values >= lo) & (values < hi)].sum() == count


@settings(deadline=None, max_examples=20)
@given(lengths=populations(), longest=st.integers(1, 70))
def test_splitting_keeps_every_token(lengths, longest):
    documents = draw_documents(lengths, Coins(0, "documents"))
    values, counts = split_documents(documents, longest)
    assert values.max() <= longest and values.min() >= 1
    assert np.dot(values, counts) == np.dot(*documents)
    assert counts.sum() == sum(count * -(-value // longest) for value, count in zip(*documents, strict=True))


@settings(deadline=None, max_examples=20)
@given(lengths=populations(), seqlen=st.integers(20, 80), leaf=st.sampled_from([1, 3, 4096]), seed=st.integers(0, 9))
def test_the_whole_row_holds_every_piece_once(lengths, seqlen, leaf, seed):
    pieces = draw_pieces(lengths, max_length=seqlen, seed=seed)
    num_tokens = int(np.dot(*pieces))
    everywhere = range(num_tokens // seqlen + 1)
    found, place = [], 0
    for start, row in stretches(pieces, everywhere, seqlen=seqlen, seed=seed, leaf_pieces=leaf):
        assert start == place
        place += int(row.sum())
        found.extend(row.tolist())
    assert place == num_tokens
    assert sorted(found) == np.repeat(*pieces).tolist()


@settings(deadline=None, max_examples=20)
@given(lengths=populations(), seqlen=st.integers(4, 80), fraction=FRACTIONS, seed=st.integers(0, 9), data=st.data())
def test_packs_sum_to_the_seqlen_and_hold_the_cap(lengths, seqlen, fraction, seed, data):
    num_tokens = int(np.dot(*draw_pieces(lengths, max_length=max_piece(seqlen, fraction), seed=seed)))
    held = num_tokens // seqlen
    arguments = {"seqlen": seqlen, "max_doc_fraction": fraction, "seed": seed}
    with pytest.raises(InputError, match=f"holds {lengths.num_documents} documents with {num_tokens} tokens"):
        draw_packs(lengths, num_packs=held + 1, **arguments)
    if not held:
        return
    packs = draw_packs(lengths, num_packs=held, **arguments)
    assert len(packs) == held
    for pack in packs:
        assert pack.dtype == np.int64 and pack.sum() == seqlen
        assert pack.min() >= 1 and pack.max() <= seqlen * fraction
    fewer = data.draw(st.integers(1, held))
    again = draw_packs(lengths, num_packs=fewer, **arguments)
    assert [pack.tolist() for pack in again] == [pack.tolist() for pack in packs[:fewer]]


def test_all_packs_of_a_row_are_that_row_in_another_order():
    lengths = from_tally("few", np.array([2, 3, 5]), np.array([4, 4, 4]))
    packs = draw_packs(lengths, seqlen=7, num_packs=5, max_doc_fraction=Fraction(1), seed=4)
    ((_, row),) = stretches(draw_pieces(lengths, max_length=7, seed=4), range(6), seqlen=7, seed=4)
    tokens = np.repeat(np.arange(len(row)), row)
    cut = [np.unique(tokens[start : start + 7], return_counts=True)[1].tolist() for start in range(0, 35, 7)]
    assert sorted(pack.tolist() for pack in packs) == sorted(cut)


def test_seeds_differ_and_zero_is_one_of_them():
    page = read_lengths("page")
    draw = {"seqlen": 4096, "num_packs": 2, "max_doc_fraction": Fraction(1, 4)}
    zero, again, one = (draw_packs(page, seed=seed, **draw) for seed in (0, 0, 1))
    assert [pack.tolist() for pack in zero] == [pack.tolist() for pack in again]
    assert [pack.tolist() for pack in zero] != [pack.tolist() for pack in one]


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("seed", -1, "an integer of 0 or more"),
        ("seed", True, "an integer of 0 or more"),
        ("seed", False, "an integer of 0 or more"),
        ("seed", 1.0, "an integer of 0 or more"),
        ("seed", "7", "an integer of 0 or more"),
        ("seed", None, "an integer of 0 or more"),
        ("num_packs", 0, "an integer of 1 or more"),
        ("num_packs", True, "an integer of 1 or more"),
        ("seqlen", 0, "an integer of 1 or more"),
        ("max_doc_fraction", Fraction(0), "a share over 0 and at most 1"),
        ("max_doc_fraction", Fraction(5, 4), "a share over 0 and at most 1"),
        ("max_doc_fraction", Fraction(1, 65), "at least 1/64"),
    ],
)
def test_arguments_outside_their_range_are_refused(name, value, allowed):
    arguments = {"seqlen": 64, "num_packs": 1, "max_doc_fraction": Fraction(1, 4), "seed": 0} | {name: value}
    with pytest.raises(InputError, match=f"^{name}: .*{allowed}"):
        draw_packs(from_tally("ones", np.array([1]), np.array([1000])), **arguments)


def test_a_population_too_large_to_count_is_refused():
    lengths = from_tally("huge", np.array([2**30]), np.array([2**20]))
    with pytest.raises(
        InputError, match=r"huge: up to 70368744177664 pieces of at most 16 tokens; allowed: up to 2\*\*34"
    ):
        draw_packs(lengths, seqlen=64, num_packs=1, max_doc_fraction=Fraction(1, 4), seed=0)
