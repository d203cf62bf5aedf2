"""Reading a run folder: `open_run(dir)` gives its tables, spec, plan and provenance."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any
from weakref import finalize

import pyarrow as pa
import pyarrow.parquet as pq

from attnspec import plugins
from attnspec.errors import InputError, SpecError
from attnspec.launch.run_folder import RunFolder
from attnspec.launch.tables import collect_tables
from attnspec.plan import Plan, compile_plan
from attnspec.plan.document import read_images
from attnspec.record.schema import Cell, Timing, arrow_schema
from attnspec.report.archive import unpack
from attnspec.spec import Spec, load_spec
from attnspec.support import Device

_LATER = ("kernel_params",)
"""Columns that tables of earlier versions lack; they are null there."""
_MOST_INSIDE = 3
"""Run folders that an error names."""


@dataclass(frozen=True)
class OpenedRun:
    """A run folder that is there. Tables and plan are read when first asked for, once."""

    folder: RunFolder
    export: Path | None = None
    """The file that the folder was unpacked from."""

    @property
    def path(self) -> Path:
        """The run folder."""
        return self.folder.path

    @property
    def place(self) -> Path:
        """What lasts: the export, else the run folder."""
        return self.export or self.folder.path

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
        """The plan, compiled again from the spec for the device and environment that it was compiled for."""
        planned = self.provenance.get("planned_for", {})
        device = planned.get("device")
        if device is not None:
            capability = device.get("capability")
            device = Device(**{**device, "capability": None if capability is None else tuple(capability)})
        env = self.provenance.get("runner", {}).get("env")
        return compile_plan(self.spec, device=device, images=read_images(planned), env=env)

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
    schema = arrow_schema(row)
    absent = [name for name in schema.names if name not in table.column_names]
    missing = [name for name in absent if name not in _LATER]
    if missing:
        raise InputError(f"{path}: has no column {', '.join(missing)}; allowed: a table that `attnspec run` wrote")
    for name in absent:
        table = table.append_column(schema.field(name), pa.nulls(table.num_rows, schema.field(name).type))
    return _typed(path, table.select(schema.names), schema)


def _typed(path: Path, table: pa.Table, schema: pa.Schema) -> pa.Table:
    """In the schema's types, whatever wrote the file: other tools hold whole numbers as floats, text as categories."""
    for field in schema:
        try:
            column = table[field.name].cast(field.type)
        except pa.ArrowException as error:
            raise InputError(f"{path}: column {field.name} is no {field.type}: {error}") from None
        if column.null_count and not field.nullable:
            raise InputError(f"{path}: column {field.name} has {column.null_count} nulls; allowed: none")
        if not column.type.equals(table.schema.field(field.name).type):
            table = table.set_column(table.schema.get_field_index(field.name), field, column)
    return table


def open_run(path: str | Path) -> OpenedRun:
    """The run in a folder, or in a file that `attnspec export` made. Raises InputError when it is neither."""
    if Path(path).is_file():
        return _open_export(Path(path))
    folder = RunFolder(Path(path))
    if not folder.path.is_dir():
        raise InputError(
            f"{path}: no such folder; `attnspec run` makes run folders, by default runs/<name of the spec's file>"
        )
    if not _is_run(folder):
        raise InputError(
            f"{path}: no run folder (neither cells.parquet and timings.parquet nor spec.yaml and provenance.json)"
            f"{_inside(folder.path)}"
        )
    return OpenedRun(folder)


def _inside(path: Path) -> str:
    """The run folders in a folder that is none, in words: the first few by name."""
    try:
        found = sorted(one for one in path.iterdir() if one.is_dir() and _is_run(RunFolder(one)))
    except OSError:
        return ""
    more = f" and {len(found) - _MOST_INSIDE} more" if len(found) > _MOST_INSIDE else ""
    return f"; run folders in it: {', '.join(map(str, found[:_MOST_INSIDE]))}{more}" if found else ""


def _is_run(folder: RunFolder) -> bool:
    begun = folder.spec.is_file() and folder.provenance.is_file()
    return begun or (folder.cells.is_file() and folder.timings.is_file())


def _open_export(file: Path) -> OpenedRun:
    """Unpacked into a folder that goes when the run does. It has the export's name, as reports name runs by folders."""
    unpacked = Path(mkdtemp(prefix="attnspec-"))
    try:
        folder = unpacked / (file.stem.strip(".") or "run")
        folder.mkdir()
        unpack(file, folder)
        opened = OpenedRun(open_run(folder).folder, export=file)
    except BaseException:
        rmtree(unpacked, ignore_errors=True)
        raise
    finalize(opened, rmtree, unpacked, ignore_errors=True)
    return opened
