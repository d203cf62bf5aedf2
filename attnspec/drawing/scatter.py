"""One chart form: markers, or markers joined by lines, one look per label, over one or more panels side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from attnspec.drawing.palette import Look, ordered
from attnspec.drawing.sheet import INK, QUIET, RULE, Panel, dot, sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_FILLED = 0.8
"""Share of a band that its labels stand in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One point. `size` scales its area, 1 is usual."""

    label: str
    look: Look
    x: float
    y: float
    low: float | None = None
    high: float | None = None
    size: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One panel. x_text, y_text: how a value stands on its axis; with x_ticks, only these values have a tick.

    guides: horizontal lines with a text. diagonals: lines y = factor * x with a text, on logarithmic axes.
    banded: x is one of x_ticks; each has a band of its own, as wide as the others, and labels stand side by side in it.
    """

    marks: Sequence[Mark]
    title: str
    x_label: str
    y_label: str
    x_scale: Literal["linear", "log2", "log10"] = "linear"
    y_scale: Literal["linear", "log10"] = "linear"
    x_ticks: Sequence[float] = ()
    x_text: Callable[[float], str] = "{:g}".format
    y_text: Callable[[float], str] = "{:g}".format
    y_from: float | None = None
    y_to: float | None = None
    guides: Sequence[tuple[float, str]] = ()
    diagonals: Sequence[tuple[float, str]] = ()
    joined: bool = False
    banded: bool = False


def scatter(
    fields: Sequence[Field], *, title: str, badge: str, notes: Sequence[str], height: float = 2.5, columns: int = 1
) -> Figure:
    """Draw fields, `columns` side by side, with one legend, as a Figure that belongs to no window system."""
    known = {mark.label: mark.look for field in fields for mark in field.marks}
    style = {label: known[label] for label in ordered(known)}
    strips = -(-len(fields) // columns)
    figure, axes = sheet(
        [Panel(height=height, below=0.42 if strip == strips - 1 else 0.58) for strip in range(strips)],
        title=title,
        badge=badge,
        legend=[(dot(look), label) for label, look in style.items()],
        notes=notes,
        columns=columns,
        left=0.66 if any(field.y_scale == "log10" for field in fields) else 0.55,
        head=0.12 if any(field.title for field in fields) else 0.0,
    )
    for one, field in zip(axes, fields, strict=False):
        _field(one, field, style)
    for one in axes[len(fields) :]:
        one.set_visible(False)
    return figure


def _field(axes: Axes, field: Field, style: Mapping[str, Look]) -> None:
    _scales(axes, field)
    if not field.banded:
        axes.grid(axis="x", color=RULE, linewidth=0.4)
    for index, (label, look) in enumerate(style.items()):
        aside = _FILLED * ((index + 0.5) / len(style) - 0.5)
        marks = sorted((mark for mark in field.marks if mark.label == label), key=lambda mark: mark.x)
        if not marks:
            continue
        xs = [field.x_ticks.index(mark.x) + aside if field.banded else mark.x for mark in marks]
        ys = [mark.y for mark in marks]
        if field.joined:
            axes.plot(xs, ys, color=look.colour, linewidth=1.0, zorder=2)
        spread = [(x, mark.y, mark.low, mark.high) for x, mark in zip(xs, marks, strict=True) if mark.low is not None]
        for x, y, low, high in spread:
            if low is not None and high is not None:
                axes.errorbar(
                    x,
                    y,
                    yerr=[[max(y - low, 0)], [max(high - y, 0)]],
                    fmt="none",
                    ecolor=INK,
                    elinewidth=0.6,
                    capsize=1,
                )
        axes.scatter(
            xs,
            ys,
            s=[19 * mark.size for mark in marks],
            color=look.colour,
            marker=look.marker,
            edgecolors=INK,
            linewidths=0.4,
            alpha=0.92,
            zorder=3,
        )
    _frame(axes, field)


def _scales(axes: Axes, field: Field) -> None:
    if field.x_scale != "linear":
        axes.set_xscale("log", base=2 if field.x_scale == "log2" else 10)
    if field.y_scale != "linear":
        axes.set_yscale("log", base=10)


def _frame(axes: Axes, field: Field) -> None:
    axes.set_xlabel(field.x_label, fontsize=7.5, color=INK)
    axes.set_ylabel(field.y_label, fontsize=7.5, color=INK)
    if field.title:
        axes.set_title(field.title, loc="left", fontsize=7.5, color=INK, pad=3)
    if field.banded:
        _bands(axes, field)
    elif field.x_ticks:
        axes.set_xticks(list(field.x_ticks), [field.x_text(x) for x in field.x_ticks])
    else:
        axes.xaxis.set_major_formatter(lambda x, _: field.x_text(x))
    axes.yaxis.set_major_formatter(lambda y, _: field.y_text(y))
    axes.minorticks_off()
    axes.margins(x=0.05, y=0.08)
    axes.autoscale_view()
    if field.banded:
        axes.set_xlim(-0.5, len(field.x_ticks) - 0.5)
    if field.y_from is not None or field.y_to is not None:
        axes.set_ylim(field.y_from, field.y_to)
    for value, text in field.guides:
        axes.axhline(value, color=QUIET, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
        axes.annotate(
            text, (0.995, value), xycoords=("axes fraction", "data"), xytext=(0, 2), textcoords="offset points",
            ha="right", va="bottom", fontsize=6, color=QUIET,
        )  # fmt: skip
    if field.diagonals:
        _diagonals(axes, field.diagonals)


def _bands(axes: Axes, field: Field) -> None:
    axes.set_xticks(range(len(field.x_ticks)), [field.x_text(x) for x in field.x_ticks])
    axes.tick_params(axis="x", length=0)
    for edge in range(1, len(field.x_ticks)):
        axes.axvline(edge - 0.5, color=RULE, linewidth=0.8, zorder=1)


def _diagonals(axes: Axes, diagonals: Sequence[tuple[float, str]]) -> None:
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    for factor, text in diagonals:
        axes.plot([left, right], [left * factor, right * factor], color=QUIET, linewidth=0.7, linestyle=":", zorder=1)
        x = min(right, top / factor)
        if left * 1.05 < x and x * factor > bottom * 1.05:
            at_right = x == right
            axes.annotate(
                text, (x, x * factor), xytext=(-3, -2) if at_right else (3, -3), textcoords="offset points",
                ha="right" if at_right else "left", va="bottom" if at_right else "top", fontsize=6, color=QUIET,
            )  # fmt: skip
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)
