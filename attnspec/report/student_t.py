"""What moderated variances need of Student's t and of the gamma function, on arrays. Pure; numpy only.

Sources: continued fraction of the incomplete beta function, Abramowitz and Stegun 26.5.8; asymptotic series of digamma
and trigamma, ibid. 6.3.18 and 6.4.12.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
_NUM_FRACTIONS = 200
_NUM_HALVINGS = 50
_LARGE = 200.0
"""From so many degrees of freedom on, the expansion about the normal quantile is right to five digits."""


def upper_quantile(tail: float, dof: ArrayLike) -> Floats:
    """The t that a share `tail` (over 0, at most 0.5) of Student's distribution lies above; dof: over 0, per element.

    >>> upper_quantile(0.025, [1, 5, 30, 1e9]).round(3).tolist()
    [12.706, 2.571, 2.042, 1.96]
    """
    held = np.asarray(dof, dtype=np.float64)
    return np.where(held < _LARGE, _enclosed(tail, np.minimum(held, _LARGE)), _expanded(tail, np.maximum(held, _LARGE)))


def _expanded(tail: float, dof: Floats) -> Floats:
    """Abramowitz and Stegun 26.7.5."""
    z = NormalDist().inv_cdf(1 - tail)
    terms = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    found = np.full_like(dof, z)
    for power, term in enumerate(terms, start=1):
        found += term / dof**power
    return found


def _enclosed(tail: float, dof: Floats) -> Floats:
    """By halving an interval around it."""
    low, high = np.zeros_like(dof), np.ones_like(dof)
    for _ in range(_NUM_HALVINGS):
        short = _tail(high, dof) > tail
        if not short.any():
            break
        high = np.where(short, high * 4, high)
    for _ in range(_NUM_HALVINGS):
        middle = (low + high) / 2
        above = _tail(middle, dof) > tail
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return (low + high) / 2


def digamma(values: ArrayLike) -> Floats:
    """The derivative of log gamma, at positive values.

    >>> digamma([1.0, 10.0]).round(6).tolist()
    [-0.577216, 2.251753]
    """
    shifted = np.array(values, dtype=np.float64)
    total = np.zeros_like(shifted)
    while (small := shifted < 8).any():
        total[small] -= 1 / shifted[small]
        shifted[small] += 1
    square = 1 / shifted**2
    series = square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square / 240)))
    found: Floats = total + np.log(shifted) - 0.5 / shifted - series
    return found


def trigamma(values: ArrayLike) -> Floats:
    """The derivative of digamma, at positive values.

    >>> trigamma([1.0, 10.0]).round(6).tolist()
    [1.644934, 0.105166]
    """
    shifted = np.array(values, dtype=np.float64)
    total = np.zeros_like(shifted)
    while (small := shifted < 8).any():
        total[small] += 1 / shifted[small] ** 2
        shifted[small] += 1
    square = 1 / shifted**2
    series = square * (1 / 6 - square * (1 / 30 - square * (1 / 42 - square / 30)))
    found: Floats = total + (1 + series) / shifted + square / 2
    return found


def inverse_trigamma(value: float) -> float:
    """The positive number whose trigamma is `value`; infinity where that is not positive.

    >>> round(inverse_trigamma(1.6449340668), 6)
    1.0
    """
    if value <= 0:
        return math.inf
    low, high = 1e-8, 1.0
    while float(trigamma(high)) > value:
        low, high = high, high * 2
    for _ in range(_NUM_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if float(trigamma(middle)) > value else (low, middle)
    return (low + high) / 2


def _tail(t: Floats, dof: Floats) -> Floats:
    """The share of Student's distribution above t >= 0."""
    whole: Floats = _incomplete_beta(dof / (dof + t**2), dof / 2) / 2
    return whole


def _incomplete_beta(x: Floats, a: Floats) -> Floats:
    """I_x(a, 1/2), by the fraction that converges where x is."""
    b = np.full_like(a, 0.5)
    swap = x > (a + 1) / (a + b + 2)
    first, second, at = np.where(swap, b, a), np.where(swap, a, b), np.where(swap, 1 - x, x)
    log_beta = _log_gamma(first) + _log_gamma(second) - _log_gamma(first + second)
    with np.errstate(divide="ignore"):
        front = np.exp(first * np.log(at) + second * np.log1p(-at) - log_beta) / first
    found = front * _fraction(at, first, second)
    whole: Floats = np.where(swap, 1 - found, found)
    return whole


def _fraction(x: Floats, a: Floats, b: Floats) -> Floats:
    """Lentz's evaluation of the continued fraction."""
    tiny = 1e-300
    c = np.ones_like(x)
    d = 1 / _away(1 - (a + b) * x / (a + 1), tiny)
    total: Floats = d.copy()
    for m in range(1, _NUM_FRACTIONS):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _away(1 + numerator * d, tiny)
            c = _away(1 + numerator / c, tiny)
            step = c * d
            total = total * step
        if np.all(np.abs(step - 1) < 1e-11):
            break
    return total


def _away(values: Floats, tiny: float) -> Floats:
    return np.where(np.abs(values) < tiny, tiny, values)


def _log_gamma(values: Floats) -> Floats:
    return np.array([math.lgamma(one) for one in values.ravel()]).reshape(values.shape)
