"""`attnspec compare BASE NEW`: what became slower or faster between two runs."""

from __future__ import annotations

import json
from pathlib import Path

import click

from attnspec.cli._paths import PATH
from attnspec.errors import InputError
from attnspec.units import parse_fraction


@click.command("compare")
@click.argument("base", type=PATH)
@click.argument("new", type=PATH)
@click.option("--threshold", default="3%", show_default=True, metavar="X", help="Smaller changes are no alarm.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--markdown", is_flag=True, help="Print Markdown, for a comment on a pull request.")
def command(base: Path, new: Path, threshold: str, as_json: bool, markdown: bool) -> int:
    """Compare the times of two runs case by case: same, faster, slower or ambiguous.

    BASE and NEW are run folders or exports of runs. A case is slower when its time grew by the threshold or more and
    neither chance nor the machine's own drift explains it, as far as the anchor cases of both runs show that; what
    they may explain is ambiguous. Of all cases of two runs that are alike, the chance that any is called slower or
    faster is about 5 percent at most. Cases are held against each other only where both runs measured the same shape,
    mask and packs.

    Ends with 1 when a case is slower, or was ok and is not any more.
    """
    from attnspec.cli._console import plain_or_terminal
    from attnspec.report import comparison_text
    from attnspec.report.comparison import compare_runs

    if as_json and markdown:
        raise InputError("give --json or --markdown, not both")
    try:
        share = float(parse_fraction(threshold))
    except InputError as error:
        raise InputError(f"--threshold: {error}") from None
    found = compare_runs(base, new, threshold=share)
    if as_json:
        click.echo(json.dumps(comparison_text.as_json(found), allow_nan=False))
    elif markdown:
        click.echo(comparison_text.markdown(found), nl=False)
    else:
        console = plain_or_terminal()
        for part in comparison_text.terminal(found, width=console.width):
            console.print(part)
    return found.exit_code
