"""How far a machine itself moved, from a case that runs measure several times: the anchor. Pure.

Rounds of one pack say nothing about how the same machine differs a minute or a day later. Two things do. How an
anchor's times scatter over a run, beyond what its own rounds explain, gives a variance, with few degrees of freedom,
that all cases share; that it is one estimate for all is what makes a level for all cases at once affordable (the
studentized maximum modulus; Miller, 1981, "Simultaneous statistical inference", chapter 2). And where nothing that an
anchor's time depends on differs between two runs, its own change from one to the other is the machine's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, special

from attnspec.stats import CONFIDENCE

STEADY_WEIGHT = 2
"""A machine is believed to stand still with the weight of so many measurements, lest one again says everything."""
NOISE = 2.0
"""Standard errors within which an anchor's change from run to run is no change."""
_QUANTILES = 500
"""Points of the chi-square distribution over which a level is averaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """One case's times over a run: in its place, then again and again.

    times: in any unit, at least one. first_variance, again_variance: relative variances by rounds, of the first time
    and of a typical later one; 0 where they are not known. attempts: how many of the times each attempt took, in their
    order; () where one took all.
    """

    times: Sequence[float]
    first_variance: float
    again_variance: float
    attempts: Sequence[int] = ()

    @property
    def dof(self) -> int:
        """How often it was measured again."""
        return len(self.times) - 1

    @property
    def mean(self) -> float:
        """Mean logarithm of its times."""
        return float(np.log(self.times).mean())

    @property
    def variance(self) -> float:
        """Of the logarithm of one of its times, over the run; by rounds where it was not measured again."""
        return float(np.log(self.times).var(ddof=1)) if self.dof else self.first_variance

    @property
    def mean_variance(self) -> float:
        """Of `mean`. Times of one attempt share the state that the machine was in, so of several the means count too.

        >>> times = dict(times=[1, 1, 1, 2, 2, 2], first_variance=0, again_variance=0)
        >>> round(Anchor(**times).mean_variance, 3), round(Anchor(**times, attempts=[3, 3]).mean_variance, 3)
        (0.024, 0.12)
        """
        alone = self.variance / len(self.times)
        if len(self.attempts) < 2:
            return alone
        means = [one.mean() for one in np.split(np.log(self.times), np.cumsum(self.attempts)[:-1])]
        return max(alone, float(np.var(means, ddof=1)) / len(means))

    @property
    def excess(self) -> float:
        """What of that rounds do not explain; negative where it scatters less.

        >>> round(Anchor(times=[1, math.exp(0.2)], first_variance=0.005, again_variance=0.015).excess, 6)
        0.01
        """
        return self.variance - (self.first_variance + self.dof * self.again_variance) / len(self.times)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """What is known of the machine between two runs, in natural logarithms of times.

    low <= 0 <= high: how far it was seen to move from BASE to NEW. variance: of a log ratio, by how it moves within a
    run. dof: degrees of freedom of that; 0: nothing known.
    """

    low: float = 0.0
    high: float = 0.0
    variance: float = 0.0
    dof: int = 0

    @property
    def spread(self) -> float:
        """Standard deviation of a ratio by how the machine moves within a run, as a share.

        >>> round(Drift(variance=0.01, dof=3).spread, 3)
        0.105
        """
        return math.expm1(math.sqrt(self.variance))

    def reach(self, num_cases: int) -> float:
        """How far off log ratios of so many cases may be by it, all at once. 0 where nothing is known.

        >>> round(Drift(variance=0.01**2, dof=10).reach(7), 4), STEADY.reach(7)
        (0.0336, 0.0)
        """
        if not (self.variance and num_cases):
            return 0.0
        return critical(num_cases, self.dof) * math.sqrt(self.variance)

    def most(self, num_cases: int) -> float:
        """The largest change of time, as a share, that it may make of any of so many cases.

        >>> round(Drift(high=math.log(1.1)).most(7), 3)
        0.1
        """
        return math.expm1(max(self.high, -self.low) + self.reach(num_cases))


STEADY = Drift()
"""A machine of which no movement is known."""


def drift_of(base: Sequence[Anchor], new: Sequence[Anchor], shifts: Iterable[float] = ()) -> Drift:
    """From all anchors of both runs. shifts: those of `shift` that are the machine's.

    >>> old, now = (Anchor(times=times, first_variance=0, again_variance=0) for times in ([100, 102], [110, 112, 111]))
    >>> found = drift_of([old], [now], [shift(old, now)])
    >>> found.low, round(found.high, 3), round(found.spread, 3), found.dof
    (0.0, 0.094, 0.013, 5)
    """
    (old, old_dof), (now, now_dof) = (_excess(anchors) for anchors in (base, new))
    if not (old_dof and now_dof):  # one run's is the best guess of the other's
        old = now = old if old_dof else now
    dof = old_dof + now_dof
    variance = max(0.0, old + now) * dof / (dof + STEADY_WEIGHT)
    moved = [*shifts, 0.0]
    return Drift(low=min(moved), high=max(moved), variance=variance, dof=dof + STEADY_WEIGHT if dof else 0)


def shift(base: Anchor, new: Anchor) -> float:
    """Natural logarithm of an anchor's time in NEW over BASE; 0 where its own scatter explains it, or is not known.

    >>> first, second = (Anchor(times=[time], first_variance=0.01**2, again_variance=0) for time in (100, 102))
    >>> shift(first, second), round(shift(first, Anchor(times=[105], first_variance=0.01**2, again_variance=0)), 3)
    (0.0, 0.049)
    """
    moved = new.mean - base.mean
    if not all(one.dof or one.first_variance for one in (base, new)):
        return 0.0  # of a single round nobody knows how far it may be off
    error = math.sqrt(base.mean_variance + new.mean_variance)
    return moved if abs(moved) > NOISE * error else 0.0


def critical(num_cases: int, dof: int) -> float:
    """How many estimated standard deviations hold all of `num_cases` normal errors that share one estimate.

    Given the estimate, the chance of a miss is at most the sum of the tails, which needs no independence.

    >>> [round(critical(cases, dof), 1) for cases, dof in ((1, 10), (7, 10), (126, 10), (126, 2))]
    [2.2, 3.4, 4.8, 13.1]
    """
    upper = 1 - (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    estimated = np.sqrt(special.chdtri(dof, upper) / dof)

    def missed(factor: float) -> float:
        return float(np.minimum(1, 2 * num_cases * special.ndtr(-factor * estimated)).mean()) - (1 - CONFIDENCE)

    return float(optimize.brentq(missed, 0.0, 1e4))


def _excess(anchors: Iterable[Anchor]) -> tuple[float, int]:
    """Of all anchors of a run, and its degrees of freedom."""
    known = [one for one in anchors if one.dof]
    dof = sum(one.dof for one in known)
    return (sum(one.dof * one.excess for one in known) / dof, dof) if dof else (0.0, 0)
