"""`attnspec rerun RUN`: repeat a run under the same conditions into a new folder, and compare."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from attnspec import plugins
from attnspec.cli._console import say
from attnspec.cli._paths import PATH
from attnspec.cli._progress import watching
from attnspec.errors import EnvironmentMissingError, InputError
from attnspec.launch.container_place import choices_of
from attnspec.launch.found import UNSEEN
from attnspec.launch.place import Place
from attnspec.launch.provenance import code_sha256, gather
from attnspec.launch.recorded import (
    Conditions,
    drift,
    present_conditions,
    recorded_conditions,
    recorded_runner,
    workers_drift,
)
from attnspec.launch.rerun import recorded_place
from attnspec.launch.run import Order, RunResult, run_plan
from attnspec.launch.run_folder import RunFolder
from attnspec.launch.runner_profile import Runner
from attnspec.plan.requests import runnable
from attnspec.record.status import Status
from attnspec.report.run import OpenedRun, open_run
from attnspec.report.summary import reasons, status_line

_WIDTH = 160


@click.command("rerun")
@click.argument("run", type=PATH)
@click.option("--allow-drift", is_flag=True, help="Repeat although conditions differ; the differences are kept.")
@click.option("--out", type=PATH, metavar="DIR", help="The new run folder [default: RUN-rerun].")
def command(run: Path, allow_drift: bool, out: Path | None) -> int:
    """Repeat RUN: the cases that it measured, with its spec, runner and images, into a new folder; then compare.

    Image ID and digest, packages, driver, devices, environment variables and host are held against those of RUN, and
    every difference is named. Ends with 3 where they differ (unless --allow-drift is given) or the image cannot be
    had, else as `attnspec run` and then `attnspec compare` do.
    """
    opened = open_run(run)
    provenance = opened.provenance
    if not provenance:
        raise InputError(f"{run}: has no provenance.json, so nothing tells how to repeat it")
    before = recorded_conditions(provenance)
    plugins.load_files(provenance.get("settings", {}).get("plugins", []))
    runner = recorded_runner(provenance)
    only = frozenset(_measured(opened))
    if not only:
        raise InputError(f"{run}: measured no case, so there is nothing to repeat")
    place, lines = _place(opened, runner, only, before, allow_drift=allow_drift)
    folder = RunFolder(out or _next_folder(run))
    if folder.path.resolve() == run.resolve():
        raise InputError(f"--out: {folder.path} is the run that is to be repeated; choose another folder")
    text = opened.folder.spec.read_text(encoding="utf-8")
    order = Order(
        spec_text=text,
        spec_sha256=hashlib.sha256(text.encode()).hexdigest(),
        argv=("attnspec", *sys.argv[1:]),
        settings={
            **provenance.get("settings", {}),
            "only": [] if only == _runnable(opened) else [f"case_id={'|'.join(sorted(only))}"],
            "limit": None,
            "rerun_of": str(run.resolve()),
            "drift": lines,
        },
        only=only,
        plugins=plugins.loaded_files(),
    )
    console = Console() if sys.stdout.isatty() else Console(width=_WIDTH)
    cases = "1 case" if len(only) == 1 else f"{len(only)} cases"
    console.print(
        f"repeating {cases} of {run} on runner {runner.name}, into {folder.path}", highlight=False, soft_wrap=True
    )
    with watching(console) as watch:
        result = run_plan(opened.plan, folder, place, order, watch)
    if place.found is UNSEEN:
        for line in workers_drift(provenance, folder.read_provenance()):
            console.print(f"conditions differ from those of {run}: {line}", highlight=False, markup=False)
    return _close(console, run, folder, result)


def _measured(opened: OpenedRun) -> Iterator[str]:
    """The cases that the run has an outcome of. What nobody asked for, or cannot run by the plan, is not repeated."""
    rows = opened.cells.select(["case_id", "status"]).to_pylist()
    refused = opened.plan.unsupported
    return (row["case_id"] for row in rows if row["status"] != Status.SKIPPED and row["case_id"] not in refused)


def _runnable(opened: OpenedRun) -> frozenset[str]:
    return frozenset(case.case_id for job in opened.plan.jobs for case in runnable(opened.plan, job))


def _place(
    opened: OpenedRun, runner: Runner, only: frozenset[str], before: Conditions, *, allow_drift: bool
) -> tuple[Place, list[str]]:
    """Where to repeat, and what differs there. Raises EnvironmentMissingError with every difference."""
    lines: list[str] = []
    try:
        place = recorded_place(opened.provenance, runner, opened.plan, only, python_in_use=sys.executable, tell=say)
    except EnvironmentMissingError as error:
        if not (allow_drift and runner.image):
            raise
        lines.append(str(error).splitlines()[0])
        choices = choices_of(runner, cwd=Path.cwd(), environ=os.environ)
        place = recorded_place(
            opened.provenance, runner, opened.plan, only, python_in_use=sys.executable, choices=choices, tell=say
        )
    lines += drift(before, present_conditions(_gathered(place)), seen=place.found is not UNSEEN)
    told = "\n".join(f"  {line}" for line in lines)
    if lines and not allow_drift:
        raise EnvironmentMissingError(
            f"{opened.path} cannot be repeated under the same conditions:\n{told}\n"
            "--allow-drift repeats it all the same"
        )
    if lines:
        click.echo(f"conditions differ from those of {opened.path}:\n{told}", err=True)
    return place, lines


def _gathered(place: Place) -> dict[str, Any]:
    return gather(
        argv=(),
        runner=place.runner,
        found=place.found,
        spec_sha256="",
        settings={},
        code=code_sha256(),
        images={name: image.facts() for name, image in place.images.items()},
    )


def _next_folder(run: Path) -> Path:
    number = 1
    while (path := run.with_name(f"{run.resolve().name}-rerun{'' if number == 1 else f'-{number}'}")).exists():
        number += 1
    return path


def _close(console: Console, base: Path, folder: RunFolder, result: RunResult) -> int:
    chosen = [row for row in result.cells.to_pylist() if row["case_id"] in result.chosen]
    if result.stopped:
        console.print(f"\n{result.stopped}; {status_line(chosen)}", highlight=False)
        return result.exit_code
    for line in reasons(chosen):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    console.print(f"\n{status_line(chosen)}\n", highlight=False)
    sys.stdout.flush()
    return max(result.exit_code, _compare(base, folder.path))


def _compare(base: Path, new: Path) -> int:
    """What `attnspec compare` says and ends with."""
    from attnspec.cli.main import cli

    code = cli.main(args=["compare", "--", str(base), str(new)], prog_name="attnspec", standalone_mode=False)
    return code if isinstance(code, int) else 0
