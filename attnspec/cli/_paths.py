"""Paths as a command line takes them. Not a command (its name starts with `_`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


class _Path(click.Path):
    """A path with a name: an empty text would mean the current folder, and what is not UTF-8 fits into no JSON file."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        text = str(value)
        if not text:
            self.fail("got an empty path", param, ctx)
        try:
            text.encode()
        except UnicodeEncodeError:
            self.fail(f"got {text!r}; allowed: a path in UTF-8", param, ctx)
        return super().convert(value, param, ctx)


PATH = _Path(path_type=Path)
FILE = _Path(path_type=Path, dir_okay=False)
NAME = _Path()
"""As it was given, for messages that name it."""
