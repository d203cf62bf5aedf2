"""A run folder: where everything of a run lies. Files are written beside and renamed, so no reader sees half of one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from attnspec.errors import InputError
from attnspec.launch.run_lock import NAME
from attnspec.plan.requests import request_path
from attnspec.record.whole_file import replacing, unwritable
from attnspec.wire import JobRequest, dumps

STATE = b"attnspec.journal"
_WITHOUT = "the run folder works without it, so move it away"
_ATTEMPT = re.compile(r"-(\d+)\.(?:json|log|(?:outcomes|timings|notes)\.arrows)")


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths of a run folder, and how its files are written. Nothing is created before it is written."""

    path: Path

    @property
    def spec(self) -> Path:
        """The spec as it was given."""
        return self.path / "spec.yaml"

    @property
    def plan(self) -> Path:
        """The compiled plan."""
        return self.path / "plan.json"

    @property
    def provenance(self) -> Path:
        """What ran, with which code, where."""
        return self.path / "provenance.json"

    @property
    def journal(self) -> Path:
        """The folder of journals."""
        return self.path / "journal"

    @property
    def cells(self) -> Path:
        """One row per case."""
        return self.path / "cells.parquet"

    @property
    def timings(self) -> Path:
        """One row per rank and iteration."""
        return self.path / "timings.parquet"

    @property
    def report(self) -> Path:
        """The folder of the page."""
        return self.path / "report"

    def log(self, job_id: str, attempt: int) -> Path:
        """Standard error of a worker."""
        return self.path / "artifacts" / "logs" / f"{job_id}-{attempt}.log"

    def prepare(self) -> None:
        """Make the folders.

        Raises InputError where something of the user's is in the way, UnwritableError where nothing can be written.
        """
        self._refuse_what_is_not_ours()
        try:
            for folder in (self.path, self.journal, self.path / "artifacts" / "jobs", self.path / "artifacts" / "logs"):
                folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise InputError(
                f"{error.filename}: a file is in the way of the run folder; choose another with --out"
            ) from None
        except OSError as error:
            raise unwritable(self.path, error) from error

    def _refuse_what_is_not_ours(self) -> None:
        """A run replaces these files; nobody's own spec.yaml and no tables without their journal may go that way."""
        lock = self.path / NAME
        begun = lock.is_file() or self.provenance.is_file() or any(self.journal.glob("*.arrows"))
        if not begun:
            for file in (self.spec, self.plan, self.cells, self.timings):
                if file.exists():
                    raise InputError(
                        f"{file}: is in the way, and {self.path} is no run folder; choose another with --out"
                    )
        elif not self.journal_state() and not any(self.path.glob("journal-before-*")) and _has_rows(self.timings):
            raise InputError(
                f"{self.path}: its journal is gone, and a run would replace the tables, which alone hold what was "
                "measured; choose another with --out"
            )

    def next_attempt(self) -> int:
        """A number above every attempt that left a file."""
        numbers = [
            int(match[1])
            for folder in (self.journal, self.path / "artifacts" / "jobs", self.path / "artifacts" / "logs")
            if folder.is_dir()
            for file in folder.iterdir()
            if (match := _ATTEMPT.search(file.name))
        ]
        return max(numbers, default=0) + 1

    def set_journal_aside(self) -> Path | None:
        """Move the journal to `journal-before-<n>`, so that a run starts anew; None when there is nothing in it."""
        if not self.journal.is_dir() or not any(self.journal.iterdir()):
            return None
        number = 1
        while (aside := self.path / f"journal-before-{number}").exists():
            number += 1
        self.journal.rename(aside)
        self.journal.mkdir()
        return aside

    def write_request(self, request: JobRequest) -> Path:
        """The job request as the file that the worker reads."""
        path = self.path / request_path(request.job_id, request.attempt)
        self.write_text(path, [dumps(request)])
        return path

    def write_text(self, path: Path, chunks: Iterable[str]) -> None:
        """A text file, whole or not at all."""
        with replacing(path) as stream:
            for chunk in chunks:
                stream.write(chunk.encode())

    def write_provenance(self, content: Mapping[str, Any]) -> None:
        """The whole of provenance.json."""
        self.write_text(self.provenance, [json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False), "\n"])

    def read_provenance(self) -> dict[str, Any]:
        """What provenance.json holds; empty when there is none. Raises InputError when it is damaged."""
        try:
            content = json.loads(self.provenance.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            what = error.strerror if isinstance(error, OSError) else error
            raise InputError(f"{self.provenance}: cannot be read: {what}; {_WITHOUT}") from None
        if not isinstance(content, dict):
            raise InputError(f"{self.provenance}: holds no JSON object; {_WITHOUT}")
        return content

    def write_tables(self, cells: pa.Table, timings: pa.Table, state: str) -> None:
        """Both tables. state: `journal_state` from before the journal was read."""
        cells = cells.replace_schema_metadata({STATE: state})
        for path, table in ((self.timings, timings), (self.cells, cells)):
            with replacing(path) as stream:
                pq.write_table(table, stream, compression="zstd")

    def journal_state(self) -> str:
        """Names and sizes of the journal's files; journals only grow, so equal states are equal journals."""
        if not self.journal.is_dir():
            return ""
        return " ".join(f"{file.name}:{file.stat().st_size}" for file in sorted(self.journal.glob("*.arrows")))

    def tables_are_current(self) -> bool:
        """Whether both tables are there and tell all that the journal holds. Without a journal, tables are current."""
        if not (self.cells.is_file() and self.timings.is_file()):
            return False
        state = self.journal_state()
        try:
            return not state or (pq.read_schema(self.cells).metadata or {}).get(STATE) == state.encode()
        except (pa.ArrowException, OSError):  # damaged; the journal holds it all
            return False

    def last_activity_ns(self) -> int | None:
        """When a journal or log last changed (Unix time); None when there is none."""
        files = [*self.journal.glob("*.arrows"), *(self.path / "artifacts" / "logs").glob("*.log")]
        return max((file.stat().st_mtime_ns for file in files), default=None)


def _has_rows(table: Path) -> bool:
    try:
        return table.is_file() and pq.read_metadata(table).num_rows > 0
    except pa.ArrowException:
        return False
