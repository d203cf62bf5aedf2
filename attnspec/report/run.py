"""Reading a run folder: `open_run(dir)` gives its tables, spec, plan and provenance."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from attnspec import plugins
from attnspec.errors import InputError, SpecError
from attnspec.launch.run_folder import RunFolder
from attnspec.launch.tables import collect_tables
from attnspec.plan import Plan, compile_plan
from attnspec.plan.document import read_images
from attnspec.record.schema import Cell, Timing, column_names
from attnspec.spec import Spec, load_spec
from attnspec.support import Device


@dataclass(frozen=True)
class OpenedRun:
    """A run folder that is there. Tables and plan are read when first asked for, once."""

    folder: RunFolder

    @property
    def path(self) -> Path:
        """The run folder."""
        return self.folder.path

    @property
    def cells(self) -> pa.Table:
        """One row per planned case; columns of `attnspec.record.schema.Cell`."""
        return self._tables[0]

    @property
    def timings(self) -> pa.Table:
        """One row per rank and iteration; columns of `attnspec.record.schema.Timing`."""
        return self._tables[1]

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """What ran, with which code, where; empty when the folder has none."""
        return self.folder.read_provenance()

    @cached_property
    def spec(self) -> Spec:
        """The spec that ran, overrides included."""
        try:
            return load_spec(self.folder.spec)
        except SpecError as error:
            loaded = self.provenance.get("settings", {}).get("plugins", [])
            absent = [f"--plugin {file}" for file in loaded if file not in plugins.loaded_files()]
            if not absent:
                raise
            raise InputError(f"{error}\nthis run loaded plug-in files; give them again: {' '.join(absent)}") from None

    @cached_property
    def plan(self) -> Plan:
        """The plan, compiled again from the spec for the device that it was compiled for."""
        planned = self.provenance.get("planned_for", {})
        device = planned.get("device")
        if device is not None:
            capability = device.get("capability")
            device = Device(**{**device, "capability": None if capability is None else tuple(capability)})
        return compile_plan(self.spec, device=device, images=read_images(planned))

    @cached_property
    def _tables(self) -> tuple[pa.Table, pa.Table]:
        """From the Parquet files; from the journal where these are not there yet, older than it, or damaged."""
        if not self.folder.tables_are_current():
            return collect_tables(self.plan, self.folder)
        try:
            return _read(self.folder.cells, Cell), _read(self.folder.timings, Timing)
        except InputError:
            if not self.folder.journal_state():
                raise
            return collect_tables(self.plan, self.folder)


def _read(path: Path, row: type) -> pa.Table:
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    missing = [name for name in column_names(row) if name not in table.column_names]
    if missing:
        raise InputError(f"{path}: has no column {', '.join(missing)}; allowed: a table that `attnspec run` wrote")
    return table


def open_run(path: str | Path) -> OpenedRun:
    """The run in a folder. Raises InputError when it is no run folder."""
    folder = RunFolder(Path(path))
    if not folder.path.is_dir():
        raise InputError(f"{path}: no such folder; `attnspec run` makes run folders, by default runs/<spec name>")
    begun = folder.spec.is_file() and folder.provenance.is_file()
    if not begun and not (folder.cells.is_file() and folder.timings.is_file()):
        raise InputError(
            f"{path}: no run folder (neither cells.parquet and timings.parquet nor spec.yaml and provenance.json)"
        )
    return OpenedRun(folder)
