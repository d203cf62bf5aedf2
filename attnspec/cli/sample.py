"""`attnspec sample`: draw packs from a distribution of document lengths, as text, JSON or a picture."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from attnspec.cli._console import plain_or_terminal, show
from attnspec.cli._paths import FILE
from attnspec.cli._whole_number import whole_number
from attnspec.errors import InputError
from attnspec.sample.coins import MAX_SEED
from attnspec.sample.documents import draw_pieces
from attnspec.sample.histogram import Histogram, found, in_packs, in_population, octaves, standard_errors
from attnspec.sample.lengths import Lengths
from attnspec.sample.packs import draw_packs, max_piece
from attnspec.sample.reading import read_lengths, shipped_names
from attnspec.units import format_count, parse_count, parse_fraction

Packs = Sequence[NDArray[np.int64]]
T = TypeVar("T")
_WIDE = 78
"""Columns that all shares need; in fewer there are those of tokens only."""
_BARS_FROM = 96
"""Columns that a terminal must have for bars beside the shares."""
_STYLES = (
    ("^(data|sample|documents|split)\\b", "key"),
    ("^ +(documents +tokens|length ).*", "head"),
    ("[█▏▎▍▌▋▊▉]+", "key"),
)


@click.command("sample")
@click.option("--seqlen", required=True, help="Tokens of a pack: 65536, 64K, 1M.")
@click.option("--packs", "num_packs", required=True, type=whole_number(1), help="How many packs.")
@click.option(
    "--seed",
    required=True,
    type=whole_number(0, MAX_SEED),
    help="Same seed, same packs, on every machine. 0 is a seed.",
)
@click.option("--data", default="page", show_default=True, help=f"{', '.join(shipped_names())}, or a file of lengths.")
@click.option("--max-doc-fraction", default="1/4", show_default=True, help="Longest document, as a share of the pack.")
@click.option("--json", "as_json", is_flag=True, help="Print the packs as JSON.")
@click.option("--png", type=FILE, help="Draw source and packs into this file.")
def command(
    seqlen: str, num_packs: int, seed: int, data: str, max_doc_fraction: str, as_json: bool, png: Path | None
) -> None:
    """Draw packs from a distribution of document lengths.

    Documents are drawn from DATA, those over the longest length allowed are split, all are shuffled and laid one after
    another, and cut every SEQLEN tokens; NUM packs at random are shown. The incomplete rest at the end of the data is
    never a pack. A file of lengths is a CSV or JSON histogram, or a Parquet, Arrow or Feather column.
    """
    tokens = _option("--seqlen", seqlen, parse_count)
    fraction = _option("--max-doc-fraction", max_doc_fraction, parse_fraction)
    lengths = read_lengths(data)
    packs = draw_packs(lengths, seqlen=tokens, num_packs=num_packs, max_doc_fraction=fraction, seed=seed)
    if as_json:
        content = {"seqlen": tokens, "seed": seed, "data": data, "packs": [pack.tolist() for pack in packs]}
        click.echo(json.dumps(content))
        if png is None:
            return
    max_length = max_piece(tokens, fraction)
    edges = octaves(int(lengths.hi.max()) - 1)
    source = in_population(lengths, edges)
    average = in_packs(draw_pieces(lengths, max_length=max_length, seed=seed), tokens, edges)
    drawn = found(packs, edges)
    if not as_json:
        console = plain_or_terminal()
        show(_facts(lengths, packs, seqlen=tokens, max_length=max_length, seed=seed), _STYLES, console=console)
        wide = console.width >= _WIDE
        table = _table(source, average, drawn, bars=_bars(console)) if wide else _narrow_table(source, drawn)
        show(table, _STYLES, console=console)
    if png is None:
        return
    from attnspec.drawing.sampled_lengths import sampled_lengths

    figure = sampled_lengths(
        source,
        average,
        drawn,
        errors=standard_errors(packs, edges) if len(packs) > 1 else None,
        max_length=max_length,
        title=f"{Path(data).name}: document lengths, and {_packs(len(packs))} of {format_count(tokens)} tokens",
        note=f"{_population(lengths)}; seed {seed}",
    )
    try:
        figure.savefig(png, format="png", dpi=200)
    except OSError as error:
        raise InputError(f"--png: {png} cannot be written: {error.strerror}") from error
    click.echo(f"wrote {png}", err=True)


def _option(name: str, text: str, parse: Callable[[str], T]) -> T:
    try:
        return parse(text)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error


def _facts(lengths: Lengths, packs: Packs, *, seqlen: int, max_length: int, seed: int) -> Iterator[str]:
    sizes = [len(pack) for pack in packs]
    yield f"data       {lengths.name}: {_population(lengths)}, {lengths.mean_length:,.0f} tokens on average"
    yield f"sample     {_packs(len(packs))} of {format_count(seqlen)} tokens, seed {seed}"
    yield f"documents  {min(sizes)} to {max(sizes)} a pack, {sum(sizes) / len(sizes):.1f} on average"
    yield f"split      documents over {format_count(max_length)} tokens"
    yield ""


def _bars(console: Console) -> int:
    """Characters for a bar; none where it would be wrapped or cannot be drawn."""
    drawn = console.is_terminal and console.encoding.startswith("utf") and console.width >= _BARS_FROM
    return min(40, console.width - _BARS_FROM + 16) if drawn else 0


def _table(source: Histogram, average: Histogram, drawn: Histogram, *, bars: int = 0) -> Iterator[str]:
    """Shares by length: of the source, of packs on average, of the packs drawn; bars of the last column's tokens."""
    parts = (source, average, drawn)
    columns = [*(part.document_shares for part in parts), *(part.token_shares for part in parts)]
    yield f"{'':>24}{'documents':^24}   {'tokens':^24}"
    yield f"{'length':>24}" + "   ".join([f"{'source':>8}{'average':>8}{'packs':>8}"] * 2)
    most = max(1e-9, float(max(drawn.token_shares)))
    for place in range(len(source.documents)):
        shares = [float(column[place]) for column in columns]
        if any(share >= 0.00005 for share in shares):
            cells = [f"{share:8.2%}" if share else f"{'0':>8}" for share in shares]
            bar = "█" * round(bars * shares[5] / most)
            yield f"{_lengths(source, place):>24}{''.join(cells[:3])}   {''.join(cells[3:])} {bar}".rstrip()


def _narrow_table(source: Histogram, drawn: Histogram) -> Iterator[str]:
    yield f"{'length':>19}{'tokens of':>10}"
    yield f"{'':>19}{'source':>10}{'packs':>10}"
    for place in range(len(source.documents)):
        shares = [float(part.token_shares[place]) for part in (source, drawn)]
        if any(share >= 0.00005 for share in shares):
            cells = "".join(f"{share:10.2%}" if share else f"{'0':>10}" for share in shares)
            yield f"{_lengths(source, place):>19}{cells}"


def _lengths(source: Histogram, place: int) -> str:
    low, high = int(source.edges[place]), int(source.edges[place + 1]) - 1
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _population(lengths: Lengths) -> str:
    nominal = " (shares only, so a nominal number)" if lengths.nominal else ""
    empty = f" and {lengths.num_empty:,} empty ones left out" if lengths.num_empty else ""
    return f"{lengths.num_documents:,} documents{nominal}{empty}"


def _packs(count: int) -> str:
    return "1 pack" if count == 1 else f"{count} packs"
