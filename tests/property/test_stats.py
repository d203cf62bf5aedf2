import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnspec import stats

samples = st.lists(st.integers(1, 10**6), min_size=1, max_size=8)
rounds = st.lists(samples, min_size=1, max_size=8)


@given(rounds, st.integers(0, 2**64 - 1))
def test_each_bootstrap_median_is_the_median_of_the_drawn_rounds(held, seed):
    drawn = np.random.default_rng(seed).integers(len(held), size=(20, len(held)))
    expected = [np.median(np.concatenate([held[one] for one in row])) for row in drawn]
    assert stats.bootstrap_medians(held, seed=seed, num_resamples=20).tolist() == pytest.approx(expected)


@given(rounds)
def test_interval_lies_within_the_samples_and_repeats(held):
    low, high = stats.block_bootstrap_median(held, seed=7, num_resamples=100)
    every = [one for row in held for one in row]
    assert min(every) <= low <= high <= max(every)
    assert (low, high) == stats.block_bootstrap_median(held, seed=7, num_resamples=100)


def test_rounds_not_samples_are_drawn_again():
    drifting = [[10.0] * 50, [20.0] * 50]
    assert stats.block_bootstrap_median(drifting, seed=0) == (10.0, 20.0)
    mixed = [[10.0, 20.0] * 25] * 2
    assert stats.block_bootstrap_median(mixed, seed=0) == (15.0, 15.0)


def test_interval_of_a_sum_is_about_the_sum_of_medians():
    rng = np.random.default_rng(0)
    packs = [[rng.normal(100 * pack, 1, 4) for _ in range(10)] for pack in (1, 2, 3)]
    low, high = stats.block_bootstrap_sum(packs, seed=3)
    assert low < sum(np.median(np.concatenate(pack)) for pack in packs) < high
    assert high - low < 4


def test_interval_covers_the_true_median_about_as_often_as_it_says():
    rng = np.random.default_rng(5)
    hits = 0
    for trial in range(200):
        held = [rng.normal(50, 5, 4) for _ in range(12)]
        low, high = stats.block_bootstrap_median(held, seed=trial, num_resamples=200)
        hits += low <= 50 <= high
    assert 175 <= hits <= 200


@pytest.mark.parametrize("held", [[], [[], []]])
def test_no_samples_is_an_error_not_a_number(held):
    with pytest.raises(ValueError, match="no samples"):
        stats.bootstrap_medians(held, seed=0)
    with pytest.raises(ValueError, match="no samples"):
        stats.median([])


def test_zero_centre_is_never_narrow():
    assert stats.relative_half_width(stats.Interval(0.0, 0.0), 0.0) == float("inf")
