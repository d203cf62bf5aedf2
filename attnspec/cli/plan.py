"""`attnspec plan`: what a spec would run, as text, JSON or a graph. Samples nothing, measures nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from attnspec.cli._paths import FILE, PATH
from attnspec.errors import InputError, nearest

if TYPE_CHECKING:
    from attnspec.plan import Plan

_GRAPHS = (".svg", ".dot", ".json")
_STYLES = (
    (r"^\S.*?(?=:| that| \(|$)", "head"),
    (r"^  (graph|sweep \d+|area|memory|time)\b", "key"),
    (r"\[\w+\]$", "quiet"),
)


@click.command("plan")
@click.argument("spec", type=PATH)
@click.option(
    "--graph",
    type=FILE,
    metavar="FILE",
    help="Write the graph: .svg drawn by stage; .dot or .json (node-link) in full.",
)
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Replace a value of the spec.")
@click.option("--only", multiple=True, metavar="K=V,..", help="Only cases with these values, such as kernel=sdpa|flex.")
@click.option("--runner", metavar="NAME", help="Another runner than the spec's: a name or a path.")
@click.option("--json", "as_json", is_flag=True, help="Print counts, unsupported cases and ids as JSON.")
def command(
    spec: Path, graph: Path | None, overrides: tuple[str, ...], only: tuple[str, ...], runner: str | None, as_json: bool
) -> None:
    """Show what SPEC would run: cases, jobs, what cannot run and why, expected area, memory and time.

    Keys of --only are columns of cells.parquet: level, kernel, strategy, mask, seqlen, cp_size, pass and so on.
    """
    from attnspec.cli._console import show
    from attnspec.cli._given_spec import planned_on, runner_findings
    from attnspec.cli._plan_text import plan_text
    from attnspec.launch.device_peaks import nominal_tflops
    from attnspec.plan import parse_only, restrict, select
    from attnspec.plan.expect import expect
    from attnspec.spec import read_spec

    if graph is not None and graph.suffix not in _GRAPHS:
        hint = nearest(graph.suffix, _GRAPHS)
        raise InputError(f"--graph: got {graph}{hint}; allowed: a file ending in {', '.join(_GRAPHS)}")
    wanted = parse_only(only)
    held = read_spec(spec, overrides, checks=[runner_findings] if runner is None else [])
    read = held.spec
    if runner is not None:
        read = read.model_copy(update={"runner": runner})
    profile, plan = planned_on(held, read)
    if wanted:
        plan = restrict(plan, select(plan.cases, wanted))
    if as_json:
        click.echo(json.dumps(_json(plan)))
    else:
        expectation = expect(plan, tflops=nominal_tflops(profile, read.shape.dtype))
        beyond = {job.world_size: profile.beyond(job.world_size, f"cp_size {job.world_size}") for job in plan.jobs}
        show(plan_text(plan, read, expectation, expected_device=profile.expectation(), beyond=beyond), _STYLES)
    if graph is not None:
        _write(graph, _drawn(plan, graph.suffix))


def _json(plan: Plan) -> dict[str, object]:
    from attnspec.plan import count_nodes
    from attnspec.plan.identity import collect_id

    return {
        "cases": len(plan.cases),
        "nodes": count_nodes(plan),
        "jobs": len(plan.jobs),
        "unsupported": [{"case": case_id, "reason": why.reason} for case_id, why in plan.unsupported.items()],
        "ids": {
            "sample": list(plan.samples),
            "mask": list(plan.masks),
            "run": [case.case_id for case in plan.cases],
            "collect": [collect_id(case.case_id for case in plan.cases)],
        },
    }


def _drawn(plan: Plan, suffix: str) -> Iterable[str]:
    from attnspec.plan.graph import dot_lines, node_link
    from attnspec.plan.picture import draw_stages

    if suffix == ".svg":
        return [draw_stages(plan)]
    return dot_lines(plan) if suffix == ".dot" else json.JSONEncoder().iterencode(node_link(plan))


def _write(path: Path, pieces: Iterable[str]) -> None:
    try:
        with path.open("w", encoding="utf-8") as file:
            file.writelines(pieces)
    except OSError as error:
        raise InputError(f"--graph: {path} cannot be written: {error.strerror}") from error
    click.echo(f"wrote {path}", err=True)
