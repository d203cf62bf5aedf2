"""density_and_efficiency: how much of its speed each implementation keeps as a mask gets sparser.

FLOPs count allowed pairs only, so a kernel that computes what it then masks away falls to the left. Efficiency is the
share of the device's bf16 peak where that is known, else throughput itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnspec.drawing.cases import Cases, by_picture, slug
from attnspec.drawing.look import PASS_TITLES, Drawing, Row
from attnspec.drawing.scatter import Field, Mark, scatter
from attnspec.drawing.throughput import badge_of, shape_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PICTURE = ("level", "device", "pass", "batch", "num_heads_q", "num_heads_kv", "head_dim", "dtype")


def drawings(cases: Cases) -> list[Drawing]:
    """One drawing per level, device, pass and shape that holds masks of different density."""
    ok = [
        row for row in cases.measured if row["status"] == "ok" and row["density"] and row["tflops_per_gpu"] is not None
    ]
    groups = by_picture(ok, *_PICTURE).values()
    return [_drawing(rows) for rows in groups if len({round(row["density"], 3) for row in rows}) > 2]


def _drawing(rows: Sequence[Row]) -> Drawing:
    first = rows[0]
    title = f"Density and efficiency, {PASS_TITLES[first['pass']]}"
    known = first["efficiency"] is not None
    lengths = sorted({row["seqlen"] for row in rows})

    def draw() -> Figure:
        marks = [
            Mark(
                label=row["label"],
                look=row["look"],
                x=row["density"],
                y=row["efficiency"] if known else row["tflops_per_gpu"],
                size=0.45 + 1.3 * (lengths.index(row["seqlen"]) + 1) / len(lengths),
            )
            for row in rows
        ]
        field = Field(
            marks=marks,
            title="",
            x_label="density: allowed share of all query-key pairs",
            y_label="share of bf16 peak" if known else f"TFLOP/s per {first['rank']}",
            x_scale="log2",
            x_text=lambda x: f"{x * 100:.3g}%",
            y_text=(lambda y: f"{y * 100:.3g}%") if known else "{:g}".format,
            y_from=0,
        )
        notes = [f"{shape_text(first)}. One marker a case; the larger, the longer the sequence."]
        return scatter([field], title=title, badge=badge_of(first), notes=notes, height=2.9)

    return Drawing(
        stem=slug("density", first["level"], first["pass"], first["device"]),
        title=title,
        caption=f"{'Share of the bf16 peak' if known else 'Throughput'} over the density of the mask, "
        f"{PASS_TITLES[first['pass']]} pass, {first['level']} level, on {first['device']}; larger markers are longer "
        "sequences.",
        draw=draw,
    )
