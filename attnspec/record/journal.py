"""The journal: what a run measured, as Arrow IPC streams that survive a kill at any byte.

One file per writer, attempt and stream: `<writer>-<attempt>.{outcomes,timings,notes}.arrows`. Every append is one
record batch, flushed to the disk before it returns. A file that was cut gives back exactly its complete batches; a
write that fails (full disk) is cut back to the last complete batch, so that what was measured stays readable.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from attnspec.errors import JournalError
from attnspec.record.entries import STREAMS, Note, Outcome, Sample
from attnspec.record.schema import arrow_schema, from_row, to_table
from attnspec.record.status import Status, check_outcome
from attnspec.record.whole_file import refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """Everything that all writers of a run folder journaled. `timings` has the columns of Sample.

    damaged: names of files that end in the middle of a batch; their complete batches are here.
    """

    outcomes: tuple[Outcome, ...] = ()
    timings: pa.Table = field(default_factory=lambda: to_table(Sample, ()))
    notes: tuple[Note, ...] = ()
    damaged: tuple[str, ...] = ()


class JournalWriter:
    """Appends to the three streams of one writer in one attempt. Not thread-safe; one per process.

    `writer` is unique among the processes that write in one attempt, such as `<job id>-rank0` or `host`. Files appear
    with their first row. Every method raises JournalError when the disk refuses; rows appended before stay readable.
    """

    def __init__(self, directory: str | Path, writer: str, attempt: int) -> None:
        self.directory = Path(directory)
        self.writer = writer
        self.attempt = attempt
        self._files: dict[str, int] = {}

    def append_outcome(self, row: Mapping[str, Any]) -> None:
        """One case ended: columns of Outcome; `attempt` and `ended_ns` are filled in."""
        values = {"attempt": self.attempt, "ended_ns": time.time_ns(), **row}
        check_outcome(Status(values["status"]), values.get("reason_code"))
        self._append("outcomes", [from_row(Outcome, values)])

    def append_round(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """The samples of one round of one case, kept or lost together: columns of Sample without `attempt`."""
        held = [from_row(Sample, {"attempt": self.attempt, **row}) for row in rows]
        if held:
            self._append("timings", held)

    def append_note(self, kind: str, data: Any) -> None:
        """Anything that JSON can hold."""
        text = json.dumps(data, ensure_ascii=False, allow_nan=False)
        note = Note(kind=kind, created_ns=time.time_ns(), json=text, writer=self.writer, attempt=self.attempt)
        self._append("notes", [note])

    def close(self) -> None:
        """Close the files. Nothing is pending: every append was flushed."""
        for handle in self._files.values():
            os.close(handle)
        self._files.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _append(self, stream: str, rows: list[Any]) -> None:
        batch = to_table(STREAMS[stream], rows).combine_chunks().to_batches()[0]
        path = self.directory / f"{self.writer}-{self.attempt}.{stream}.arrows"
        try:
            if stream not in self._files:
                self._open(stream, path, batch.schema)
            _write(self._files[stream], batch.serialize())
        except FileExistsError as error:
            raise JournalError(f"{path}: exists already: two writers share one name and attempt") from error
        except OSError as error:
            raise refused(path, error) from error

    def _open(self, stream: str, path: Path, schema: pa.Schema) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            _write(handle, schema.serialize())
            folder = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError:
            os.close(handle)
            path.unlink()
            raise
        self._files[stream] = handle


def read_journal(directory: str | Path) -> Journal:
    """Everything journaled in a folder, by every writer and attempt, in the order of the file names.

    Files cut at any byte give their complete batches, and notes that are no JSON any more are left out. A missing
    folder is an empty journal. Raises JournalError only where the folder or a file may not be read.
    """
    folder = Path(directory)
    tables: dict[str, list[pa.Table]] = {stream: [] for stream in STREAMS}
    damaged = []
    try:
        paths = sorted(folder.glob("*.arrows")) if folder.is_dir() else []
        for path in paths:
            stream = path.name.split(".")[-2]
            if stream in STREAMS:
                table, complete = _read(path, arrow_schema(STREAMS[stream]))
                if stream == "notes":
                    sound = table.filter(pa.array(map(_is_json, table["json"].to_pylist()), pa.bool_()))
                    table, complete = sound, complete and len(sound) == len(table)
                tables[stream].append(table)
                if not complete:
                    damaged.append(path.name)
    except OSError as error:
        raise JournalError(f"{error.filename or folder}: cannot read the journal: {error.strerror}") from error
    outcomes, timings, notes = (
        pa.concat_tables(tables[stream]) if tables[stream] else to_table(row, ()) for stream, row in STREAMS.items()
    )
    return Journal(
        outcomes=tuple(Outcome(**row) for row in outcomes.to_pylist()),
        timings=timings,
        notes=tuple(Note(**row) for row in notes.to_pylist()),
        damaged=tuple(damaged),
    )


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _write(handle: int, message: pa.Buffer) -> None:
    """Append one whole IPC message and flush it, or leave the file as it was and raise OSError."""
    start = os.lseek(handle, 0, os.SEEK_END)
    rest = memoryview(message)
    try:
        while rest:
            rest = rest[os.write(handle, rest) :]
        os.fsync(handle)
    except OSError:
        os.ftruncate(handle, start)
        raise


def _read(path: Path, schema: pa.Schema) -> tuple[pa.Table, bool]:
    """The complete batches of one file in today's columns, and whether it ends where a batch ends."""
    content = path.read_bytes()
    batches = []
    complete = True
    try:
        with pa.ipc.open_stream(pa.BufferReader(content)) as reader:
            while True:
                batch = reader.read_next_batch()
                batch.validate(full=True)
                batches.append(_conformed(batch, schema))
    except StopIteration:
        pass
    except (pa.ArrowException, OSError, ValueError):
        complete = False
    return pa.Table.from_batches(batches, schema=schema), complete


def _conformed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch of an older or newer attnspec in today's columns; ValueError when a required one is missing."""
    if batch.schema.equals(schema):
        return batch
    columns = []
    for item in schema:
        if item.name in batch.schema.names:
            columns.append(batch.column(item.name).cast(item.type))
        elif item.nullable:
            columns.append(pa.nulls(batch.num_rows, item.type))
        else:
            raise ValueError(f"no column {item.name}")
    return pa.RecordBatch.from_arrays(columns, schema=schema)
