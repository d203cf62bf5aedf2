"""Reading the fields of length histograms: ranges, counts and shares as people write them. Pure."""

from __future__ import annotations

import re
from fractions import Fraction

from attnspec.errors import InputError
from attnspec.units import check_leading_zeros

_RANGE = re.compile(r"\s*([\[(])\s*(-?\d{1,20})\s*,\s*(-?\d{1,20})\s*([\])])\s*", re.ASCII)
# Bounded, so that a number of a few characters cannot ask for gigabytes of digits.
_DECIMAL = re.compile(r"[+-]?(\d{1,60}(\.\d{0,60})?|\.\d{1,60})([eE][+-]?\d{1,3})?", re.ASCII)


def parse_range(text: str) -> tuple[int, int]:
    """A range of lengths as half-open [lo, hi). Square brackets include an end, round ones leave it out.

    >>> parse_range("[0, 10]"), parse_range("[0,32)"), parse_range("(10, 50]")
    ((0, 11), (0, 32), (11, 51))
    """
    match = _RANGE.fullmatch(text)
    if match is None:
        raise InputError(
            f"got the range {_short(text)}; allowed: two whole numbers in brackets, such as [0, 10] or [0, 11)"
        )
    opening, low, high, closing = match.groups()
    check_leading_zeros(low)
    check_leading_zeros(high)
    return int(low) + (opening == "("), int(high) + (closing == "]")


def parse_decimal(text: str) -> Fraction:
    """A decimal number, exact.

    >>> parse_decimal("1.5e-1")
    Fraction(3, 20)
    """
    stripped = text.strip()
    if not _DECIMAL.fullmatch(stripped):
        raise InputError(f"got {_short(text)}; allowed: a decimal number")
    return Fraction(stripped)


def parse_whole(text: str, what: str) -> int:
    """A whole number; a decimal with nothing behind its point is one too.

    >>> parse_whole("30254", "a count"), parse_whole("12.0", "a count")
    (30254, 12)
    """
    number = Fraction(text.strip()) if _DECIMAL.fullmatch(text.strip()) else None
    if number is None or number.denominator != 1:
        raise InputError(f"got {_short(text)} as {what}; allowed: a whole number without separators")
    check_leading_zeros(text.strip())
    return int(number)


def parse_share(text: str) -> tuple[Fraction, bool]:
    """A share, exact, and whether it was written with a percent sign (then it is divided by 100).

    >>> parse_share("0.125"), parse_share("12.5%")
    ((Fraction(1, 8), False), (Fraction(1, 8), True))
    """
    stripped = text.strip()
    percent = stripped.endswith("%")
    digits = stripped.removesuffix("%").strip()
    if not _DECIMAL.fullmatch(digits):
        raise InputError(f"got {_short(text)} as a share; allowed: a decimal number, or one with a percent sign")
    return (Fraction(digits) / 100 if percent else Fraction(digits)), percent


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
