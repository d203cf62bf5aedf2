"""One chart form: grouped bars with a line per label over ordered positions; marks where a value does not exist."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnspec.drawing.look import STATUS_MARKS, STATUS_WORDS, looks, ordered

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One value. `height` is None exactly where `status` is not ok."""

    label: str
    x: int
    height: float | None
    low: float | None
    high: float | None
    status: str


def grouped_bars(
    bars: Sequence[Bar],
    *,
    title: str,
    x_label: str,
    y_label: str,
    x_text: Callable[[int], str],
    badge: str,
    note: str,
) -> Figure:
    """Draw `bars`, one group per distinct x. Returns a matplotlib Figure that belongs to no window system."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    bars = _chosen(bars)
    positions = sorted({bar.x for bar in bars})
    labels = ordered(bar.label for bar in bars)
    style = looks(labels)
    by_place = {(bar.label, bar.x): bar for bar in bars}
    width = 0.84 / len(labels)
    figure = Figure(figsize=(max(6.4, 1.1 + 0.22 * len(labels) * len(positions)), 4.2), layout="constrained")
    axes = figure.add_subplot()
    axes.set_axisbelow(True)
    axes.grid(axis="y", color="#D9D9D9", linewidth=0.6)
    tallest = max((bar.height for bar in bars if bar.height is not None), default=0.0) or 1.0
    # Room for intervals, but for no interval so wide that it would flatten the bars.
    reach = min(1.5 * tallest, max([tallest, *(bar.high for bar in bars if bar.high is not None)]))
    any_mark = False
    for index, label in enumerate(labels):
        offset = (index - (len(labels) - 1) / 2) * width
        line_x, line_y = [], []
        for place, x in enumerate(positions):
            bar = by_place.get((label, x))
            centre = place + offset
            if bar is None:
                continue
            if bar.height is None:
                any_mark = True
                axes.text(
                    centre,
                    tallest * 0.012,
                    STATUS_MARKS.get(bar.status, "?"),
                    ha="center",
                    va="bottom",
                    color=style[label].colour,
                    fontsize=8,
                    fontweight="bold",
                )
                continue
            error = None
            if bar.low is not None and bar.high is not None:
                error = [[max(bar.height - bar.low, 0.0)], [max(bar.high - bar.height, 0.0)]]
            axes.bar(
                centre,
                bar.height,
                width * 0.92,
                color=style[label].colour,
                hatch=style[label].hatch,
                edgecolor="white",
                linewidth=0.4,
                yerr=error,
                error_kw={"elinewidth": 0.8, "ecolor": "#222222", "capsize": 1.5},
            )
            line_x.append(centre)
            line_y.append(bar.height)
        axes.plot(
            line_x,
            line_y,
            color=style[label].colour,
            marker=style[label].marker,
            markersize=4,
            markeredgecolor="white",
            markeredgewidth=0.5,
            linewidth=1.2,
        )
    axes.set_xticks(range(len(positions)), [x_text(x) for x in positions])
    axes.set_xlim(-0.55, len(positions) - 0.45)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.set_ylim(0, max(reach * 1.03, tallest * 1.12))
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, loc="left", fontweight="bold")
    axes.set_title(badge, loc="right", fontsize=8, color="#444444")
    handles = [
        Patch(facecolor=style[label].colour, hatch=style[label].hatch, edgecolor="white", label=label)
        for label in labels
    ]
    entry_inches = 0.65 + 0.065 * max(map(len, labels))
    columns = max(1, min(len(labels), int(figure.get_figwidth() / entry_inches)))
    foot = f"{note}.  {STATUS_WORDS}." if any_mark else f"{note}."
    legend = figure.legend(
        handles=handles,
        ncols=columns,
        fontsize=8,
        frameon=False,
        loc="outside lower center",
        title=foot,
        title_fontproperties={"size": 6.5},
    )
    legend.get_title().set_color("#555555")
    return figure


def _chosen(bars: Sequence[Bar]) -> list[Bar]:
    """Without labels and positions of which nothing was run: a part of a spec is drawn as if it were the whole."""
    run = [bar for bar in bars if bar.status != "skipped"] or bars
    labels, positions = {bar.label for bar in run}, {bar.x for bar in run}
    return [bar for bar in bars if bar.label in labels and bar.x in positions]
