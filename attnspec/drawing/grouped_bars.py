"""One chart form: grouped bars with a line per label over ordered positions; marks where a value does not exist."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from attnspec.drawing.cases import plain
from attnspec.drawing.look import STATUS_MARKS, STATUS_WORDS
from attnspec.drawing.palette import Look, legible, ordered
from attnspec.drawing.sheet import INK, QUIET, Panel, key, sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BARS_A_STRIP = 64
_REASONS_SHOWN = 5
_NUMBERLESS = {"ok": "the throughput is no finite number"}
_NARROW = (0.03, 10_000)
"""Axes that end within need no more than five signs for a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One value. height: None exactly where `status` is not ok. published: the same point on the page, if any, on the
    device that is named beside it."""

    label: str
    look: Look
    x: int
    height: float | None
    low: float | None
    high: float | None
    status: str
    reason: str | None = None
    published: float | None = None
    published_on: str | None = None


def grouped_bars(
    bars: Sequence[Bar],
    *,
    title: str,
    x_label: str,
    y_label: str,
    x_text: Callable[[int], str],
    badge: str,
    note: str,
    peak: float | None = None,
) -> Figure:
    """Draw `bars`, one group per distinct x, in as many strips as stay readable on paper.

    peak: what a second axis counts as 100 percent, in the unit of the bars. Returns a matplotlib Figure that belongs to
    no window system.
    """
    bars = _chosen(bars)
    positions = sorted({bar.x for bar in bars})
    labels = ordered(bar.label for bar in bars)
    style = {bar.label: bar.look for bar in bars}
    by_place = {(bar.label, bar.x): bar for bar in bars}
    per_strip = max(1, _BARS_A_STRIP // len(labels))
    num_strips = -(-len(positions) // per_strip)
    per_strip = -(-len(positions) // num_strips)
    strips = [positions[start : start + per_strip] for start in range(0, len(positions), per_strip)]
    heights = [2.45] if num_strips == 1 else [1.75] * num_strips
    panels = [Panel(height=height, below=0.42 if last else 0.24) for height, last in _with_last(heights)]
    legend = [(key(style[label]), label) for label in labels]
    devices = ordered(bar.published_on for bar in bars if bar.published_on is not None)
    if devices:
        legend.append((_diamond(), f"published page, on {' and '.join(devices)}"))
    top = _top(bars)
    figure, axes = sheet(
        panels,
        title=title,
        badge=badge,
        legend=legend,
        notes=[note, *_reasons(bars)],
        left=0.55 if _NARROW[0] <= top < _NARROW[1] else 0.68,
        right=0.12 if peak is None else 0.58,
    )
    valued = any(bar.height is not None or bar.published is not None for bar in bars)
    for strip, one in zip(strips, axes, strict=True):
        _strip(one, strip, labels, by_place, style, top)
        one.set_xticks(range(len(strip)), [x_text(x) for x in strip])
        one.set_xlim(-0.55, per_strip - 0.45)
        one.set_ylim(0, top)
        one.set_ylabel(y_label, fontsize=7.5, color=INK)
        if not valued:
            one.set_yticks([])
            one.text(
                0.5, 0.5, "no case of this picture is ok", transform=one.transAxes, ha="center", color=QUIET, fontsize=8
            )
        elif peak is not None:
            _second(one, peak)
    axes[-1].set_xlabel(x_label, fontsize=7.5, color=INK)
    return figure


def _strip(
    axes: Axes,
    positions: Sequence[int],
    labels: Sequence[str],
    by_place: Mapping[tuple[str, int], Bar],
    style: Mapping[str, Look],
    top: float,
) -> None:
    width = 0.86 / len(labels)
    for index, label in enumerate(labels):
        look = style[label]
        offset = (index - (len(labels) - 1) / 2) * width
        held = [(place + offset, by_place[label, x]) for place, x in enumerate(positions) if (label, x) in by_place]
        drawn = [(centre, bar, bar.height) for centre, bar in held if bar.height is not None]
        for centre, bar in held:
            if bar.height is None:
                axes.text(
                    centre,
                    _foot(bar, top),
                    STATUS_MARKS.get(bar.status, "?"),
                    ha="center",
                    va="bottom",
                    color=legible(look.colour),
                    fontsize=min(7.5, 3.5 + 40 * width),
                    fontweight="bold",
                )
            if bar.published is not None:
                axes.plot(centre, bar.published, marker="d", markersize=4.5, zorder=5, **_HOLLOW)
        if not drawn:
            continue
        centres, values = [centre for centre, _, _ in drawn], [height for _, _, height in drawn]
        below = [max(height - (bar.low if bar.low is not None else height), 0.0) for _, bar, height in drawn]
        above = [max((bar.high if bar.high is not None else height) - height, 0.0) for _, bar, height in drawn]
        axes.bar(
            centres,
            values,
            width * 0.94,
            color=look.colour,
            hatch=look.hatch,
            edgecolor="white",
            linewidth=0.3,
            yerr=[below, above],
            error_kw={"elinewidth": 0.7, "ecolor": INK, "capsize": 1.2, "capthick": 0.7, "zorder": 4},
        )
        axes.plot(
            centres,
            values,
            color=look.colour,
            marker=look.marker,
            markersize=3.6,
            markeredgecolor=INK,
            markeredgewidth=0.4,
            linewidth=0.9,
            zorder=3,
        )


def _foot(bar: Bar, top: float) -> float:
    """Where a letter stands: on the axis, or on a published value that would cover it there."""
    covered = bar.published is not None and bar.published < 0.08 * top
    return (bar.published if bar.published is not None and covered else 0.0) + top * (0.03 if covered else 0.012)


_HOLLOW: dict[str, Any] = {
    "markerfacecolor": "white",
    "markeredgecolor": "#000000",
    "markeredgewidth": 0.9,
    "linestyle": "none",
}


def _diamond() -> object:
    from matplotlib.lines import Line2D

    return Line2D([], [], marker="d", markersize=5, **_HOLLOW)


def _second(axes: Axes, peak: float) -> None:
    low, high = axes.get_ylim()
    other = axes.twinx()
    other.set_ylim(low / peak * 100, high / peak * 100)
    other.set_ylabel("% of bf16 peak", fontsize=7.5, color=QUIET)
    other.tick_params(labelsize=7, colors=QUIET, width=0.6, length=2.5)
    other.spines[["top", "left", "bottom"]].set_visible(False)
    other.spines["right"].set_color(QUIET)


def _top(bars: Sequence[Bar]) -> float:
    """Room for intervals and published values, but for no interval so wide that it would flatten the bars."""
    tallest = max((bar.height for bar in bars if bar.height is not None), default=0.0)
    tallest = max([tallest, *(bar.published for bar in bars if bar.published is not None)]) or 1.0
    reach = min(1.5 * tallest, max([tallest, *(bar.high for bar in bars if bar.high is not None)]))
    return max(reach * 1.03, tallest * 1.12)


def _reasons(bars: Sequence[Bar]) -> list[str]:
    """What the marks mean, and of each implementation why it has them."""
    marked = [bar for bar in bars if bar.height is None]
    if not marked:
        return []
    why: dict[tuple[str, str], set[str]] = {}
    for bar in marked:
        if bar.status != "skipped":
            first = plain((bar.reason or _NUMBERLESS.get(bar.status, bar.status)).strip().partition("\n")[0])
            why.setdefault(
                (STATUS_MARKS.get(bar.status, "?"), shorten(first, max(30, 130 - len(bar.label)), placeholder=" ...")),
                set(),
            ).add(bar.label)
    lines = [f"{mark}  {'; '.join(ordered(held))}: {reason}" for (mark, reason), held in why.items()]
    left = len(lines) - _REASONS_SHOWN
    more = [f"... and {left} more reasons, in cells.parquet"] if left > 0 else []
    return [f"{STATUS_WORDS}.", *lines[:_REASONS_SHOWN], *more]


def _chosen(bars: Sequence[Bar]) -> list[Bar]:
    """Without labels and positions of which nothing was run: a part of a spec is drawn as if it were the whole."""
    run = [bar for bar in bars if bar.status != "skipped"] or bars
    labels, positions = {bar.label for bar in run}, {bar.x for bar in run}
    return [bar for bar in bars if bar.label in labels and bar.x in positions]


def _with_last(heights: Sequence[float]) -> list[tuple[float, bool]]:
    return [(height, index == len(heights) - 1) for index, height in enumerate(heights)]
