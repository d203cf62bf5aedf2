"""The packs artifact: `packs-<sample id>.arrow`, one row a document."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from attnspec.errors import JournalError
from attnspec.record.whole_file import replacing

SCHEMA = pa.schema(
    [
        pa.field("pack", pa.int32(), nullable=False, metadata={"doc": "Index of the pack, from 0."}),
        pa.field("doc", pa.int32(), nullable=False, metadata={"doc": "Index of the document in its pack, from 0."}),
        pa.field("length", pa.int64(), nullable=False, metadata={"doc": "Its length.", "unit": "tokens"}),
    ]
)


def write_packs(path: Path, packs: Sequence[NDArray[np.int64]]) -> None:
    """Write packs (arrays of document lengths, none empty) whole or not at all. Raises JournalError."""
    assert all(len(lengths) for lengths in packs)
    sizes = np.array([len(lengths) for lengths in packs], dtype=np.int64)
    columns = [*_places(sizes), np.concatenate([*packs, np.empty(0, np.int64)])]
    table = pa.Table.from_arrays([pa.array(column) for column in columns], schema=SCHEMA)
    with replacing(path) as stream, pa.ipc.new_file(stream, SCHEMA) as writer:
        writer.write_table(table)


def read_packs(path: Path) -> list[NDArray[np.int64]]:
    """The packs of an artifact in order. Raises JournalError for a missing or damaged file."""
    try:
        with pa.OSFile(str(path)) as file:
            table = pa.ipc.open_file(file).read_all()
    except (pa.ArrowException, OSError) as error:
        raise JournalError(f"{path}: packs cannot be read: {error}") from error
    if not table.schema.equals(SCHEMA):
        raise JournalError(f"{path}: not a packs file: columns {', '.join(table.schema.names) or 'none'}")
    pack, doc, length = (np.asarray(table.column(name)) for name in SCHEMA.names)
    if len(pack) and not 0 <= pack.min() <= pack.max() < len(pack):
        raise JournalError(f"{path}: not a packs file: a pack's index is out of range")
    sizes = np.bincount(pack)
    if not sizes.all() or not all(map(np.array_equal, (pack, doc), _places(sizes))) or np.any(length < 0):
        raise JournalError(f"{path}: not a packs file: rows are out of order or a length is negative")
    return np.split(length, np.cumsum(sizes)[:-1]) if len(sizes) else []


def _places(sizes: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The columns `pack` and `doc` of packs with so many documents each."""
    starts = np.cumsum(sizes) - sizes
    return (
        np.repeat(np.arange(len(sizes), dtype=np.int32), sizes),
        (np.arange(sizes.sum()) - np.repeat(starts, sizes)).astype(np.int32),
    )
