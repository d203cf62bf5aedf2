"""Whole numbers as options of a command: a range, without leading zeros. Not a command (its name starts with `_`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from attnspec.errors import InputError
from attnspec.units import check_leading_zeros


def whole_number(least: int, most: int | None = None) -> Callable[[Any], int]:
    """What click.IntRange takes, but refuses 024: mostly half of 1,024. For `type` of a click.option."""
    within = click.IntRange(least, most)

    def number(value: Any) -> int:
        try:
            check_leading_zeros(str(value).strip())
        except InputError as error:
            raise click.BadParameter(str(error)) from None
        return int(within.convert(value, None, None))

    return number
