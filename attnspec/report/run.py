"""Reading a run folder: `open_run(dir)` gives its tables, spec, plan and provenance."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from attnspec.errors import InputError
from attnspec.launch.run_folder import RunFolder
from attnspec.launch.tables import collect_tables
from attnspec.plan import Plan, compile_plan
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
        return load_spec(self.folder.spec)

    @cached_property
    def plan(self) -> Plan:
        """The plan, compiled again from the spec for the device that it was compiled for."""
        planned = self.provenance.get("planned_for", {})
        device = planned.get("device")
        if device is not None:
            capability = device.get("capability")
            device = Device(**{**device, "capability": None if capability is None else tuple(capability)})
        return compile_plan(self.spec, device=device, image=planned.get("image"))

    @cached_property
    def _tables(self) -> tuple[pa.Table, pa.Table]:
        """From the Parquet files; from the journal when a run is under way or ended before it wrote them."""
        if not self.folder.tables_are_current():
            return collect_tables(self.plan, self.folder)
        try:
            return pq.read_table(self.folder.cells), pq.read_table(self.folder.timings)
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{self.path}: its tables cannot be read: {error}") from None


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
