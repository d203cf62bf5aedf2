"""What figures are drawn from: rows of runs, labelled once for all pictures, and the packs that they ran on.

A row is a row of `cells.parquet` with these keys beside its columns: `label`, `run`, `device` (a case that never
reached a device belongs to its run's only one), `rank` (what a rank runs on, for units), `look` (colour, hatch and
marker of the label, the same in every picture), `density` (allowed share of all pairs), `efficiency` (share of the
device's bf16 peak, per rank; only 16-bit types, only devices with a known peak), `clock_spread` (how much the SM clock
moved, as `attnspec.report.clock_spread` has it; None where it was not given), `rehearsed` (whether it is of a
rehearsal, whose times say nothing: these columns are None).
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from attnspec.drawing.look import Row, labelled
from attnspec.drawing.palette import Look, looks
from attnspec.launch.known_devices import KnownDevice, known_device
from attnspec.sample.lengths import Lengths

NO_DEVICE = "no device"
_TIMES = (
    *("time_ms_median", "time_ms_p20", "time_ms_p80", "time_ms_ci_low", "time_ms_ci_high", "host_ms"),
    *("tflops", "tflops_ci_low", "tflops_ci_high", "tflops_per_gpu", "exposed_comm_ms"),
    *("lower_s", "compile_s", "verify_s", "setup_s"),
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Packs:
    """The packs of one sample of one run, and what they were drawn from. lengths: document lengths, int64, per pack."""

    run: str
    lengths: Lengths
    seqlen: int
    max_length: int
    seed: int
    packs: Sequence[NDArray[np.int64]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cases:
    """measured: rows of runs, predicted ones included. published: rows of the published page, where asked for."""

    measured: Sequence[Row]
    published: Sequence[Row] = ()
    packs: Sequence[Packs] = ()

    @property
    def timed(self) -> Cases:
        """Without rehearsals: what may be compared and drawn."""
        return replace(self, measured=[row for row in self.measured if not row["rehearsed"]])


def cases_of(
    tables: Iterable[tuple[str, pa.Table]],
    *,
    published: Sequence[Row] = (),
    packs: Sequence[Packs] = (),
    clock_spreads: Mapping[tuple[str, str], float] | None = None,
    rehearsed: Collection[str] = (),
) -> Cases:
    """Cases of named runs. A case that one run left out and another has stands once, as the other has it.

    clock_spreads: by run and case_id. rehearsed: names of the runs that were rehearsals.
    """
    spreads = clock_spreads or {}
    rows: list[dict[str, Any]] = []
    for run, table in tables:
        held = table.to_pylist()
        devices = {row["device"] for row in held} - {None}
        only = devices.pop() if len(devices) == 1 else NO_DEVICE
        rows += [
            _finite(row)
            | (dict.fromkeys(_TIMES) if run in rehearsed else {})
            | {
                "run": plain(run),
                "rehearsed": run in rehearsed,
                "device": plain(row["device"] or only),
                "clock_spread": spreads.get((run, row["case_id"])),
            }
            for row in held
        ]
    ran = {row["case_id"] for row in rows if row["status"] != "skipped"}
    rows = [row for row in rows if row["status"] != "skipped" or row["case_id"] not in ran]
    ranks = rank_words(rows)
    named = [
        {**row, **_derived(row), "label": plain(label), "rank": ranks[row["device"]]} for label, row in labelled(rows)
    ]
    looks_of = {level: _looks(held) for (level,), held in by_picture(named, "level").items()}
    return Cases(
        measured=[{**row, "look": looks_of[row["level"]][row["label"]]} for row in named],
        published=published,
        packs=packs,
    )


def _finite(row: Row) -> dict[str, Any]:
    """A row without the numbers that are none: what cannot be drawn is absent."""
    return {key: None if isinstance(held, float) and not isfinite(held) else held for key, held in row.items()}


def _looks(rows: Iterable[Row]) -> dict[str, Look]:
    """A look per label of one level. What was left out takes no shade from what was run."""
    held = list(rows)
    return looks(row["label"] for row in held) | looks(row["label"] for row in held if row["status"] != "skipped")


def peak_of(row: Row) -> KnownDevice | None:
    """The device whose bf16 peak a row may be held against; None for other types and unknown devices."""
    return known_device(row["device"]) if row["dtype"] in ("bfloat16", "float16") else None


def rank_words(rows: Iterable[Row]) -> dict[str | None, str]:
    """device -> what one rank on it is called in units and on axes.

    A worker tells of device memory for every case on a GPU, and for none on the CPU.

    >>> rank_words([{"device": "EPYC", "status": "ok", "peak_memory_bytes": None}])
    {'EPYC': 'CPU rank'}
    >>> rank_words([{"device": "GH9", "status": "ok", "peak_memory_bytes": 7}, {"device": "GH9", "status": "crashed"}])
    {'GH9': 'GPU'}
    """
    held = list(rows)
    gpus = {row["device"] for row in held if row.get("peak_memory_bytes") is not None or known_device(row["device"])}
    cpus = {row["device"] for row in held if row["status"] == "ok"} - gpus
    return {row["device"]: "CPU rank" if row["device"] in cpus else "GPU" for row in held}


def rank_word(rows: Iterable[Row]) -> str:
    """One word for the ranks of all rows, whatever device some of them never reached; `rank` where devices differ.

    >>> rank_word([{"device": "NVIDIA H200", "status": "ok"}, {"device": None, "status": "unsupported"}])
    'GPU'
    """
    words = {word for device, word in rank_words(rows).items() if device is not None}
    return words.pop() if len(words) == 1 else "rank"


def plain(text: str) -> str:
    """Text that any picture can show: control characters, lone surrogates and newlines become a visible sign.

    >>> plain("fa\\x00 two\\nlines")
    'fa\\ufffd two\\ufffdlines'
    """
    if text.isprintable():
        return text
    return "".join("\ufffd" if unicodedata.category(one)[0] == "C" or one in "\u2028\u2029" else one for one in text)


def by_picture(rows: Iterable[Row], *keys: str) -> dict[tuple[Any, ...], list[Row]]:
    """Rows by the values of some columns, in the order of their first appearance."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return groups


def slug(*parts: Any) -> str:
    """A file name's stem from any texts; may be the same for different ones.

    >>> slug("kernel", "NVIDIA H200", None, '{"window":1024}')
    'kernel_nvidia_h200_window_1024'
    """
    texts = [str(part).lower() for part in parts if part not in (None, "", "{}")]
    words = "".join(one if one.isascii() and one.isalnum() else " " for one in " ".join(texts)).split()
    return "_".join(words)[:120] or "figure"


def _derived(row: Mapping[str, Any]) -> dict[str, float | None]:
    density = None
    if row["mask_area"] is not None:
        seqlen_k = json.loads(row["mask_params"]).get("seqlen_k", row["seqlen"])
        pairs = row["seqlen"] * seqlen_k * row["num_packs"]
        density = row["mask_area"] / pairs if pairs else None
    peak = peak_of(row)
    reached = row["tflops_per_gpu"]
    efficiency = None if peak is None or reached is None else reached / peak.bf16_dense_tflops
    return {"density": density, "efficiency": efficiency}
