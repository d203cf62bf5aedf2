"""Reading the fields of length histograms: ranges, counts and shares as people write them. Pure."""

from __future__ import annotations

import re
from fractions import Fraction

from attnspec.errors import InputError

_RANGE = re.compile(r"\s*([\[(])\s*(-?\d+)\s*,\s*(-?\d+)\s*([\])])\s*", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)


def parse_range(text: str) -> tuple[int, int]:
    """A range of lengths as half-open [lo, hi). Square brackets include an end, round ones leave it out.

    >>> parse_range("[0, 10]"), parse_range("[0,32)"), parse_range("(10, 50]")
    ((0, 11), (0, 32), (11, 51))
    """
    match = _RANGE.fullmatch(text)
    if match is None:
        raise InputError(f"got the range {text!r}; allowed: two whole numbers in brackets, such as [0, 10] or [0, 11)")
    opening, low, high, closing = match.groups()
    return int(low) + (opening == "("), int(high) + (closing == "]")


def parse_whole(text: str, what: str) -> int:
    """A whole number; a decimal with nothing behind its point is one too.

    >>> parse_whole("30254", "a count"), parse_whole("12.0", "a count")
    (30254, 12)
    """
    number = _decimal(text)
    if number is None or number.denominator != 1:
        raise InputError(f"got {text!r} as {what}; allowed: a whole number without separators")
    return int(number)


def parse_share(text: str) -> tuple[Fraction, bool]:
    """A share, exact, and whether it was written with a percent sign (then it is divided by 100).

    >>> parse_share("0.125"), parse_share("12.5%")
    ((Fraction(1, 8), False), (Fraction(1, 8), True))
    """
    stripped = text.strip()
    percent = stripped.endswith("%")
    number = _decimal(stripped.removesuffix("%"))
    if number is None:
        raise InputError(f"got {text!r} as a share; allowed: a decimal number, or one with a percent sign")
    return (number / 100 if percent else number), percent


def _decimal(text: str) -> Fraction | None:
    stripped = text.strip()
    return Fraction(stripped) if _DECIMAL.fullmatch(stripped) else None
