"""Where commands write: colours, wrapped lines and bars on a terminal, plain whole lines elsewhere. Not a command."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

import click
from rich.console import Console
from rich.text import Text

WIDTH = 160
"""Columns of text that goes to no terminal."""
LEAST_WIDTH = 40
"""A terminal that says it is narrower is written to as if it were this wide; nothing readable fits less."""
_CI = ("CI", "GITHUB_ACTIONS", "BUILDKITE", "JENKINS_URL")
_GAP = re.compile(r"(?<=\S) {2,}(?=\S)|^ +(?=\S)")
_STYLES = {"head": "bold", "good": "green", "bad": "red", "quiet": "dim", "key": "cyan"}
Styles = Iterable[tuple[str, str]]
"""Pairs of a regular expression and one of head, good, bad, quiet, key."""


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


def say(text: str) -> None:
    """Tell whoever waits, beside what the command prints."""
    click.echo(text, err=True)


def show(lines: Iterable[str], styles: Styles = (), *, console: Console | None = None) -> None:
    """Write lines. On a terminal long ones go on below their last column, and what `styles` match has colour."""
    console = console or plain_or_terminal()
    if not console.is_terminal:
        for line in lines:
            click.echo(line)
        return
    for line in lines:
        for part in wrapped(line, console.width):
            text = Text(part)
            for pattern, style in styles:
                text.highlight_regex(pattern, _STYLES[style])
            console.print(text, soft_wrap=True)


def wrapped(line: str, width: int) -> list[str]:
    """A line cut at spaces into parts of at most `width` characters; all but the first begin below the last column.

    Columns are apart by two spaces or more. A word that is too long by itself stays whole.

    >>> wrapped("  no   fa2   flash-attn is not there, and cannot be built", 30)
    ['  no   fa2   flash-attn is not', '             there, and cannot', '             be built']
    """
    if len(line) <= width:
        return [line]
    gaps = [match.end() for match in _GAP.finditer(line) if match.end() <= width // 2]
    indent = max(gaps, default=0)
    parts, rest, lead = [], line[indent:], line[:indent]
    while len(lead) + len(rest) > width:
        cut = rest.rfind(" ", 0, width - indent + 1)
        cut = rest.find(" ") if cut <= 0 else cut
        if cut <= 0:
            break
        parts.append((lead + rest[:cut]).rstrip())
        rest, lead = rest[cut:].lstrip(), " " * indent
    return [*parts, lead + rest]
