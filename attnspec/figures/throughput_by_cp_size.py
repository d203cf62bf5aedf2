"""throughput_by_cp_size: per mask and pass, grouped bars over the ranks that share a sequence, TFLOP/s per GPU.

The distributed figures of MagiAttention's "Long-Context Attention Benchmark" page (44 to 59) in form. Where a run has
one number of ranks and several lengths, the bars stand over tokens per rank instead. A mark stands where a case is not
ok.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from attnspec.drawing.cases import Cases, by_picture, slug
from attnspec.drawing.grouped_bars import grouped_bars
from attnspec.drawing.look import PASS_TITLES, Drawing, Row, mask_title
from attnspec.drawing.throughput import (
    PICTURE,
    Point,
    badge_of,
    bars,
    page_words,
    peak_value,
    picture_title,
    published_points,
    shape_text,
    worth_drawing,
)
from attnspec.units import format_count

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def drawings(cases: Cases) -> list[Drawing]:
    """One drawing per device, mask, pass, shape and tokens per rank that holds distributed cases."""
    points = published_points(cases.published)
    made = []
    rows = [row for row in cases.measured if row["level"] == "distributed"]
    for held in filter(worth_drawing, by_picture(rows, *PICTURE).values()):
        ran = [row for row in held if row["status"] != "skipped"]
        shares = sorted({row["seqlen_per_rank"] for row in ran})
        if len({row["cp_size"] for row in ran}) == 1 < len(shares):
            made.append(_drawing(held, None, points))
        else:
            made += [
                _drawing([row for row in held if row["seqlen_per_rank"] == share], share, points) for share in shares
            ]
    return made


def _drawing(rows: Sequence[Row], share: int | None, points: Mapping[Point, Row]) -> Drawing:
    """share: tokens per rank; None where these are the axis."""
    first = rows[0]
    name, pass_, rank = mask_title(first["mask"], first["mask_params"]), PASS_TITLES[first["pass"]], first["rank"]
    title = picture_title(first)
    size = f"{first['cp_size']} {rank}s" if share is None else f"{format_count(share)} tokens per {rank}"
    axis = "seqlen_per_rank" if share is None else "cp_size"

    def draw() -> Figure:
        return grouped_bars(
            bars(rows, axis, points),
            title=title,
            x_label=f"tokens per {rank}" if share is None else f"{rank}s that share a sequence (cp_size)",
            y_label=f"TFLOP/s per {rank}",
            x_text=format_count,
            badge=badge_of(first),
            note=f"{size}, {shape_text(first)}. Time of an iteration: the slowest rank's; whiskers: 95% interval.",
            peak=peak_value(first),
        )

    over = f"tokens per {rank}" if share is None else f"the number of {rank}s"
    return Drawing(
        stem=slug("distributed", first["mask"], first["mask_params"], first["pass"], size, first["device"]),
        title=title,
        caption=f"Throughput per {rank} of each context-parallel strategy over {over}, {name} mask, {pass_} pass, "
        f"{size}, on {first['device']}.{page_words(first)}",
        draw=draw,
    )
