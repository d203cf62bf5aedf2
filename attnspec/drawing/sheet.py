"""A sheet of paper width: title, device badge, panels, legend and notes, at places known without being measured.

Laying out by fixed inches takes a fraction of the time that matplotlib's own layout engines take, and looks the same
on every machine. Sizes hold for a page's full text width (7.16 inches, two columns): text is 6 to 9 points there.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnspec.drawing.palette import Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 7.16
INK, QUIET, RULE = "#1F2430", "#5A6270", "#DFE3E8"
_TITLE, _PANEL_TOP, _BOTTOM = 0.34, 0.10, 0.06
_LEGEND_ROW, _NOTE_ROW, _NOTE_CHARS = 0.142, 0.125, 152
_GAP = 0.65
"""Between columns."""
_LEGEND_CHARS, _HEAD_CHARS = 100, 116
"""Signs that fit a line: of the legend, and of title and badge together."""


def shortened(text: str, most: int) -> str:
    """A text without its middle where it is longer than a picture has room for.

    >>> shortened("fa3 (xformers)", 20), shortened("a_run_of_many_words", 11)
    ('fa3 (xformers)', 'a_ru...ords')
    """
    if len(text) <= most:
        return text
    half = (most - 3) // 2
    return f"{text[: most - 3 - half]}...{text[-half:]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One strip of axes. All in inches: `height` of the axes alone, `below` what its ticks and label take."""

    height: float
    below: float = 0.42


def sheet(
    panels: Sequence[Panel],
    *,
    title: str,
    badge: str,
    legend: Sequence[tuple[Any, str]] = (),
    notes: Sequence[str] = (),
    left: float = 0.55,
    right: float = 0.12,
    columns: int = 1,
    head: float = 0.0,
) -> tuple[Figure, list[Axes]]:
    """A figure and its axes, `columns` of them in each strip, read along the rows. It belongs to no window system.

    head: inches between the title and the first strip.
    """
    from matplotlib.figure import Figure

    legend = [(handle, shortened(label, _LEGEND_CHARS)) for handle, label in legend]
    title, badge = shortened(title, _HEAD_CHARS - min(len(badge), 44)), shortened(badge, 44)
    lines = [line for note in notes for line in textwrap.wrap(note, _NOTE_CHARS)]
    per_row, num_rows = _legend_grid([label for _, label in legend])
    foot = num_rows * _LEGEND_ROW + (0.06 if legend else 0) + len(lines) * _NOTE_ROW + _BOTTOM
    total = _TITLE + head + sum(_PANEL_TOP + panel.height + panel.below for panel in panels) + foot
    figure = Figure(figsize=(WIDTH, total))
    figure.text(0.08 / WIDTH, 1 - 0.09 / total, title, va="top", fontsize=9.5, fontweight="bold", color=INK)
    box = {"boxstyle": "round,pad=0.32", "facecolor": "#EEF1F5", "edgecolor": "#C3CAD3", "linewidth": 0.6}
    figure.text(1 - 0.12 / WIDTH, 1 - 0.1 / total, badge, ha="right", va="top", fontsize=7, color=INK, bbox=box)
    made, top = [], total - _TITLE - head
    width = (WIDTH - left - right - _GAP * (columns - 1)) / columns
    for panel in panels:
        top -= _PANEL_TOP + panel.height
        for column in range(columns):
            x = left + column * (width + _GAP)
            axes = figure.add_axes((x / WIDTH, top / total, width / WIDTH, panel.height / total))
            _plain(axes)
            made.append(axes)
        top -= panel.below
    if legend:
        figure.legend(
            handles=[handle for handle, _ in legend],
            labels=[label for _, label in legend],
            ncols=per_row,
            fontsize=7,
            frameon=False,
            loc="upper center",
            bbox_to_anchor=(0.5, (foot + 0.03) / total),
            borderaxespad=0,
            columnspacing=1.2,
            handlelength=1.8,
            handleheight=0.9,
            labelspacing=0.35,
            labelcolor=INK,
        )
    for index, line in enumerate(reversed(lines)):
        figure.text(0.08 / WIDTH, (_BOTTOM + index * _NOTE_ROW) / total, line, fontsize=6, color=QUIET, va="bottom")
    return figure, made


def key(look: Look) -> Any:
    """A legend handle that shows colour, hatch and marker of a look at once."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    patch = Patch(facecolor=look.colour, hatch=look.hatch, edgecolor="white", linewidth=0)
    marker = Line2D([], [], color=look.colour, marker=look.marker, markersize=4.5, markeredgecolor=INK, linewidth=0)
    marker.set_markeredgewidth(0.5)
    return (patch, marker)


def dot(look: Look) -> Any:
    """A legend handle for charts of markers."""
    from matplotlib.lines import Line2D

    return Line2D(
        [],
        [],
        color=look.colour,
        marker=look.marker,
        markersize=5,
        markeredgecolor=INK,
        markeredgewidth=0.4,
        linewidth=0,
    )


def _plain(axes: Axes) -> None:
    axes.set_axisbelow(True)
    axes.grid(axis="y", color=RULE, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(QUIET)
    axes.tick_params(labelsize=7, colors=INK, width=0.6, length=2.5)


def _legend_grid(labels: Sequence[str]) -> tuple[int, int]:
    """Columns and rows of a legend: as many columns as its widest entry lets stand side by side."""
    if not labels:
        return 1, 0
    per_row = max(1, min(len(labels), int((WIDTH - 0.2) / (0.5 + 0.055 * max(map(len, labels))))))
    num_rows = -(-len(labels) // per_row)
    return -(-len(labels) // num_rows), num_rows
