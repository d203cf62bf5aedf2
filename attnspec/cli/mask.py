"""attnspec mask NAME: a mask's slices, area and density, and what it looks like."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click

from attnspec import plugins
from attnspec.cli._console import plain_or_terminal, show
from attnspec.cli._mask_options import NamedMask, mask_options, named_mask
from attnspec.cli._paths import FILE
from attnspec.drawing.mask_text import MAX_ROWS, mask_text
from attnspec.errors import InputError
from attnspec.slices import area
from attnspec.units import format_count

_ROWS_SHOWN = 20
_NARROW = 60
"""Columns below which the slices stand closer together."""
_STYLES = (
    (r"^[a-z_]+(\(.*)?$", "head"),
    ("^(queries|keys|documents|slices|area|density)\\b", "key"),
    ("^ +q_start.*", "quiet"),
)


@click.command("mask", epilog=f"Masks: {', '.join(plugins.names('masks'))}.")
@click.argument("name")
@mask_options
@click.option("--png", type=FILE, help="Draw the mask into this file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    name: str, seqlen: str | None, docs: str | None, params: tuple[str, ...], png: Path | None, as_json: bool
) -> None:
    """Show the slices, the area and the density of a mask.

    Slices are half-open ranges of queries and keys with a type; the area is the exact number of allowed cells. The
    picture has queries downwards and keys to the right.

    \b
    attnspec mask varlen_block_causal --docs 3K,5K --param block=2K
    attnspec mask slices --seqlen 6 --param 'slices=[[0,3,0,3,"causal"],[3,6,1,6,"bi_causal"]]'
    """
    mask = named_mask(name, seqlen, docs, params)
    num_cells = area(mask.slices)
    density = num_cells / (mask.slices.seqlen_q * mask.slices.seqlen_k)
    if as_json:
        click.echo(json.dumps(_content(mask, num_cells, density)))
    else:
        console = plain_or_terminal()
        show(_text(mask, num_cells, density, console.width), _STYLES, console=console)
    if png is not None:
        _draw(mask, png, num_cells)


def _content(mask: NamedMask, num_cells: int, density: float) -> dict[str, object]:
    return {
        "mask": mask.name,
        "params": dict(mask.params),
        "seqlen": mask.slices.seqlen_q,
        "docs": mask.docs.tolist(),
        "slices": [[*row[:4], row[4].name.lower()] for row in mask.slices.rows()],
        "area": num_cells,
        "density": density,
    }


def _text(mask: NamedMask, num_cells: int, density: float, room: int) -> Iterator[str]:
    slices = mask.slices
    rows = replace(slices, ranges=slices.ranges[:_ROWS_SHOWN], types=slices.types[:_ROWS_SHOWN]).rows()
    yield mask.title
    yield f"queries    {_tokens(slices.seqlen_q)}"
    if slices.seqlen_k != slices.seqlen_q:
        yield f"keys       {_tokens(slices.seqlen_k)}"
    yield f"documents  {len(mask.docs)}"
    yield f"slices     {len(slices)}"
    yield f"area       {num_cells}"
    yield f"density    {density:.4%}"
    yield ""
    width, gap = (8, "  ") if room >= _NARROW else (7, " ")
    width = max(width, len(str(max(slices.seqlen_q, slices.seqlen_k))))
    yield gap.join(f"{column:>{width}}" for column in ("q_start", "q_end", "k_start", "k_end")) + f"{gap}type"
    for row in rows:
        yield gap.join(f"{bound:>{width}}" for bound in row[:4]) + f"{gap}{row[4].name.lower()}"
    if len(rows) < len(slices):
        yield f"... and {len(slices) - len(rows)} more; --json lists all"
    yield ""
    unicode = "utf" in (sys.stdout.encoding or "").lower()
    yield from mask_text(slices, unicode=unicode, max_rows=min(MAX_ROWS, room // 2))


def _tokens(count: int) -> str:
    short = format_count(count)
    return str(count) if short == str(count) else f"{count} ({short})"


def _draw(mask: NamedMask, png: Path, num_cells: int) -> None:
    from attnspec.drawing.mask_picture import mask_picture

    figure = mask_picture(mask.slices, mask.docs, title=mask.title, area=num_cells)
    try:
        figure.savefig(png, format="png", dpi=200)
    except OSError as error:
        raise InputError(f"--png: {png} cannot be written: {error.strerror}") from None
    click.echo(f"wrote {png}", err=True)
