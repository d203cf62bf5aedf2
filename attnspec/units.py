"""Reading and writing quantities: token counts, fractions, percentages, byte sizes. Pure."""

from __future__ import annotations

import re
from fractions import Fraction

from attnspec.errors import InputError

_SUFFIXES = {"": 1, "K": 1024, "M": 1024**2}
_COUNT = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<suffix>[A-Za-z]*)", re.ASCII)
_FRACTION = re.compile(r"(?P<top>\d+)\s*/\s*(?P<bottom>\d+)", re.ASCII)
_PERCENT = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*%", re.ASCII)
_DECIMAL = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
_LEADING_ZERO = re.compile(r"[-+]?0\d", re.ASCII)
_LONGEST = 60
"""Characters of a number; what is longer is no quantity, and Python refuses to read 5,000 digits."""
MAX_COUNT = 2**62


def check_leading_zeros(text: str) -> None:
    """Raise InputError for a number such as 024: mostly half of 1,024, which lists take for two values.

    >>> check_leading_zeros("0"), check_leading_zeros("0.5K")
    (None, None)
    """
    if _LEADING_ZERO.match(text):
        raise InputError(
            f"got {text!r}; allowed: no leading zeros (a comma separates two values; write 1024 or 1K, not 1,024)"
        )


def parse_count(value: int | str, *, least: int = 1) -> int:
    """A token count of at least `least`: an integer, or text with the binary suffix K (1024) or M (1048576).

    Raises InputError for anything else: other suffixes, signs, separators, leading zeros, a fraction of a token,
    booleans.

    >>> parse_count("64K"), parse_count("1.5K"), parse_count("1M"), parse_count(8192), parse_count("0K", least=0)
    (65536, 1536, 1048576, 8192, 0)
    """
    integer = "a positive integer" if least == 1 else f"an integer of {least} or more"
    allowed = f"{integer}, or one with the suffix K (1024) or M (1048576) such as 64K, 1.5K, 1M"
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise InputError(f"got {_told(value)}; allowed: {allowed}")
    if isinstance(value, int):
        count = Fraction(value)
    else:
        match = _COUNT.fullmatch(value) if len(value) <= _LONGEST else None
        if match is None:
            raise InputError(f"got {_told(value)}; allowed: {allowed}")
        check_leading_zeros(value)
        suffix = match["suffix"]
        if suffix not in _SUFFIXES:
            hint = f"; write {match['number']}{suffix.upper()}" if suffix.upper() in _SUFFIXES else ""
            raise InputError(f"got {value!r}: unknown suffix {suffix!r}{hint}; allowed: {allowed}")
        count = Fraction(match["number"]) * _SUFFIXES[suffix]
    if count.denominator != 1:
        raise InputError(f"got {value!r}, which is {float(count)} tokens; allowed: {allowed}")
    if not least <= count <= MAX_COUNT:
        raise InputError(f"got {value!r}; allowed: {allowed}, at most 2**62")
    return int(count)


def format_count(count: int) -> str:
    """The shortest exact spelling of a token count.

    >>> format_count(65536), format_count(1536), format_count(1048576), format_count(1000)
    ('64K', '1.5K', '1M', '1000')
    """
    for suffix, unit in (("M", 1024**2), ("K", 1024)):
        if count >= unit and count * 2 % unit == 0:
            whole, half = divmod(count * 2 // unit, 2)
            return f"{whole}{'.5' if half else ''}{suffix}"
    return str(count)


def parse_fraction(value: float | str) -> Fraction:
    """A share of a whole in (0, 1]: `1/4`, `0.25`, `25%`; the decimal as a number or as a command line's text.

    >>> parse_fraction("1/4"), parse_fraction(0.25), parse_fraction("25%"), parse_fraction("0.25")
    (Fraction(1, 4), Fraction(1, 4), Fraction(1, 4), Fraction(1, 4))
    """
    allowed = "a share over 0 and at most 1, such as 1/4, 0.25 or 25%"
    share: Fraction | None = None
    if isinstance(value, str) and len(value) <= _LONGEST:
        if match := _FRACTION.fullmatch(value.strip()):
            share = Fraction(int(match["top"]), int(match["bottom"])) if int(match["bottom"]) else None
        elif match := _PERCENT.fullmatch(value.strip()):
            share = Fraction(match["number"]) / 100
        elif match := _DECIMAL.fullmatch(value.strip()):
            share = Fraction(match[0])
    elif isinstance(value, int | float) and not isinstance(value, bool) and value == value:
        share = Fraction(str(value)) if abs(value) != float("inf") else None
    if share is None or not 0 < share <= 1:
        raise InputError(f"got {_told(value)}; allowed: {allowed}")
    return share


def format_bytes(count: float) -> str:
    """Bytes in binary units for people.

    >>> format_bytes(5 * 1024**3), format_bytes(512)
    ('5.0 GiB', '512 B')
    """
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if count < 1024:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:.1f} TiB"


def counted(count: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "node"), counted(2016, "case")
    ('1 node', '2,016 cases')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _told(value: object) -> str:
    """As a spec says it."""
    return str(value).lower() if isinstance(value, bool) else repr(value)
