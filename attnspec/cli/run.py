"""`attnspec run`: measure what a spec asks for, resuming what an earlier run left, and report."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.text import Text

from attnspec import plugins
from attnspec.cli._console import plain_or_terminal, say, show
from attnspec.cli._given_spec import planned, runner_findings
from attnspec.cli._paths import PATH
from attnspec.cli._plan_text import nothing_measured
from attnspec.cli._progress import watching
from attnspec.cli._whole_number import whole_number
from attnspec.cli.report import page_of
from attnspec.drawing.look import STATUS_WORDS, implementation
from attnspec.errors import InputError, SpecError
from attnspec.launch.container_place import choices_of, plan_images
from attnspec.launch.place import check_place, survey
from attnspec.launch.rehearsal import rehearsal, rehearsal_runner
from attnspec.launch.run import Order, RunResult, run_plan
from attnspec.launch.run_folder import RunFolder
from attnspec.launch.runner_profile import Runner, load_runner, search_folders
from attnspec.plan import parse_only, select
from attnspec.plan.requests import runnable
from attnspec.record.status import Status
from attnspec.report.reasons import first_line
from attnspec.report.summary import reasons, rehearsal_line, status_line, summary_tables, winners
from attnspec.spec import Spec, SpecFile, read_spec


@click.command("run")
@click.argument("spec", type=PATH)
@click.option("--runner", metavar="NAME", help="Another runner than the spec's: a name or a path.")
@click.option("--out", type=PATH, metavar="DIR", help="Run folder [default: runs/<name of the spec's file>].")
@click.option("--only", multiple=True, metavar="K=V,..", help="Only cases with these values, such as kernel=sdpa|flex.")
@click.option("--limit", type=whole_number(1), metavar="N", help="Only the first N of them.")
@click.option("--fresh", is_flag=True, help="Measure everything anew; the old journal is set aside, not deleted.")
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Replace a value of the spec.")
@click.option("--rehearse", is_flag=True, help="The whole pipeline, shrunk, on the CPU (2 to 4 ranks).")
@click.option("--unpinned", is_flag=True, help="Let a container runner use an image that is not pinned by digest.")
def command(
    spec: Path,
    runner: str | None,
    out: Path | None,
    only: tuple[str, ...],
    limit: int | None,
    fresh: bool,
    overrides: tuple[str, ...],
    rehearse: bool,
    unpinned: bool,
) -> int:
    """Run SPEC: sample, measure, verify, collect, report. What an earlier run measured is not measured again.

    Ends with 0 when no case failed, 1 when one was wrong, crashed, timed out or failed, 2 for bad input or a folder in
    use, 3 when this machine lacks what the runner expects or no chosen case can run here, and 130, 143 or 129 when
    stopped by SIGINT, SIGTERM or SIGHUP; what was measured until then is kept.
    """
    wanted = parse_only(only)
    held = read_spec(spec, overrides, checks=[runner_findings] if runner is None else [])
    read = held.spec
    if rehearse and runner is not None:
        raise InputError("--rehearse brings its own runner; leave out --runner")
    if runner is not None:
        read = read.model_copy(update={"runner": runner})
    folders = search_folders(cwd=Path.cwd(), environ=os.environ)
    profile = load_runner(read.runner, folders)
    if rehearse:
        read, profile = rehearsal(read), rehearsal_runner(load_runner("local", folders))
    choices = choices_of(profile, cwd=Path.cwd(), environ=os.environ)
    seen = survey(profile, python_in_use=sys.executable, choices=choices, unpinned=unpinned, tell=say)
    plan = planned(held, read, device=seen.device, images=plan_images(choices), env=profile.env)
    try:
        chosen = select(plan.cases, wanted)[:limit]
    except InputError as error:
        if not rehearse:
            raise
        raise InputError(f"{error}; --rehearse shrinks the spec, and --only chooses from what is left of it") from None
    case_ids = None if len(chosen) == len(plan.cases) else frozenset(case.case_id for case in chosen)
    place = check_place(seen, plan, case_ids)
    settings: dict[str, Any] = {
        "spec": str(spec),
        "overrides": list(overrides),
        "runner": runner,
        "rehearse": rehearse,
        "unpinned": unpinned,
        "only": list(only),
        "limit": limit,
        "plugins": list(plugins.loaded_files()),
    }
    text = _spec_text(held, read)
    order = Order(
        spec_text=text,
        spec_sha256=hashlib.sha256(text.encode()).hexdigest(),
        argv=("attnspec", *sys.argv[1:]),
        settings=settings,
        only=case_ids,
        fresh=fresh,
        plugins=plugins.loaded_files(),
    )
    folder = RunFolder(out or Path("runs") / f"{spec.stem}{'-rehearsal' if rehearse else ''}")
    console = plain_or_terminal()
    show([_opening(read, profile, len(chosen), folder)], [("^[^:]+", "head")], console=console)
    to_run = [case for job in plan.jobs for case in runnable(plan, job, case_ids)]
    with watching(console, to_run) as watch:
        result = run_plan(plan, folder, place, order, watch)
    _close(console, folder, result, rehearsed=rehearse)
    return result.exit_code


def _spec_text(held: SpecFile, spec: Spec) -> str:
    """The given text where it means the same in the run folder; else the spec in full, as JSON, which is YAML too."""
    try:
        unchanged = read_spec(held.file, text=held.text).spec == spec and not Path(spec.data.lengths).is_absolute()
    except SpecError:  # valid with its overrides only
        unchanged = False
    if unchanged:
        return held.text
    return json.dumps(spec.canonical(), indent=2, ensure_ascii=False) + "\n"


def _opening(spec: Spec, runner: Runner, num_cases: int, folder: RunFolder) -> str:
    cases = "1 case" if num_cases == 1 else f"{num_cases} cases"
    return f"{spec.name}: {cases} on runner {runner.name}, into {folder.path}"


def _close(console: Console, folder: RunFolder, result: RunResult, *, rehearsed: bool) -> None:
    """Tables, page and the last words."""
    cells = result.cells.filter(pc.is_in(result.cells["case_id"], pa.array(result.chosen, pa.string())))
    chosen = cells.to_pylist()
    if result.stopped:
        show(["", f"{result.stopped}; {status_line(chosen)}; run the same again to go on"], console=console)
        return
    for table in summary_tables(cells, width=console.width, ranked=not rehearsed):
        console.print()
        console.print(table)
    marks = "the figures of a rehearsal mean nothing" if rehearsed else "* highest, ~ not told apart from it"
    show(["", f"{marks}; {STATUS_WORDS}"], [(".+", "quiet")], console=console)
    show(reasons(chosen), console=console)
    last = [status_line(chosen), rehearsal_line(chosen)] if rehearsed else [*winners(chosen), status_line(chosen)]
    show(["", *last], [("^(fastest|rehearsed|[0-9]+ cases?:)", "head")], console=console)
    page = page_of([folder.path], folder.report)
    for path, what in ((folder.cells, "cases"), (folder.timings, "raw samples"), (page, "figures")):
        # A path stays whole, so that it can be copied.
        console.print(Text(f"{what}: {path}"), soft_wrap=True)
    if chosen and all(row["status"] == Status.UNSUPPORTED for row in chosen):
        whys = ((implementation(row), first_line(row["reason"])) for row in chosen)
        show([nothing_measured(whys)], [("^[^:]+", "head")], console=console)
