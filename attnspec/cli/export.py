"""`attnspec export RUN`: a run as one file."""

from __future__ import annotations

from pathlib import Path
from zipfile import is_zipfile

import click

from attnspec.cli._paths import FILE, PATH
from attnspec.errors import InputError


@click.command("export")
@click.argument("run", type=PATH)
@click.option("--out", type=FILE, metavar="FILE", help="The file [default: RUN.zip].")
def command(run: Path, out: Path | None) -> None:
    """Put a run into one file: spec, plan, provenance, packs, slices, tables and their checksums.

    The same run gives the same bytes. `attnspec compare`, `report` and `methods` and `attnspec.open_run` read the file
    as they read RUN. Journals and logs stay behind.
    """
    from attnspec.launch.run_lock import is_held
    from attnspec.report.archive import write_archive
    from attnspec.report.run import open_run

    if run.is_file():
        raise InputError(f"{run}: is a file; give a run folder")
    opened = open_run(run)
    if is_held(run):
        raise InputError(
            f"{run}: a run works here; export it when that is done, or stop it with `attnspec cancel {run}`"
        )
    target = out or run.absolute().parent / f"{run.absolute().name}.zip"
    if not target.parent.is_dir():
        raise InputError(f"--out: {target.parent}: no such folder")
    if target.resolve().is_relative_to(run.resolve()):
        raise InputError(f"--out: {target} lies in the run folder; give a place outside it")
    if target.exists() and not (is_zipfile(target) or target.stat().st_size == 0):
        raise InputError(f"--out: {target} is there and is no export; give another name, or remove it")
    write_archive(opened.folder, opened.cells, opened.timings, target)
    click.echo(f"wrote {target}")
