"""Statistics of raw samples: medians, percentiles and block-bootstrap intervals. Pure; numpy only.

Samples of one round are taken close together and drift together, so rounds, not samples, are what the bootstrap draws
again (block bootstrap). Seeds are arguments: the same samples and seed give the same interval everywhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

NUM_RESAMPLES = 1000
CONFIDENCE = 0.95


class Interval(NamedTuple):
    """Lower and upper end, in the unit of the samples."""

    low: float
    high: float


def seed_of(text: str) -> int:
    """A 64-bit seed from any text, the same on every machine.

    >>> seed_of("case") == seed_of("case") != seed_of("other")
    True
    """
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def median(samples: ArrayLike) -> float:
    """Median of at least one sample.

    >>> median([3, 1, 2, 10])
    2.5
    """
    return percentile(samples, 50)


def percentile(samples: ArrayLike, percent: float) -> float:
    """Percentile by linear interpolation between order statistics.

    >>> percentile([1, 2, 3, 4, 5], 20)
    1.8
    """
    held = np.asarray(samples, dtype=np.float64)
    if held.size == 0:
        raise ValueError("no samples")
    return float(np.percentile(held, percent))


def bootstrap_medians(
    samples_by_round: Sequence[ArrayLike], *, seed: int, num_resamples: int = NUM_RESAMPLES
) -> NDArray[np.float64]:
    """Medians of `num_resamples` sets of as many rounds, drawn with replacement. Empty rounds are left out.

    >>> bootstrap_medians([[5, 5], [5]], seed=0, num_resamples=3)
    array([5., 5., 5.])
    """
    rounds = [held for one in samples_by_round if (held := np.asarray(one, dtype=np.float64)).size]
    if not rounds:
        raise ValueError("no samples")
    sizes = np.array([one.size for one in rounds])
    values = np.concatenate(rounds)
    order = np.argsort(values, kind="stable")
    round_of = np.repeat(np.arange(len(rounds)), sizes)[order]
    values = values[order]
    drawn = np.random.default_rng(seed).integers(len(rounds), size=(num_resamples, len(rounds)))
    times = np.zeros((num_resamples, len(rounds)), dtype=np.int32)
    np.add.at(times, (np.arange(num_resamples)[:, None], drawn), 1)
    below = np.cumsum(times[:, round_of], axis=1)  # how many drawn samples are among the smallest j + 1
    total = below[:, -1]
    lower = np.argmax(below > ((total - 1) // 2)[:, None], axis=1)
    upper = np.argmax(below > (total // 2)[:, None], axis=1)
    return np.asarray((values[lower] + values[upper]) / 2, dtype=np.float64)


def block_bootstrap_median(
    samples_by_round: Sequence[ArrayLike],
    *,
    seed: int,
    num_resamples: int = NUM_RESAMPLES,
) -> Interval:
    """Interval of the median of one pack's samples, rounds drawn again.

    >>> block_bootstrap_median([[1, 1], [3, 3]], seed=1)
    Interval(low=1.0, high=3.0)
    """
    return interval(bootstrap_medians(samples_by_round, seed=seed, num_resamples=num_resamples))


def block_bootstrap_sum(
    packs: Sequence[Sequence[ArrayLike]],
    *,
    seed: int,
) -> Interval:
    """Interval of the sum over packs of their medians; each pack's rounds are drawn on their own.

    >>> block_bootstrap_sum([[[1, 1]], [[4, 4]]], seed=1)
    Interval(low=5.0, high=5.0)
    """
    draws = [bootstrap_medians(rounds, seed=seed_of(f"{seed}:{pack}")) for pack, rounds in enumerate(packs)]
    return interval(np.sum(draws, axis=0))


def interval(draws: ArrayLike, *, confidence: float = CONFIDENCE) -> Interval:
    """The central interval that holds a share `confidence` of bootstrap draws.

    >>> interval([0, 1, 2, 3, 4], confidence=0.5)
    Interval(low=1.0, high=3.0)
    """
    held = np.asarray(draws, dtype=np.float64)
    tail = 50 * (1 - confidence)
    low, high = np.percentile(held, [tail, 100 - tail])
    return Interval(float(low), float(high))


def relative_half_width(bounds: Interval, centre: float) -> float:
    """Half the interval's width over its centre: what a spec's `ci` limits. Infinite where the centre is not positive.

    >>> relative_half_width(Interval(0.98, 1.02), 1.0)  # doctest: +ELLIPSIS
    0.02...
    """
    return (bounds.high - bounds.low) / 2 / centre if centre > 0 else float("inf")
