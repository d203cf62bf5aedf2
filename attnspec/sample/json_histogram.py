"""Length histograms in JSON: an object from ranges such as `[0,32)` to shares."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

from attnspec.errors import InputError
from attnspec.sample.fields import parse_decimal, parse_range, parse_share
from attnspec.sample.lengths import Bin, Lengths, from_shares

_ALLOWED = 'an object from ranges to shares, such as {"[0,32)": 0.25, "[32,64)": 0.75}'


class _Pairs(list[tuple[str, Any]]):
    """An object's members in file order, repeated keys included."""


def read_json(path: Path, name: str) -> Lengths:
    """A population from a JSON object of shares, exactly as written. Raises InputError with the entry."""
    try:
        content = json.loads(
            path.read_text(encoding="utf-8-sig"),
            object_pairs_hook=_Pairs,
            parse_float=parse_decimal,
            parse_int=parse_decimal,
            parse_constant=str,
        )
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is not UTF-8 text; allowed: a JSON file in UTF-8") from error
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{error.lineno}: not JSON: {error.msg}; allowed: {_ALLOWED}") from error
    except RecursionError as error:
        raise InputError(f"{path}: nested too deeply; allowed: {_ALLOWED}") from error
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    if not isinstance(content, _Pairs) or not content:
        raise InputError(f"{path}: got {_kind(content)}; allowed: {_ALLOWED}")
    bins = []
    signs = set()
    for number, (key, value) in enumerate(content, start=1):
        place = f"{path}: entry {number} {key!r}"
        try:
            lo, hi = parse_range(key)
            share, percent = _share(value)
        except InputError as error:
            raise InputError(f"{place}: {error}") from error
        signs.add(percent)
        if len(signs) > 1:
            raise InputError(f"{place}: some shares have a percent sign and some have none; allowed: one way for all")
        bins.append(Bin(lo=lo, hi=hi, amount=share, place=place))
    return from_shares(name, bins)


def _share(value: Any) -> tuple[Fraction, bool]:
    if isinstance(value, Fraction):
        return value, False
    if isinstance(value, str):
        return parse_share(value)
    raise InputError(f"got {_kind(value)} as a share; allowed: a number, or a string such as '12.5%'")


def _kind(value: Any) -> str:
    if isinstance(value, _Pairs):
        return "an object" if value else "an empty object"
    if isinstance(value, bool) or value is None:
        return str(value).lower().replace("none", "null")
    return {"list": "a list", "Fraction": "a number", "str": "a string"}[type(value).__name__]
