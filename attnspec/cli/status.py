"""`attnspec status`: what a run folder holds and whether something works in it."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import click

from attnspec.cli._console import show
from attnspec.cli._paths import PATH
from attnspec.launch.run_lock import holder, is_held
from attnspec.launch.slurm_submissions import Standing, standings
from attnspec.plan import parse_only, select
from attnspec.plan.requests import runnable
from attnspec.report.run import OpenedRun, open_run
from attnspec.report.summary import outcome_word


@click.command("status")
@click.argument("run", type=PATH)
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def command(run: Path, as_json: bool) -> None:
    """Show cases by status, jobs, the process that works in RUN, and its last activity."""
    opened = open_run(run)
    asked = _asked(opened)
    content = _status(opened, run, asked)
    rows = opened.cells.select(["case_id", "status", "reason_code"]).to_pylist()
    words = Counter(outcome_word(row) for row in rows if asked is None or row["case_id"] in asked)
    others = Counter(outcome_word(row) for row in rows if asked is not None and row["case_id"] not in asked)
    if as_json:
        click.echo(json.dumps(content))
    else:
        if (content["running"] or content["slurm_jobs"]) and (begun := words.pop("interrupted", 0)):
            words["begun"] = begun
        show(_lines(content, words, others))


def _asked(run: OpenedRun) -> frozenset[str] | None:
    """case_ids that the newest run in the folder was about, by the options that it was given; None: all."""
    settings = run.provenance.get("settings", {})
    only, limit = settings.get("only", []), settings.get("limit")
    if not (only or limit) or not run.folder.spec.is_file():
        return None
    return frozenset(case.case_id for case in select(run.plan.cases, parse_only(only))[:limit])


def _status(run: OpenedRun, given: Path, asked: frozenset[str] | None) -> dict[str, Any]:
    held = dict(zip(run.cells["case_id"].to_pylist(), run.cells["status"].to_pylist(), strict=True))
    statuses = {case_id: status for case_id, status in held.items() if asked is None or case_id in asked}
    others = [status for case_id, status in held.items() if case_id not in statuses]
    works = holder(run.path)
    jobs = []
    queued = standings(run.path)
    if run.folder.spec.is_file():
        for job in run.plan.jobs:
            cases = runnable(run.plan, job, asked)
            standing = queued.get(job.job_id)
            if asked is not None and not cases and not (standing and standing.live):
                continue
            jobs.append(
                {
                    "job_id": job.job_id,
                    "world_size": job.world_size,
                    "env": dict(job.env),
                    "cases": len(cases),
                    "ok": sum(statuses.get(case.case_id) == "ok" for case in cases),
                    "slurm": _slurm(standing),
                }
            )
    last = run.folder.last_activity_ns()
    return {
        "run": str(given),
        "running": is_held(run.path),
        "pid": None if works is None else works.pid,
        "host": None if works is None else works.host,
        "cases": len(statuses),
        "statuses": dict(Counter(statuses.values()).most_common()),
        "not_asked": {"cases": len(others), "statuses": dict(Counter(others).most_common())},
        "jobs": jobs,
        "last_activity_unix_s": None if last is None else last / 1e9,
        "slurm_jobs": sorted(one.slurm_id for one in queued.values() if one.live and one.slurm_id is not None),
    }


def _slurm(standing: Standing | None) -> dict[str, Any] | None:
    """A job's newest submission; None where it never went to Slurm."""
    if standing is None:
        return None
    return {"id": standing.slurm_id, "state": standing.state, "reason": standing.reason or None}


def _lines(content: dict[str, Any], words: Counter[str], others: Counter[str]) -> list[str]:
    """words: how many cases ended how, as people call it. others: the same of cases that nobody asked for."""
    lines = [f"{content['run']}: {_number(content['cases'])}: {_told(words) or 'none'}"]
    if others:
        lines.append(f"the spec has {others.total()} more that the last run did not ask for: {_told(others)}")
    if content["running"]:
        who = f"process {content['pid']} on {content['host']}" if content["pid"] is not None else "a process"
        lines.append(f"running: {who}; `attnspec cancel {content['run']}` stops it")
    elif content["slurm_jobs"]:
        numbers = ", ".join(map(str, content["slurm_jobs"]))
        lines.append(
            f"Slurm job {numbers} goes on without a process here; `attnspec run` takes it up, "
            f"`attnspec cancel {content['run']}` stops it"
        )
    else:
        lines.append("not running")
    for job in content["jobs"]:
        ranks = "1 rank" if job["world_size"] == 1 else f"{job['world_size']} ranks"
        env = "".join(f" {name}={value}" for name, value in job["env"].items())
        slurm = job["slurm"]
        number = "" if slurm is None or slurm["id"] is None else f" {slurm['id']}"
        queue = "" if slurm is None else f", Slurm job{number}: {slurm['state']}"
        why = f" ({slurm['reason']})" if slurm is not None and slurm["reason"] else ""
        lines.append(f"job {job['job_id']}: {job['ok']} of {job['cases']} cases ok, {ranks}{env}{queue}{why}")
    if (last := content["last_activity_unix_s"]) is not None:
        seconds = max(0.0, time.time() - last)
        lines.append(f"last activity: {time.strftime('%F %T', time.localtime(last))} ({seconds:.0f} s ago)")
    return lines


def _told(words: Counter[str]) -> str:
    return ", ".join(f"{count} {word}" for word, count in words.most_common())


def _number(cases: int) -> str:
    return "1 case" if cases == 1 else f"{cases} cases"
