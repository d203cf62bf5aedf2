"""Running a plan in a run folder: lock, artifacts, jobs one after another, tables."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from attnspec.errors import EnvironmentMissingError
from attnspec.launch.artifacts import Made, prepare_artifacts
from attnspec.launch.container_place import end_orphans
from attnspec.launch.happenings import JobBegan, Said, Watcher
from attnspec.launch.job_runner import JobRunner, Launch
from attnspec.launch.place import Place, submits
from attnspec.launch.provenance import code_sha256, differences, facts_of_workers, gather
from attnspec.launch.run_folder import RunFolder
from attnspec.launch.run_lock import RunLock
from attnspec.launch.slurm_run import SlurmRun, standing_ok
from attnspec.launch.slurm_submissions import refuse_beside_slurm
from attnspec.launch.stop_signals import StopSignals
from attnspec.launch.supervision import Verdict
from attnspec.launch.tables import collect_tables
from attnspec.plan import Case, Plan
from attnspec.plan.document import json_chunks
from attnspec.plan.requests import runnable
from attnspec.record.journal import read_journal
from attnspec.record.status import FAILED, Status
from attnspec.record.variables import measured_variables

ENVIRONMENT_REASONS = frozenset({"missing_package", "broken_package", "no_compiler", "device"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What one `run` asks for.

    spec_text: what spec.yaml is to hold. settings: how the given spec was changed on the way there (overrides, ...).
    only: case_ids to run; None = all. fresh: measure everything anew, the old journal set aside. plugins: files.
    """

    spec_text: str
    spec_sha256: str
    argv: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    only: frozenset[str] | None = None
    fresh: bool = False
    plugins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What a run left. signal: the signal that stopped it, if any. chosen: the case_ids that it was about.

    cancelled: whether `attnspec cancel` stopped it, by a signal or by cancelling its jobs.
    """

    cells: pa.Table
    timings: pa.Table
    chosen: frozenset[str]
    signal: int | None
    host_failed: bool
    cancelled: bool = False

    @property
    def stopped(self) -> str:
        """Why it ended before its cases did, in words; empty where nothing stopped it."""
        if self.cancelled:
            return "cancelled"
        return "" if self.signal is None else "stopped by a signal"

    @property
    def exit_code(self) -> int:
        """128 + the signal that stopped it; 1 with a failed case; 3 when the environment lets no chosen case run; 0."""
        if self.signal is not None:
            return 128 + self.signal
        columns = (self.cells[name].to_pylist() for name in ("case_id", "status", "reason_code"))
        chosen = [(status, code) for case_id, status, code in zip(*columns, strict=True) if case_id in self.chosen]
        if self.host_failed or any(status in FAILED for status, _ in chosen):
            return 1
        if chosen and all(status == Status.UNSUPPORTED and code in ENVIRONMENT_REASONS for status, code in chosen):
            return EnvironmentMissingError.exit_code
        return 0


def run_plan(plan: Plan, folder: RunFolder, place: Place, order: Order, watch: Watcher) -> RunResult:
    """Run what has no ok record yet, and collect everything into tables, also when it is told to stop.

    Raises LockedError when another process works in the folder, JournalError when the disk refuses,
    EnvironmentMissingError when a worker cannot start.
    """
    folder.prepare()
    with RunLock(folder.path) as lock, StopSignals() as signals:
        before = folder.read_provenance().get("runner", {}).get("name", place.runner.name)
        if order.fresh or not submits(place.runner) or before != place.runner.name:
            refuse_beside_slurm(folder.path)
        if order.fresh and (aside := folder.set_journal_aside()):
            watch(Said(text=f"starting anew; what was measured before is in {aside.name}"))
        if folder.spec.is_file() and folder.spec.read_bytes() != order.spec_text.encode():
            watch(
                Said(
                    text="the spec has changed since the last run here; cases that it no longer asks for stay journaled"
                )
            )
        for name, image in place.images.items():
            if not image.pinned:
                watch(Said(text=f"image {name} is not pinned; what is measured is kept under its ID {image.identity}"))
        started_ns = time.time_ns()
        provenance = _provenance(plan, folder, place, order, started_ns)
        folder.write_text(folder.spec, [order.spec_text])
        folder.write_text(folder.plan, json_chunks(plan))
        folder.write_provenance(provenance)
        chosen = _chosen(plan, order.only)
        host_failed = False
        with ExitStack() as stack:
            stack.callback(_finish_provenance, folder, provenance, signals)
            with signals.obeyed():
                _prepare(plan, folder, chosen, watch)
            launch = Launch(
                plan=plan,
                folder=folder,
                runner=place.runner,
                python=place.python,
                device=place.device,
                code_sha256=provenance["code_sha256"],
                plugins=order.plugins,
                images=place.images,
            )
            try:
                changed = _changed_variables(provenance["runs"])
                host_failed = _run_jobs(launch, order.only, watch, signals, changed)
            finally:
                state = folder.journal_state()
                cells, timings = collect_tables(plan, folder, watch=watch)
                folder.write_tables(cells, timings, state)
        return RunResult(
            cells=cells,
            timings=timings,
            chosen=frozenset(case.case_id for case in chosen),
            signal=signals.number,
            host_failed=host_failed,
            cancelled=lock.cancelled,
        )


def _chosen(plan: Plan, only: Collection[str] | None) -> tuple[Case, ...]:
    return tuple(case for case in plan.cases if only is None or case.case_id in only)


def _prepare(plan: Plan, folder: RunFolder, chosen: Sequence[Case], watch: Watcher) -> None:
    masks = dict.fromkeys(case.workload.mask_node.mask_id for case in chosen)

    def made(node: Made) -> None:
        if not node.reused and node.stage == "sample":
            sample = plan.samples[node.node_id]
            watch(Said(text=f"packs of {sample.seqlen} tokens from {sample.lengths or 'one document'}"))

    prepare_artifacts(plan, folder.path, masks=masks, on_node=made)


def _run_jobs(
    launch: Launch, only: Collection[str] | None, watch: Watcher, signals: StopSignals, changed: Sequence[str]
) -> bool:
    """Whether the host had to record a failure.

    changed: which environment variables differ from those of the last run. Workers see that by themselves; on Slurm
    none would be started for cases that are ok.
    """
    asked = [(job, cases) for job in launch.plan.jobs if (cases := runnable(launch.plan, job, only))]
    if submits(launch.runner):
        held, _ = collect_tables(launch.plan, launch.folder)
        images = {case.case_id: launch.image_id(job) for job, cases in asked for case in cases}
        for line in changed:
            watch(Said(text=f"conditions differ from the last run: {line}"))
        rows = held.select(["case_id", "status", "image_digest"]).to_pylist()
        ok = frozenset[str]() if changed else standing_ok(rows, images)
        return SlurmRun(launch, asked, watch, signals, ok=ok).run()
    end_orphans(launch.runner.launcher, launch.folder.path)
    failed = False
    for number, (job, cases) in enumerate(asked, start=1):
        if signals.number is not None:
            break
        watch(JobBegan(job=job, number=number, num_jobs=len(asked), cases=cases))
        runner = JobRunner(launch, job, cases, watch, signals)
        verdict = runner.run()
        failed = failed or runner.failed
        if verdict is Verdict.INTERRUPTED:
            break
    return failed


def _provenance(plan: Plan, folder: RunFolder, place: Place, order: Order, started_ns: int) -> dict[str, Any]:
    content = gather(
        argv=order.argv,
        runner=place.runner,
        found=place.found,
        spec_sha256=order.spec_sha256,
        settings=order.settings,
        code=code_sha256(),
        images={name: image.facts() for name, image in place.images.items()},
    )
    earlier = folder.read_provenance().get("runs", [])
    planned = {"device": None if plan.device is None else asdict(plan.device), "images": list(map(asdict, plan.images))}
    return {
        **content,
        "planned_for": planned,
        "runs": [*earlier, _this_run(place, order, content, started_ns)],
    }


def _this_run(place: Place, order: Order, content: Mapping[str, Any], started_ns: int) -> dict[str, Any]:
    """What stays told of a run when later ones resume it: its code, whether its images were pinned, its variables."""
    images = {name: {"identity": image.identity, "pinned": image.pinned} for name, image in place.images.items()}
    code = {name: content[name] for name in ("git_commit", "code_sha256")}
    variables = measured_variables({**os.environ, **place.runner.env})
    return {"command": list(order.argv), **code, "started_ns": started_ns, "images": images, "variables": variables}


def _changed_variables(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the last of a folder's runs has otherwise than the one before; nothing where that did not tell."""
    if len(runs) < 2 or "variables" not in runs[-2]:
        return []
    return differences(runs[-2]["variables"], runs[-1]["variables"], "variables.")


def _finish_provenance(folder: RunFolder, provenance: dict[str, Any], signals: StopSignals) -> None:
    provenance["runs"][-1] |= {"ended_ns": time.time_ns(), "signal": signals.number}
    provenance["workers"] = facts_of_workers(read_journal(folder.journal))
    folder.write_provenance(provenance)
