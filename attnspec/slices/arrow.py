"""Slices of several packs as one Arrow table, the form in which they travel to the worker. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from attnspec.errors import InputError
from attnspec.slices.measure import area
from attnspec.slices.table import AttnSlices

if TYPE_CHECKING:
    import pyarrow as pa

_COLUMNS = ("pack", "q_start", "q_end", "k_start", "k_end", "type")


@cache
def _schema() -> pa.Schema:
    """The columns, made on first use: `attnspec.slices` is imported by commands that need no pyarrow."""
    import pyarrow as pa

    types = (pa.int32(), pa.int64(), pa.int64(), pa.int64(), pa.int64(), pa.int8())
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in zip(_COLUMNS, types, strict=True)])


def to_arrow(packs: Sequence[AttnSlices]) -> pa.Table:
    """One mask over several packs as a pyarrow Table: pack, q_start, q_end, k_start, k_end, type.

    The schema's metadata holds seqlen_q, seqlen_k (the same for all packs) and areas (a JSON list, one per pack).
    """
    import pyarrow as pa

    lengths = {(pack.seqlen_q, pack.seqlen_k) for pack in packs}
    if len(lengths) != 1:
        raise InputError(f"packs of one mask have one (seqlen_q, seqlen_k), got {sorted(lengths)}")
    ((seqlen_q, seqlen_k),) = lengths
    ranges = np.concatenate([pack.ranges for pack in packs])
    columns = [
        np.repeat(np.arange(len(packs), dtype=np.int32), [len(pack) for pack in packs]),
        *(np.ascontiguousarray(ranges[:, column]) for column in range(4)),
        np.concatenate([pack.types for pack in packs]),
    ]
    metadata = {
        "seqlen_q": str(seqlen_q),
        "seqlen_k": str(seqlen_k),
        "areas": json.dumps([area(pack) for pack in packs]),
    }
    return pa.table([pa.array(column) for column in columns], schema=_schema().with_metadata(metadata))


def from_arrow(table: pa.Table) -> list[AttnSlices]:
    """The packs' slices from a table made by `to_arrow`. Raises InputError for any other table."""
    metadata = {name.decode(): text.decode() for name, text in (table.schema.metadata or {}).items()}
    if not table.schema.equals(_schema()) or not {"seqlen_q", "seqlen_k", "areas"} <= metadata.keys():
        raise InputError(f"not a table of slices: columns {table.schema.names}, metadata {sorted(metadata)}")
    pack = table["pack"].to_numpy()
    ranges = np.stack([table[name].to_numpy() for name in _COLUMNS[1:5]], axis=1)
    types = table["type"].to_numpy()
    bounds = np.searchsorted(pack, np.arange(len(json.loads(metadata["areas"])) + 1))
    return [
        AttnSlices(
            ranges=ranges[start:end],
            types=types[start:end],
            seqlen_q=int(metadata["seqlen_q"]),
            seqlen_k=int(metadata["seqlen_k"]),
        )
        for start, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
    ]


def read_areas(table: pa.Table) -> list[int]:
    """The packs' areas from a table made by `to_arrow`, without counting again."""
    areas: list[int] = json.loads(table.schema.metadata[b"areas"])
    return areas
