"""setup_and_steady_time: what a mask costs once (lowering, compile or JIT) against what it costs every time.

On the dotted lines the set-up takes as long as 1, 100, 10,000 iterations: a kernel that is fast once warm and far up
in this picture is not the one for masks that change with every batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnspec.drawing.cases import Cases, by_picture, slug
from attnspec.drawing.look import PASS_TITLES, Drawing, Row
from attnspec.drawing.scatter import Field, Mark, scatter
from attnspec.drawing.throughput import shape_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PICTURE = ("level", "device", "pass", "batch", "num_heads_q", "num_heads_kv", "head_dim", "dtype")


def drawings(cases: Cases) -> list[Drawing]:
    """One drawing per level, device, pass and shape."""
    ok = [row for row in cases.measured if row["status"] == "ok" and _setup_ms(row) and row["time_ms_median"]]
    return [_drawing(rows) for rows in by_picture(ok, *_PICTURE).values() if len(rows) > 2]


def _drawing(rows: Sequence[Row]) -> Drawing:
    first = rows[0]
    title = f"Set-up and steady time, {PASS_TITLES[first['pass']]}"

    def draw() -> Figure:
        field = Field(
            marks=[
                Mark(label=row["label"], look=row["look"], x=row["time_ms_median"], y=_setup_ms(row)) for row in rows
            ],
            title="",
            x_label="time of one iteration, once warm (ms)",
            y_label="set-up of one pack (ms)",
            x_scale="log10",
            y_scale="log10",
            x_text="{:,.6g}".format,
            y_text="{:,.6g}".format,
            diagonals=[(1, "1 iteration"), (100, "100 iterations"), (10_000, "10,000 iterations")],
        )
        notes = [f"{shape_text(first)}. Set-up: lowering the mask, and compile or JIT; verification is not in it."]
        return scatter([field], title=title, badge=first["device"], notes=notes, height=2.9)

    return Drawing(
        stem=slug("setup", first["level"], first["pass"], first["device"]),
        title=title,
        caption=f"Set-up (lowering, compile or JIT) against the time of one iteration, {PASS_TITLES[first['pass']]} "
        f"pass, {first['level']} level, on {first['device']}; dotted lines: set-up worth 1, 100, 10,000 iterations.",
        draw=draw,
    )


def _setup_ms(row: Row) -> float:
    once_s: float = (row["lower_s"] or 0) + (row["compile_s"] or 0)
    num_packs: int = max(row["num_packs"], 1)
    return 1000 * once_s / num_packs
