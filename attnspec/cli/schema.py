"""attnspec schema: the JSON Schema of spec files, for editors."""

from __future__ import annotations

from pathlib import Path

import click

from attnspec.cli._paths import FILE
from attnspec.errors import InputError


@click.command()
@click.option("--out", type=FILE, help="Write to a file [default: print].")
def command(out: Path | None) -> None:
    """Print the JSON Schema of spec files with the names and parameters of all plug-ins.

    An editor that knows YAML schemas uses it when a spec starts with
    `# yaml-language-server: $schema=schema.json`.
    """
    from attnspec.spec.schema import schema_text

    text = schema_text()
    if out is None:
        click.echo(text, nl=False)
    else:
        try:
            out.write_text(text, encoding="utf-8")
        except OSError as error:
            raise InputError(f"--out: {out} cannot be written: {error.strerror}") from None
        click.echo(f"wrote {out}", err=True)
