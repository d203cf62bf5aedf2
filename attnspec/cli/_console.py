"""The consoles that commands write to: colours and bars on a terminal, plain wide text elsewhere. Not a command."""

from __future__ import annotations

import os
from collections.abc import Mapping

from rich.console import Console

WIDTH = 160
"""Columns of text that goes to no terminal."""
LEAST_WIDTH = 40
"""A terminal that says it is narrower is written to as if it were this wide; nothing readable fits less."""
_CI = ("CI", "GITHUB_ACTIONS", "BUILDKITE", "JENKINS_URL")


def plain_or_terminal() -> Console:
    """Standard output. On a terminal as wide as that is; else plain and wide, so that logs keep whole lines."""
    console = Console(highlight=False)
    if not console.is_terminal:
        return Console(width=WIDTH, highlight=False, no_color=True)
    return console if console.width >= LEAST_WIDTH else Console(width=LEAST_WIDTH, highlight=False)


def is_log(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether output is kept as a log even where it looks like a terminal: CI, a dumb terminal, NO_COLOR.

    >>> is_log({"CI": "true"}), is_log({"NO_COLOR": "1"}), is_log({"TERM": "dumb"}), is_log({"TERM": "xterm"})
    (True, True, True, False)
    """
    named = any(environ.get(name, "").lower() not in ("", "0", "false") for name in _CI)
    return named or bool(environ.get("NO_COLOR")) or environ.get("TERM") in ("dumb", "unknown")
