"""attnspec report RUN...: figures and a page from one or more run folders."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

import click

from attnspec.cli._paths import PATH
from attnspec.errors import AttnspecError, InputError

_FULL = (errno.ENOSPC, errno.EDQUOT)


@click.command()
@click.argument("runs", nargs=-1, required=True, type=PATH, metavar="RUN...")
@click.option(
    "--out",
    type=PATH,
    help="Folder for the page [default: RUN/report of the first run, NAME-report beside an export NAME.zip].",
)
@click.option("--published", "with_published", is_flag=True, help="Set the published page's results beside yours.")
def command(runs: tuple[Path, ...], out: Path | None, with_published: bool) -> None:
    """Draw the figures of one or more run folders (PNG and SVG) and one HTML page that needs no server."""
    click.echo(f"wrote {page_of(runs, out or _beside(runs[0]), with_published=with_published)}")


def _beside(run: Path) -> Path:
    """Where the page of a run goes: into its folder, or beside it where it is one file."""
    return run.with_name(f"{run.stem}-report") if run.is_file() else run / "report"


def page_of(runs: Sequence[Path], out: Path, *, with_published: bool = False) -> Path:
    """Write the page of some runs. Raises InputError where `out` cannot be written, AttnspecError on a full disk."""
    from attnspec.report.page import write_report

    try:
        return write_report(runs, out, with_published=with_published)
    except OSError as error:
        kind = AttnspecError if error.errno in _FULL else InputError
        raise kind(f"{error.filename or out}: the page cannot be written: {error.strerror}") from None
