"""attnspec validate SPEC...: everything wrong with spec files, at once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attnspec.catalog.findings import Finding
    from attnspec.errors import Problem
    from attnspec.spec import SpecFile


@click.command()
@click.argument("specs", nargs=-1, required=True, metavar="SPEC...")
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Replace a value: shape.head_dim=64.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def command(context: click.Context, specs: tuple[str, ...], overrides: tuple[str, ...], as_json: bool) -> None:
    """Check spec files: form, names, parameters, that runner and lengths exist, that masks take their lengths.

    Prints every problem with file, line and path. Exit code 0 when all are fine, else 2.
    """
    from attnspec.errors import SpecError
    from attnspec.spec import read_spec

    problems: list[Problem] = []
    for path in specs:
        try:
            held = read_spec(path, overrides, checks=[runner_findings])
            refused = list(refusals(held))
            if refused:
                raise SpecError(refused)
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


def runner_findings(value: Any) -> list[Finding]:
    """What is wrong with the runner that a spec file names."""
    import os
    from pathlib import Path

    from attnspec.catalog.findings import Finding
    from attnspec.errors import InputError
    from attnspec.launch.runner_profile import load_runner, search_folders
    from attnspec.spec.load import text_at

    runner = text_at(value, "runner")
    try:
        if runner is not None:
            load_runner(runner, search_folders(cwd=Path.cwd(), environ=os.environ))
    except InputError as error:
        return [Finding(message=" ".join(str(error).split("\n")), loc=("runner",))]
    return []


def refusals(held: SpecFile) -> Iterator[Problem]:
    """Masks that refuse their parameters at a length of their sweep: the first such length of each."""
    from attnspec import plugins
    from attnspec.errors import InputError
    from attnspec.masks import make_slices
    from attnspec.plan.structure import example_documents
    from attnspec.spec import KernelSweep
    from attnspec.units import format_count

    for number, sweep in enumerate(held.spec.sweeps):
        if isinstance(sweep, KernelSweep):
            seqlens = sweep.seqlen
        else:
            seqlens = tuple(cp_size * share for cp_size in sweep.cp_size for share in sweep.seqlen_per_rank)
        for index, item in enumerate(sweep.masks):
            module = plugins.load("masks", item.name)
            params = plugins.make_params(module, item.params)
            for seqlen in seqlens:
                fraction = held.spec.data.max_doc_fraction
                docs = example_documents(seqlen, fraction) if module.USES_DOCUMENTS else [seqlen]
                try:
                    make_slices(module, params, docs, seqlen)
                except InputError as error:
                    yield held.problem(
                        f"{item.name} at {format_count(seqlen)} tokens: {error}", "sweeps", number, "masks", index
                    )
                    break
