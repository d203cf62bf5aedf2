"""`attnspec methods RUN`: the methods paragraph of a paper."""

from __future__ import annotations

import textwrap
from pathlib import Path

import click

from attnspec.cli._paths import PATH

_WIDTH = 100
"""Columns of the text; fewer where a terminal has no more."""


@click.command("methods")
@click.argument("run", type=PATH)
def command(run: Path) -> None:
    """Tell in a few paragraphs what RUN measured, how, and on what: the methods section of a paper.

    RUN is a run folder or an export of one. The text comes from its tables, its provenance and its spec; what they
    do not hold is left out.
    """
    from attnspec.cli._console import plain_or_terminal
    from attnspec.report.methods import methods_text
    from attnspec.report.run import open_run

    paragraphs = methods_text(open_run(run)).strip().split("\n\n")
    width = min(_WIDTH, plain_or_terminal().width)
    click.echo(
        "\n\n".join(textwrap.fill(one, width, break_long_words=False, break_on_hyphens=False) for one in paragraphs)
    )
