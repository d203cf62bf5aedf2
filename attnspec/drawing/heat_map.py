"""One chart form: a grid of shares of the best in each row, annotated, with marks where there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from attnspec.drawing.sheet import INK, QUIET, WIDTH, Panel, sheet, shortened

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ROW_INCHES, _GLYPH_INCHES = 0.16, 0.056
_LONGEST = 44
"""Signs of a column or a group; more would leave no room for the grid."""
_DARK_UNDER = 0.62
"""Shares below this stand on dark ground and are written in white."""


def heat_map(
    rows: Sequence[tuple[str, str]],
    columns: Sequence[str],
    shares: Mapping[tuple[int, int], float],
    marks: Mapping[tuple[int, int], str],
    *,
    title: str,
    badge: str,
    notes: Sequence[str],
) -> Figure:
    """Draw shares (0 to 1) by (row, column); 1 is bold. rows: (group, name); a group is named once, at its head."""
    import matplotlib as mpl

    columns = [shortened(column, _LONGEST) for column in columns]
    rows = [(shortened(group, _LONGEST), shortened(name, _LONGEST // 2)) for group, name in rows]
    name_inches = 0.1 + _GLYPH_INCHES * max(len(name) for _, name in rows)
    left = 0.15 + name_inches + _GLYPH_INCHES * max(len(group) for group, _ in rows)
    longest = _GLYPH_INCHES * max(map(len, columns))
    slanted = longest > (WIDTH - left - 0.2) / len(columns)
    figure, (axes,) = sheet(
        [Panel(height=_ROW_INCHES * len(rows), below=0.1)],
        title=title,
        badge=badge,
        notes=notes,
        left=left,
        right=0.6 * longest if slanted else 0.12,
        head=0.12 + (0.62 * longest if slanted else 0.08),
    )
    grid = np.full((len(rows), len(columns)), np.nan)
    for (row, column), share in shares.items():
        grid[row, column] = share
    colours = mpl.colormaps["cividis"].with_extremes(bad="#FFFFFF")
    axes.grid(visible=False)
    axes.imshow(np.ma.masked_invalid(grid), cmap=colours, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    size = min(6.5, 2.5 + 60 / len(columns))
    for (row, column), share in shares.items():
        ink = "white" if share < _DARK_UNDER else "#10131A"
        weight = "bold" if share == 1 else "normal"
        axes.text(column, row, f"{share:.0%}", ha="center", va="center", fontsize=size, color=ink, fontweight=weight)
    for (row, column), mark in marks.items():
        axes.text(column, row, mark, ha="center", va="center", fontsize=size, color=QUIET)
    axes.set_xticks(
        range(len(columns)),
        columns,
        fontsize=6.5,
        rotation=35 if slanted else 0,
        ha="left" if slanted else "center",
        rotation_mode="anchor",
    )
    axes.xaxis.tick_top()
    axes.set_yticks(range(len(rows)), [name for _, name in rows], fontsize=6.5)
    axes.tick_params(length=0, pad=2)
    axes.set_xticks(np.arange(len(columns) + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(len(rows) + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=0.8)
    axes.tick_params(which="minor", length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    before = None
    for index, (group, _) in enumerate(rows):
        if group != before:
            before = group
            axes.annotate(
                group,
                (0, index),
                xytext=(-72 * (left - 0.08), 0),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                va="center",
                fontsize=6.5,
                fontweight="bold",
                color=INK,
            )
            if index:
                axes.axhline(index - 0.5, color=INK, linewidth=0.5, xmin=0, xmax=1)
    return figure
