"""attnspec validate SPEC...: everything wrong with spec files, at once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from attnspec.cli._paths import NAME
from attnspec.units import counted

if TYPE_CHECKING:
    from attnspec.errors import Problem
    from attnspec.spec import SpecFile


@click.command()
@click.argument("specs", nargs=-1, required=True, type=NAME, metavar="SPEC...")
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Replace a value: shape.head_dim=64.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def command(context: click.Context, specs: tuple[str, ...], overrides: tuple[str, ...], as_json: bool) -> None:
    """Check spec files: form, names, parameters, that runner and lengths exist, that masks take their lengths.

    Prints every problem with file, line and path, and of a spec without any how many cases its runner does not support
    (`attnspec plan` tells all of these), or that it supports none. Exit code 0 when all are fine, else 2.
    """
    from attnspec.cli._given_spec import refusals, runner_findings
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
                click.echo("\n".join((f"{path}: ok", *_unsupported(held, path))))
    if as_json:
        errors = [{"file": one.file, "line": one.line, "path": one.path, "message": one.message} for one in problems]
        click.echo(json.dumps({"ok": not errors, "errors": errors}, ensure_ascii=False))
    elif problems:
        click.echo(f"attnspec: {len(problems)} {'problem' if len(problems) == 1 else 'problems'} found", err=True)
    context.exit(2 if problems else 0)


def _unsupported(held: SpecFile, path: str) -> Iterator[str]:
    """A line on the cases that the plan calls unsupported, with the most frequent reason, or all where none is left."""
    from attnspec.cli._given_spec import place_of, planned_on
    from attnspec.cli._plan_text import nothing_measured
    from attnspec.errors import AttnspecError
    from attnspec.plan.stages import implementation_label

    try:
        _, plan = planned_on(held, held.spec)
    except AttnspecError as error:
        yield f"  cannot be planned here: {error}"
        return
    whys: Counter[tuple[str, str]] = Counter()
    for case_id, why in plan.unsupported.items():
        case = plan.case_by_id[case_id]
        whys[f"{place_of(held, case)}: {implementation_label(case)}", why.reason] += 1
    if len(plan.unsupported) == len(plan.cases):
        yield f"  {nothing_measured(whys.elements())}"
        return
    for (label, reason), count in whys.most_common(1):
        total = len(plan.unsupported)
        told = f"{label}: {reason}" if count == total else f"{count:,} of them {label}: {reason}"
        more = "" if count == total else f"; all reasons: attnspec plan {path}"
        verb = "is" if total == 1 else "are"
        yield f"  {total:,} of {counted(len(plan.cases), 'case')} {verb} unsupported, {told}{more}"
