"""attnspec validate SPEC...: everything wrong with spec files, at once."""

from __future__ import annotations

import json

import click


@click.command()
@click.argument("specs", nargs=-1, required=True, metavar="SPEC...")
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Replace a value: shape.head_dim=64.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def command(context: click.Context, specs: tuple[str, ...], overrides: tuple[str, ...], as_json: bool) -> None:
    """Check spec files: form, names, parameters, and that runner and lengths exist.

    Prints every problem with file, line and path. Exit code 0 when all are fine, else 2.
    """
    from attnspec.errors import Problem, SpecError

    problems: list[Problem] = []
    for path in specs:
        try:
            check_file(path, overrides)
        except SpecError as error:
            problems.extend(error.problems)
            if not as_json:
                click.echo("\n".join(map(str, error.problems)))
        else:
            if not as_json:
                click.echo(f"{path}: ok")
    if as_json:
        errors = [{"file": one.file, "line": one.line, "path": one.path, "message": one.message} for one in problems]
        click.echo(json.dumps({"ok": not errors, "errors": errors}, ensure_ascii=False))
    elif problems:
        click.echo(f"attnspec: {len(problems)} {'problem' if len(problems) == 1 else 'problems'} found", err=True)
    context.exit(2 if problems else 0)


def check_file(path: str, overrides: tuple[str, ...]) -> None:
    """Raise SpecError with everything wrong in one spec file, its runner included."""
    import os
    from pathlib import Path

    from attnspec.errors import InputError, SpecError
    from attnspec.launch.runner_profile import load_runner, search_folders
    from attnspec.spec import read_spec

    held = read_spec(path, overrides)
    try:
        load_runner(held.spec.runner, search_folders(cwd=Path.cwd(), environ=os.environ))
    except SpecError:
        raise  # the problems are those of the runner's own file
    except InputError as error:
        raise SpecError([held.problem(str(error), "runner")]) from None
