"""The collect stage of a run folder: its plan and its journal into the two tables."""

from __future__ import annotations

import pyarrow as pa

from attnspec.launch.artifacts import prepare_artifacts
from attnspec.launch.happenings import Said, Watcher
from attnspec.launch.run_folder import RunFolder
from attnspec.plan import Plan, base_row
from attnspec.plan.requests import slices_path
from attnspec.record.collect import cells_from
from attnspec.record.journal import read_journal


def collect_tables(plan: Plan, folder: RunFolder, watch: Watcher | None = None) -> tuple[pa.Table, pa.Table]:
    """`cells` and `timings` of a run folder as its journal stands now. Writes nothing but damaged artifacts anew."""
    journal = read_journal(folder.journal)
    if watch is not None and journal.damaged:
        names = ", ".join(journal.damaged)
        watch(Said(text=f"journal files that end in the middle of a record, cut there: {names}"))
    there = [mask_id for mask_id in plan.masks if (folder.path / slices_path(mask_id)).is_file()]
    areas = prepare_artifacts(plan, folder.path, masks=there) if there else {}
    planned = (base_row(plan, case, areas.get(case.workload.mask_node.mask_id)) for case in plan.cases)
    return cells_from(planned, journal)
