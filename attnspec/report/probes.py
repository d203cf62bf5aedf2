"""What a run measured beside quick probes: throughputs of single scripts without this harness, one short run of each.

The probes (data/probes/h200.csv) are whole TFLOP/s per GPU, written down on 2026-11-29 on NVIDIA H200 at batch 1, heads
64:8, head_dim 128, bfloat16: not verified, no clock recorded, and short, so on a chip that had hardly warmed up.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from attnspec.drawing.look import Row, labelled, mask_title
from attnspec.report.results import MISS_SHARE, table
from attnspec.report.run import open_run
from attnspec.report.summary import figure
from attnspec.resources import shipped
from attnspec.units import format_count

_POINT = ("level", "kernel", "backend", "provider", "strategy", "mask", "pass", "seqlen", "cp_size")
_HELD = {
    "device": "NVIDIA H200",
    "batch": 1,
    "num_heads_q": 64,
    "num_heads_kv": 8,
    "head_dim": 128,
    "dtype": "bfloat16",
    "mask_params": "{}",
}
"""What the probes have in common."""


def beside_probes(folder: str) -> str:
    """Every case of a run that a probe did too, with the SM clock of ours; how many are over 5 percent below."""
    probes = dict(_probes())
    lines, below = [], 0
    for label, row in labelled(open_run(Path(folder)).cells.to_pylist()):
        probe = probes.get(_point(row))
        if probe is None or row["status"] != "ok" or any(row[name] != value for name, value in _HELD.items()):
            continue
        value = row["tflops_per_gpu"]
        below += value < (1 - MISS_SHARE) * probe
        clock = "" if row["sm_clock_mhz"] is None else f"{row['sm_clock_mhz']:.0f}"
        place = (label, mask_title(row["mask"], row["mask_params"]), row["pass"], format_count(row["seqlen"]))
        lines.append((*place, figure(value), figure(probe), f"{value / probe - 1:+.1%}", clock))
    head = ("implementation", "mask", "pass", "seqlen", "measured", "probe", "difference", "SM clock, MHz")
    told = f"{below} of {len(lines)} compared figures, TFLOP/s per GPU, are more than 5 percent below a quick probe's"
    return f"{told}:\n\n{table(head, lines)}" if lines else f"{told}.\n"


def _probes() -> Iterator[tuple[tuple[str, ...], float]]:
    with (shipped("data") / "probes" / "h200.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            yield _point(row), float(row["tflops_per_gpu"])


def _point(row: Row) -> tuple[str, ...]:
    return tuple("" if row[name] is None else str(row[name]) for name in _POINT)
