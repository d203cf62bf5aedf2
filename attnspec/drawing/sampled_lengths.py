"""One picture: the lengths of a population's documents beside those in the packs drawn from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnspec.drawing.sheet import WIDTH
from attnspec.sample.histogram import Histogram
from attnspec.units import format_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]

_SOURCE, _PACKS, _INK, _QUIET, _RULE = "#B8BEC8", "#0072B2", "#1F2430", "#5F6672", "#E3E6EB"
_AVERAGE = "#D55E00"
_LEGEND = ("source", "packs", "packs, with 95% intervals", "packs on average")


def sampled_lengths(
    source: Histogram,
    average: Histogram,
    packs: Histogram,
    *,
    errors: tuple[Floats, Floats] | None,
    max_length: int,
    title: str,
    note: str,
) -> Figure:
    """Shares of documents (above) and of tokens (below) by length, one bin an octave.

    Bars: the source, and the drawn packs, with 95 percent intervals where their standard `errors` are given. Ticks:
    what such packs hold on average. All three have the edges of `attnspec.sample.histogram.octaves`. Returns a
    matplotlib Figure that belongs to no window system.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 4.8), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    spread = errors or (None, None)
    _panel(above, source.document_shares, average.document_shares, packs.document_shares, spread[0])
    _panel(below, source.token_shares, average.token_shares, packs.token_shares, spread[1])
    above.set_ylabel("share of documents", fontsize=7.5, color=_INK)
    below.set_ylabel("share of tokens", fontsize=7.5, color=_INK)
    figure.align_ylabels()

    num_bins = len(source.documents)
    first = int(np.flatnonzero(source.documents)[0])
    below.set_xlim(first - 1.1, num_bins - 0.9)
    ends = range(first, num_bins, 1 + (num_bins - first) // 21)
    below.set_xticks(ends, [format_count(2**end) for end in ends])
    below.set_xlabel(
        "length in tokens; a bin holds what is over the tick on its left, up to the tick on its right",
        fontsize=7.5,
        color=_INK,
    )

    place = float(np.log2(max_length))
    if place < num_bins - 1:
        for axes in (above, below):
            axes.axvline(place, color=_INK, linewidth=1.0, linestyle=(0, (4, 3)), zorder=4)
        late = place > (first + num_bins) * 0.65
        above.annotate(
            f"longer documents\nare split at {format_count(max_length)}",
            (place, 0.98),
            xytext=(-7 if late else 7, 0),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="right" if late else "left",
            va="top",
            fontsize=7,
            color=_INK,
        )
    figure.suptitle(title, x=0.01, ha="left", fontsize=9.5, fontweight="bold", color=_INK)
    named = dict(zip(*reversed(above.get_legend_handles_labels()), strict=True))
    handles = [named[word] for word in sorted(named, key=_LEGEND.index)]
    words = sorted(named, key=_LEGEND.index)
    figure.legend(handles, words, loc="outside lower left", ncols=3, frameon=False, fontsize=7, labelcolor=_INK)
    figure.text(0.99, 0.014, note, ha="right", va="bottom", fontsize=6, color=_QUIET)
    return figure


def _panel(axes: Axes, source: Floats, average: Floats, packs: Floats, errors: Floats | None) -> None:
    # Bin i ends at 2**i, so on an axis of powers of two it is the stretch from i - 1 to i.
    right = np.arange(len(source))
    tallest = max(source.max(), average.max(), (packs if errors is None else packs + 1.96 * errors).max())
    bars: dict[str, Any] = {"width": 0.42, "align": "edge", "linewidth": 0}
    axes.set_axisbelow(True)
    axes.grid(axis="y", color=_RULE, linewidth=0.8)
    axes.bar(right - 0.92, source, color=_SOURCE, label="source", **bars)
    axes.bar(
        right - 0.50, packs, color=_PACKS, label="packs" if errors is None else "packs, with 95% intervals", **bars
    )
    if errors is not None:
        held = packs > 0
        half = 1.96 * errors[held]
        low, high = np.minimum(half, packs[held]), np.minimum(half, 1 - packs[held])
        axes.errorbar(
            right[held] - 0.29, packs[held], yerr=[low, high], fmt="none", ecolor=_INK, elinewidth=0.8, capsize=1.5
        )
    seen = average > tallest / 1000  # a tick on the axis itself would only thicken it
    axes.hlines(
        average[seen],
        right[seen] - 0.53,
        right[seen] - 0.05,
        color=_AVERAGE,
        linewidth=2.0,
        zorder=3,
        label="packs on average",
    )
    axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.set_ylim(0, 1.08 * tallest)
    axes.tick_params(length=0, colors=_QUIET, labelsize=7)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(_QUIET)
