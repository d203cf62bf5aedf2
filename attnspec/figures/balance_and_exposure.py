"""balance_and_exposure: how unevenly a strategy loads its ranks, and how much communication compute fails to hide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnspec.drawing.cases import Cases, by_picture, slug
from attnspec.drawing.look import PASS_TITLES, Drawing, Row, mask_title
from attnspec.drawing.scatter import Field, Mark, scatter
from attnspec.drawing.throughput import shape_text
from attnspec.units import format_count

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PICTURE = (
    *("device", "mask", "mask_params", "pass", "seqlen_per_rank"),
    *("batch", "num_heads_q", "num_heads_kv", "head_dim", "dtype"),
)


def drawings(cases: Cases) -> list[Drawing]:
    """One drawing per device, mask, pass, shape and tokens per rank whose cases have either number."""
    held = [
        row
        for row in cases.measured
        if row["level"] == "distributed"
        and row["status"] == "ok"
        and (row["load_imbalance"] is not None or row["exposed_comm_ms"] is not None)
    ]
    return [_drawing(rows) for rows in by_picture(held, *_PICTURE).values()]


def _drawing(rows: Sequence[Row]) -> Drawing:
    first = rows[0]
    name, pass_ = mask_title(first["mask"], first["mask_params"]), PASS_TITLES[first["pass"]]
    title = f"Balance and exposed communication, {name}, {pass_}"
    rank = first["rank"]
    size = f"{format_count(first['seqlen_per_rank'])} tokens per {rank}"

    def draw() -> Figure:
        ranks = sorted({row["cp_size"] for row in rows})
        imbalance = [
            Mark(label=row["label"], look=row["look"], x=row["cp_size"], y=row["load_imbalance"])
            for row in rows
            if row["load_imbalance"] is not None
        ]
        exposed = [
            Mark(
                label=row["label"],
                look=row["look"],
                x=row["cp_size"],
                y=max(row["exposed_comm_ms"], 0) / row["time_ms_median"],
            )
            for row in rows
            if row["exposed_comm_ms"] is not None and row["time_ms_median"]
        ]
        over = f"{rank}s that share a sequence (cp_size)"
        fields = [
            Field(
                marks=imbalance,
                title="Load imbalance: largest over mean area of the ranks",
                x_label=over,
                y_label="imbalance",
                x_ticks=ranks,
                guides=[(1, "balanced")],
                y_from=0.95,
                y_to=max(1.2, *(1.06 * mark.y for mark in imbalance)) if imbalance else 1.2,
                joined=True,
                banded=True,
            ),
            Field(
                marks=exposed,
                title="Exposed communication: share of an iteration",
                x_label=over,
                y_label="share of the time",
                x_ticks=ranks,
                y_text=lambda y: f"{y:.0%}",
                y_from=0,
                y_to=1.12 * max([0.02, *(mark.y for mark in exposed)]),
                joined=True,
                banded=True,
            ),
        ]
        side = "Strategies stand side by side in the band of their cp_size."
        notes = [
            f"{size}, {shape_text(first)}. {side} Exposed: elapsed less the slowest rank's compute measured alone."
        ]
        return scatter(fields, title=title, badge=first["device"], notes=notes, height=2.0, columns=2)

    return Drawing(
        stem=slug("balance", first["mask"], first["mask_params"], first["pass"], size, first["device"]),
        title=title,
        caption=f"Load imbalance and exposed communication of each strategy over the number of {rank}s, {name} mask, "
        f"{pass_} pass, {size}, on {first['device']}.",
        draw=draw,
    )
