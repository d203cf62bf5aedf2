"""Raw samples for the page: those of each case in their order, evenly thinned to what a page may carry."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

_BUDGET, _MOST, _LEAST = 400_000, 600, 24
"""Samples on a page over all cases; most and least of one case."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Series:
    """One case's iterations in order. elapsed_ns: int64 (n,), the slowest rank's. pack: int32 (n,)."""

    elapsed_ns: NDArray[np.int64]
    pack: NDArray[np.int32]


def series_by_case(timings: pa.Table) -> dict[str, Series]:
    """The samples of every case of a `timings.parquet`; the time of an iteration is the slowest rank's."""
    if timings.num_rows == 0:
        return {}
    table = timings.select(["case_id", "pack", "rank", "round", "iteration", "elapsed_ns"])
    if pc.max(table["rank"]).as_py():
        keys = ["case_id", "pack", "round", "iteration"]
        table = table.group_by(keys, use_threads=False).aggregate([("elapsed_ns", "max")])
        table = table.rename_columns([*keys, "elapsed_ns"])
    coded = table["case_id"].combine_chunks().dictionary_encode()
    place = np.asarray(coded.indices)
    order = np.lexsort((np.asarray(table["iteration"]), np.asarray(table["round"]), place))
    elapsed, pack = np.asarray(table["elapsed_ns"])[order], np.asarray(table["pack"])[order]
    starts = np.searchsorted(place[order], np.arange(len(coded.dictionary) + 1))
    return {
        case_id: Series(elapsed_ns=elapsed[start:end], pack=pack[start:end])
        for case_id, start, end in zip(coded.dictionary.to_pylist(), starts[:-1], starts[1:], strict=True)
    }


def thinned(found: Iterable[Series | None]) -> dict[str, Any]:
    """The payload of samples: `counts` on the page and `totals` per case, `ms` and `packs` of all, one after another.

    `ms` is base64 of little-endian float32, `packs` of uint16.
    """
    held: Sequence[Series | None] = list(found)
    sampled = sum(series is not None for series in held)
    most = min(_MOST, max(_LEAST, _BUDGET // max(sampled, 1)))
    ms, packs, counts, totals = [], [], [], []
    for series in held:
        total = 0 if series is None else len(series.elapsed_ns)
        shown = min(total, most)
        counts.append(shown)
        totals.append(total)
        if series is not None and shown:
            chosen = np.linspace(0, total - 1, shown).round().astype(np.int64)
            ms.append((series.elapsed_ns[chosen] / 1e6).astype("<f4"))
            packs.append(series.pack[chosen].astype("<u2"))
    return {"counts": counts, "totals": totals, "ms": _base64(ms), "packs": _base64(packs)}


def _base64(parts: Sequence[NDArray[Any]]) -> str:
    return base64.b64encode(b"".join(part.tobytes() for part in parts)).decode()
