"""A run as one file: what it takes to read, compare and report it again, with checksums. The same run, the same bytes.

A ZIP file (any tool opens it) without compression, since compressors of different versions give different bytes and the
tables are compressed already; names in order, one fixed date. `SHA256SUMS` fits `sha256sum -c`. Journals, requests and
logs stay behind: the tables hold what they say.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from attnspec.errors import InputError
from attnspec.launch.run_folder import RunFolder
from attnspec.record.whole_file import replacing

SUMS = "SHA256SUMS"
_DATE = (1980, 1, 1, 0, 0, 0)
_MODE = 0o100644
_NAME = re.compile(
    r"spec\.yaml|plan\.json|provenance\.json|cells\.parquet|timings\.parquet|SHA256SUMS"
    r"|artifacts/(?:(?:packs|slices)-[0-9a-z]+\.arrow|SHA256SUMS)"
)
_TABLES = ("cells.parquet", "timings.parquet")
"""What no export lacks."""
MOST_BYTES = 64 * 1024**3
"""No export is this large; what says so is no export."""


def write_archive(folder: RunFolder, cells: pa.Table, timings: pa.Table, out: Path) -> None:
    """Write the export of a run folder whose tables are `cells` and `timings`.

    Raises JournalError where `out` cannot be written, InputError where a file of the run cannot be read.
    """
    with replacing(out) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        sums = []
        for name, content in _contents(folder, cells, timings):
            sums.append(f"{hashlib.sha256(content).hexdigest()}  {name}\n")
            archive.writestr(_entry(name), content)
        archive.writestr(_entry(SUMS), "".join(sums))


def _contents(folder: RunFolder, cells: pa.Table, timings: pa.Table) -> Iterator[tuple[str, bytes]]:
    """File names and contents, in order of names."""
    tables = {"cells.parquet": cells, "timings.parquet": timings}
    current = folder.tables_are_current()
    artifacts = sorted(path.name for path in (folder.path / "artifacts").glob("*.arrow"))
    names = [f"artifacts/{name}" for name in artifacts] + ["artifacts/SHA256SUMS"]
    names += [*tables, "plan.json", "provenance.json", "spec.yaml"]
    for name in sorted(names):
        path = folder.path / name
        if name in tables and not current:
            stream = io.BytesIO()
            pq.write_table(tables[name].replace_schema_metadata(None), stream, compression="zstd")
            yield name, stream.getvalue()
        elif _NAME.fullmatch(name) and path.is_file():
            try:
                yield name, path.read_bytes()
            except OSError as error:
                raise InputError(f"{path}: cannot be read: {error.strerror}") from None


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _DATE)
    entry.external_attr = _MODE << 16
    entry.create_system = 3  # Unix, whatever wrote it
    return entry


def unpack(archive: Path, into: Path) -> None:
    """Unpack an export into an empty folder.

    Raises InputError when it is no export of a run, or not whole: only names that an export has are taken, and every
    file must have its checksum.
    """
    try:
        with zipfile.ZipFile(archive) as opened:
            entries = {entry.filename: entry for entry in opened.infolist()}
            strange = [name for name in entries if not _NAME.fullmatch(name)]
            if strange or SUMS not in entries:
                raise _no_export(archive, f"it holds {strange[0]!r}" if strange else f"it has no {SUMS}")
            if sum(entry.file_size for entry in entries.values()) > MOST_BYTES:
                raise _no_export(archive, f"it says that it holds more than {MOST_BYTES} bytes")
            sums = _read_sums(archive, _content(archive, opened, SUMS))
            if set(sums) != set(entries) - {SUMS}:
                odd = sorted(set(sums) ^ (set(entries) - {SUMS}))
                raise _no_export(archive, f"{SUMS} and the files do not agree about {odd[0]}")
            lacking = [name for name in _TABLES if name not in sums]
            if lacking:
                raise _no_export(archive, f"it has no {lacking[0]}")
            for name, checksum in sums.items():
                content = _content(archive, opened, name)
                if hashlib.sha256(content).hexdigest() != checksum:
                    raise InputError(f"{archive}: {name} is damaged: its SHA-256 is not the one in {SUMS}")
                path = into / name
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(content)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, UnicodeError) as error:
        # zipfile raises the third for a compression that it lacks, the fourth for an encrypted entry.
        raise _no_export(archive, str(error)) from None


def _content(archive: Path, opened: zipfile.ZipFile, name: str) -> bytes:
    """Of one entry. Whoever compressed the export anew gets the errors of that compression's library."""
    try:
        return opened.read(name)
    except (zlib.error, lzma.LZMAError, OSError, ValueError) as error:
        raise InputError(f"{archive}: {name} is damaged: {error}") from None


def _read_sums(archive: Path, content: bytes) -> dict[str, str]:
    sums = {}
    for line in content.decode("utf-8", errors="replace").splitlines():
        checksum, gap, name = line.partition("  ")
        if not gap:
            raise _no_export(archive, f"{SUMS} is damaged")
        sums[name] = checksum
    return sums


def _no_export(archive: Path, why: str) -> InputError:
    return InputError(f"{archive}: is no export of a run: {why}; `attnspec export RUN` makes one")
