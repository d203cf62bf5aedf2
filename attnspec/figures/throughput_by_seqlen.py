"""throughput_by_seqlen: per mask and pass, grouped bars over seqlen with a line through each implementation's bars.

The kernel-level figures of MagiAttention's "Long-Context Attention Benchmark" page (20 to 43) in form: a mark stands
where a case is not ok, so that nothing is silently absent.
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
    """One drawing per device, mask, pass and shape that holds kernel-level cases."""
    points = published_points(cases.published)
    kernel = [row for row in cases.measured if row["level"] == "kernel"]
    return [_drawing(rows, points) for rows in by_picture(kernel, *PICTURE).values() if worth_drawing(rows)]


def _drawing(rows: Sequence[Row], points: Mapping[Point, Row]) -> Drawing:
    first = rows[0]
    name, pass_ = mask_title(first["mask"], first["mask_params"]), PASS_TITLES[first["pass"]]
    title = picture_title(first)

    def draw() -> Figure:
        return grouped_bars(
            bars(rows, "seqlen", points),
            title=title,
            x_label="seqlen (tokens)",
            y_label="TFLOP/s",
            x_text=format_count,
            badge=badge_of(first),
            note=f"{shape_text(first)}. Bars: sum of FLOPs / sum of median times; whiskers: 95% interval.",
            peak=peak_value(first),
        )

    return Drawing(
        stem=slug("kernel", first["mask"], first["mask_params"], first["pass"], first["device"]),
        title=title,
        caption=f"Throughput of each kernel over sequence length, {name} mask, {pass_} pass, on {first['device']}."
        f"{page_words(first)}",
        draw=draw,
    )
