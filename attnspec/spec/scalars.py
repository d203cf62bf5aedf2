"""Plain YAML scalars under the core schema of YAML 1.2.2, section 10.3.2. Pure.

PyYAML's own rules are those of YAML 1.1, where `yes` is true, `010` is 8, `1_000` is 1000 and `1:30` is 90. Stricter
than the core schema: numbers with leading zeros are refused, since `[1,024]` would be the list of 1 and 24.
"""

from __future__ import annotations

import math
import re

from attnspec.errors import InputError
from attnspec.units import check_leading_zeros

_NULL = re.compile(r"null|Null|NULL|~|")
_BOOL = re.compile(r"(?P<true>true|True|TRUE)|false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_MAX_CHARACTERS = 400

Scalar = str | int | float | bool | None


def resolve_plain(text: str) -> Scalar:
    """The value of an unquoted scalar.

    Raises ValueError for a number that is not finite, has leading zeros or is over 400 characters long.

    >>> [resolve_plain(text) for text in ("yes", "off", "10", "0o10", "1e3", "1:30", "1_000", "~", "True")]
    ['yes', 'off', 10, 8, 1000.0, '1:30', '1_000', None, True]
    """
    if _NULL.fullmatch(text):
        return None
    if match := _BOOL.fullmatch(text):
        return match["true"] is not None
    if _NOT_FINITE.fullmatch(text):
        raise ValueError(f"got {text}; allowed: a finite number")
    is_int, is_float = _INT.fullmatch(text), _FLOAT.fullmatch(text)
    if not is_int and not is_float:
        return text
    if len(text) > _MAX_CHARACTERS:
        raise ValueError(f"got a number of {len(text)} characters; allowed: at most {_MAX_CHARACTERS}")
    try:
        check_leading_zeros(text)
    except InputError as error:
        raise ValueError(f"{error}; text goes in quotes") from None
    if is_int:
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"got {text}, over the largest number; allowed: a finite number")
    return number
