"""Document lengths as an integer column of a Parquet, Arrow or Feather file, one document a row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.feather as feather
import pyarrow.parquet as pq

from attnspec.errors import InputError
from attnspec.sample.lengths import MAX_LENGTH, Lengths, from_tally

COLUMN = "length"


def read_column(path: Path, name: str) -> Lengths:
    """A population from the column `length`, or from the only integer column. Raises InputError with column and row.

    The kind of file is told from its first bytes. Rows count from 0.
    """
    try:
        schema = _schema(path)
        column = _choose(path, schema)
        lengths = _read(path, column)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: not a readable Parquet, Arrow or Feather file: {error}") from error
    if lengths.null_count:
        row = pc.index(pc.is_null(lengths), pa.scalar(True)).as_py()
        raise InputError(f"{path}: column {column!r}, row {row}: null; allowed: whole numbers of 0 or more")
    if not len(lengths):
        raise InputError(f"{path}: column {column!r} has no rows; allowed: at least one document")
    pairs = pc.value_counts(lengths)
    values = pairs.field("values")
    for extreme in (pc.min(values).as_py(), pc.max(values).as_py()):
        if not 0 <= extreme <= MAX_LENGTH:
            row = pc.index(lengths, pa.scalar(extreme, type=lengths.type)).as_py()
            raise InputError(f"{path}: column {column!r}, row {row}: got {extreme}; allowed: 0 to 2**40 tokens")
    counts = pairs.field("counts").to_numpy(zero_copy_only=False)
    return from_tally(name, values.to_numpy(zero_copy_only=False).astype(np.int64), counts.astype(np.int64))


def _start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(8)


def _schema(path: Path) -> pa.Schema:
    start = _start(path)
    if start.startswith(b"PAR1"):
        return pq.read_schema(path)
    if start.startswith(b"FEA1"):
        return feather.read_table(path).schema
    with pa.OSFile(str(path)) as file:
        return (pa.ipc.open_file(file) if start.startswith(b"ARROW1") else pa.ipc.open_stream(file)).schema


def _choose(path: Path, schema: pa.Schema) -> str:
    integers = [field.name for field in schema if pa.types.is_integer(field.type)]
    if schema.names.count(COLUMN) == 1 and COLUMN in integers:
        return COLUMN
    if len(integers) == 1 and COLUMN not in schema.names:
        return str(integers[0])
    got = ", ".join(f"{field.name!r} ({field.type})" for field in schema) or "no columns"
    raise InputError(f"{path}: got {got}; allowed: an integer column named 'length', or only one integer column")


def _read(path: Path, column: str) -> pa.ChunkedArray:
    start = _start(path)
    if start.startswith(b"PAR1"):
        return pq.read_table(path, columns=[column]).column(0)
    if start.startswith(b"FEA1"):
        return feather.read_table(path, columns=[column]).column(0)
    with pa.memory_map(str(path)) as file:
        if start.startswith(b"ARROW1"):
            return pa.ipc.open_file(file).read_all().column(column)
        return pa.ipc.open_stream(file).read_all().column(column)
