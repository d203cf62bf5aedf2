"""Ratios of two measurements of many cases, with intervals that hold for all of them at once. Pure.

What is drawn again is the round (block bootstrap within packs, as for every interval here). A case has few rounds,
often five, so its own draws know their spread badly, and quantiles far out, which many comparisons need, not at all.
Hence: the draws give a variance; the variances of all cases moderate each other (an inverse-gamma prior whose width is
learnt from them; Smyth, 2004, "Linear models and empirical Bayes methods", section 6.2); and the interval is Student's,
at a level shared out over the cases (Bonferroni). What rounds cannot know, how the machine differs between the runs,
widens all intervals (`attnspec.report.drift`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special

from attnspec.report.drift import STEADY, Drift
from attnspec.stats import CONFIDENCE, bootstrap_medians, median, seed_of

NUM_RESAMPLES = 200
"""Enough for a variance: it is off by 5 percent, far less than what five rounds know of it."""
LEAST_CASES = 3
"""Fewer variances say nothing about their own spread, so each stands alone."""
LEAST_SHARE = 0.01
"""A variance below this share of the median one is chance: rounds that agree to the tick of the clock."""
CLOCK_VARIANCE_NS2 = 1 / 12
"""Of a time that is rounded to whole nanoseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """One pack's time. variance_ns2: of median_ns, by drawing its rounds again; None with a single round."""

    median_ns: float
    variance_ns2: float | None
    num_rounds: int


class Ratio(NamedTuple):
    """New time over old. The interval has no ends (0 and infinity) where nothing tells how rounds differ."""

    ratio: float
    low: float
    high: float


def pack_time(samples_by_round: Sequence[ArrayLike], *, seed: int) -> Pack:
    """The time of one pack from its samples in ns by round.

    Drawing n rounds from n gives (n - 1) / n of the variance on average; that is made good.

    >>> pack_time([[5, 5], [5]], seed=0)
    Pack(median_ns=5.0, variance_ns2=0.0, num_rounds=2)
    """
    count = len(samples_by_round)
    variance = None
    if count > 1:
        draws = bootstrap_medians(samples_by_round, seed=seed, num_resamples=NUM_RESAMPLES)
        variance = float(draws.var()) * count / (count - 1)
    return Pack(median_ns=median(np.concatenate(samples_by_round)), variance_ns2=variance, num_rounds=count)


def case_time(packs: Sequence[Sequence[ArrayLike]], *, name: str) -> list[Pack]:
    """The times of a case's packs; `name` seeds the draws, so that the same samples always give the same."""
    return [pack_time(rounds, seed=seed_of(f"{name}:{number}")) for number, rounds in enumerate(packs)]


def ratios(pairs: Sequence[tuple[Sequence[Pack], Sequence[Pack]]], *, drift: Drift = STEADY) -> list[Ratio]:
    """New over old for pairs (old packs, new packs); with probability CONFIDENCE all intervals hold.

    drift: what the machine itself did. An interval then holds whether that moved the case in full, in part or not.

    >>> old, new = (Pack(median_ns=time, variance_ns2=1, num_rounds=5) for time in (100, 110))
    >>> [tuple(round(one, 3) for one in ratio) for ratio in ratios([([old], [new])])]
    [(1.1, 1.066, 1.135)]
    """
    if not pairs:
        return []
    logs = np.array([math.log(_total(new) / _total(old)) for old, new in pairs])
    spreads = [_spread(old, new) for old, new in pairs]
    variances, dof = moderated(spreads)
    reach = np.full(len(pairs), np.inf)
    known = dof > 0
    tail = (1 - CONFIDENCE) / 2 / len(pairs)
    reach[known] = -np.sqrt(variances[known]) * special.stdtrit(dof[known], tail)
    reach = np.hypot(reach, drift.reach(len(pairs)))
    with np.errstate(over="ignore"):
        low, high = np.exp(logs - drift.high - reach), np.exp(logs - drift.low + reach)
    return [Ratio(*map(float, row)) for row in zip(np.exp(logs), low, high, strict=True)]


class Spread(NamedTuple):
    """How far off a log ratio may be, before other cases are asked.

    per_round: variance of a single round's relative time (NaN: unknown). dof: degrees of freedom of that. scale: what
    per_round is multiplied by to give the log ratio's variance. least: what the clock's tick alone makes of per_round.
    """

    per_round: float
    dof: float
    scale: float
    least: float


def moderated(spreads: Sequence[Spread]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The variances of log ratios and their degrees of freedom (0: nothing known), each moderated by the others.

    >>> variances, dof = moderated([Spread(1e-4, 8, 0.4, 0)] * 2)
    >>> variances.round(6).tolist(), dof.tolist()
    ([4e-05, 4e-05], [8.0, 8.0])
    """
    raw, dof, scale, least = (np.array(column, dtype=np.float64) for column in zip(*spreads, strict=True))
    known = ~np.isnan(raw)
    dof = np.where(known, dof, 0.0)
    if not known.any():
        return np.full(len(raw), np.nan), dof
    raw = np.where(known, raw, 0.0)
    floor = np.maximum(LEAST_SHARE * float(np.median(raw[known])), least)
    per_round = np.maximum(raw, floor)
    weight, prior = _prior(per_round[known], dof[known])
    total = dof + weight
    with np.errstate(invalid="ignore"):
        per_round = (weight * prior + dof * np.where(known, per_round, 0.0)) / total
    return per_round * scale, total


def _prior(variances: NDArray[np.float64], dof: NDArray[np.float64]) -> tuple[float, float]:
    """How many degrees of freedom the other cases are worth, and the variance that they expect."""
    if len(variances) < LEAST_CASES:
        return 0.0, 0.0
    logs = np.log(variances) - special.digamma(dof / 2) + np.log(dof / 2)
    own = float(special.polygamma(1, dof / 2).mean())
    # All cases together are worth no more than what they were measured with.
    weight = min(2 * _inverse_trigamma(float(logs.var(ddof=1)) - own), float(dof.sum()))
    return weight, math.exp(float(logs.mean()) + float(special.digamma(weight / 2)) - math.log(weight / 2))


def _inverse_trigamma(value: float) -> float:
    """The positive number whose trigamma is `value`; infinity where that is not positive, or lost in rounding.

    >>> round(_inverse_trigamma(1.6449340668), 6)
    1.0
    """
    if value < 1e-12:
        return math.inf
    # 1/x < trigamma(x) < 1/x + 1/x^2 holds the root between these.
    low, high = 1 / value, (1 + math.sqrt(1 + 4 * value)) / (2 * value)
    return float(optimize.brentq(lambda x: special.polygamma(1, x) - value, low, high))


def _total(packs: Sequence[Pack]) -> float:
    return sum(pack.median_ns for pack in packs)


def _spread(*sides: Sequence[Pack]) -> Spread:
    """Of both sides together: variances of log totals add up, with Satterthwaite's degrees of freedom."""
    variance = scale = known_scale = least = 0.0
    weights: list[tuple[float, int]] = []
    for packs in sides:
        total = _total(packs)
        for pack in packs:
            share = (pack.median_ns / total) ** 2 / pack.num_rounds
            scale += share
            if pack.variance_ns2 is not None:
                known_scale += share
                least += CLOCK_VARIANCE_NS2 / total**2
                part = pack.variance_ns2 / total**2
                variance += part
                weights.append((part, pack.num_rounds - 1))
    if not weights:
        return Spread(math.nan, 0.0, scale, 0.0)
    below = sum(part**2 / rounds for part, rounds in weights)
    dof = variance**2 / below if below > 0 else float(sum(rounds for _, rounds in weights))
    return Spread(variance / known_scale, dof, scale, least / known_scale)
