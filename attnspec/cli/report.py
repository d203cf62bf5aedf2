"""attnspec report RUN...: figures and a page from one or more run folders."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder for the page [default: RUN/report of the first run]."
)
def command(runs: tuple[Path, ...], out: Path | None) -> None:
    """Draw the figures of one or more run folders (PNG and SVG) and a page that shows them."""
    from attnspec.report.page import write_report

    page = write_report(runs, out or runs[0] / "report")
    click.echo(f"wrote {page}")
