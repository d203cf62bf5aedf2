"""Whole numbers as options of a command: a range, without leading zeros. Not a command (its name starts with `_`)."""

from __future__ import annotations

from typing import Any

import click

from attnspec.errors import InputError
from attnspec.units import check_leading_zeros


class WholeNumber(click.ParamType):
    """What click.IntRange takes, but refuses 024: mostly half of 1,024."""

    name = "whole number"

    def __init__(self, least: int, most: int | None = None) -> None:
        self._range = click.IntRange(least, most)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number. Fails with what is allowed."""
        if isinstance(value, str):
            try:
                check_leading_zeros(value.strip())
            except InputError as error:
                self.fail(str(error), param, ctx)
        return self._range.convert(value, param, ctx)
