"""attnspec schema: the JSON Schema of spec files, for editors."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Write to a file [default: print].")
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
        out.write_text(text, encoding="utf-8")
        click.echo(f"wrote {out}", err=True)
