"""Coins: the words are PCG64's own, heads are exactly the ones counted, orders and choices are uniform."""

from __future__ import annotations

import hashlib
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnspec.ids import canonical_json
from attnspec.sample import coins as coins_module
from attnspec.sample.coins import Coins

_MULTIPLIER = (2549297995355413924 << 64) | 4865540595714422341
_MASK_128, _MASK_64 = (1 << 128) - 1, (1 << 64) - 1


def _pcg64(state: int, increment: int, count: int) -> list[int]:
    """O'Neill's XSL-RR 128/64 in Python integers."""
    words = []
    for _ in range(count):
        state = (state * _MULTIPLIER + increment) & _MASK_128
        folded, turn = (state >> 64) ^ (state & _MASK_64), state >> 122
        words.append(((folded >> turn) | (folded << (64 - turn))) & _MASK_64)
    return words


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**80), label=st.text(max_size=5))
def test_words_are_those_of_the_published_generator(seed, label):
    digest = hashlib.sha256(canonical_json(["attnspec.sample", 1, seed, label]).encode()).digest()
    state, increment = int.from_bytes(digest[:16], "little"), int.from_bytes(digest[16:], "little") | 1
    assert Coins(seed, label).words(5).tolist() == _pcg64(state, increment, 5)


@settings(deadline=None, max_examples=60)
@given(counts=st.lists(st.integers(0, 300), max_size=20), chunk=st.integers(1, 4), seed=st.integers(0, 99))
def test_heads_are_the_ones_among_as_many_coins(counts, chunk, seed):
    words = Coins(seed, "x").words(sum(counts) // 64 + 1).tolist() if counts else []
    coins = [word >> bit & 1 for word in words for bit in range(64)]
    ends = np.cumsum([0, *counts]).tolist()
    expected = [sum(coins[start:end]) for start, end in pairwise(ends)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coins_module, "_CHUNK_WORDS", chunk)
        assert Coins(seed, "x").heads(np.array(counts, dtype=np.int64)).tolist() == expected


def test_large_counts_are_binomial():
    counts = np.full(400, 10**6, dtype=np.int64)
    scores = (Coins(1, "big").heads(counts) - counts / 2) / np.sqrt(counts / 4)
    assert abs(scores.mean()) < 5 / 20
    assert abs((scores**2).mean() - 1) < 5 * np.sqrt(2) / 20


def test_orders_are_uniform():
    coins = Coins(2, "order")
    seen = Counter(tuple(coins.order(4).tolist()) for _ in range(4800))
    assert len(seen) == 24
    assert sum((count - 200) ** 2 / 200 for count in seen.values()) < 23 + 5 * np.sqrt(46)


def test_an_order_with_equal_words_is_drawn_again(monkeypatch):
    answers = iter([np.array([7, 3, 7], dtype=np.uint64), np.array([2, 1, 3], dtype=np.uint64)])
    coins = Coins(0, "ties")
    monkeypatch.setattr(coins, "words", lambda count: next(answers))
    assert coins.order(3).tolist() == [1, 0, 2]


@pytest.mark.parametrize("bound", [1, 2, 3, 7, 64, 2**40 + 1, 2**64])
def test_below_stays_below_and_reaches_its_range(bound):
    coins = Coins(3, "below")
    drawn = [coins.below(bound) for _ in range(300)]
    assert all(0 <= number < bound for number in drawn)
    if bound <= 7:
        assert set(drawn) == set(range(bound))
    else:
        assert max(drawn) > bound * 0.9


def test_addresses_are_independent():
    labels = [(0, "a"), (0, "b"), (1, "a"), (0, "a", ""), (0, "a", "0"), (0, "a", 0), (10, "a")]
    assert len({tuple(Coins(*label).words(2).tolist()) for label in labels}) == len(labels)
