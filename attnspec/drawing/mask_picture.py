"""One picture of a mask: queries downwards, keys to the right, tinted by the type of slice, with document borders."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from attnspec.drawing.mask_text import block_bounds, density
from attnspec.slices import AttnSlices, SliceType
from attnspec.slices.edges import IntArray
from attnspec.units import format_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_BLOCKS = 560
_FAINTEST = 0.35
_CELLS_NUMBERED = 32
# Inches: the longer side of the picture, and the margins around it.
_SIDE, _LEFT, _RIGHT, _ABOVE, _BELOW = 5.6, 0.8, 0.35, 0.8, 0.85
_INK, _QUIET, _EMPTY = "#1F2430", "#5F6672", "#FFFFFF"
_COLOURS = {
    SliceType.FULL: "#0072B2",
    SliceType.CAUSAL: "#009E73",
    SliceType.INV_CAUSAL: "#D55E00",
    SliceType.BI_CAUSAL: "#E69F00",
}


def mask_picture(slices: AttnSlices, docs: IntArray, *, title: str, area: int) -> Figure:
    """Draw a mask. Returns a matplotlib Figure that belongs to no window system.

    Each point of the picture is a block of at least one cell; its tint is the exact share of allowed cells in it, over
    a faintest tint so that a few cells in a long sequence still show. docs: document lengths, drawn along both sides.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    longest = max(slices.seqlen_q, slices.seqlen_k)
    q_bounds = block_bounds(slices.seqlen_q, longest, MAX_BLOCKS)
    k_bounds = block_bounds(slices.seqlen_k, longest, MAX_BLOCKS)
    kinds = [kind for kind in SliceType if (slices.types == kind).any()]
    high = _SIDE * min(max(slices.seqlen_q / longest, 0.25), 1.0)
    wide = _SIDE * min(max(slices.seqlen_k / longest, 0.25), 1.0)
    size = (max(wide + _LEFT + _RIGHT, 5.0), high + _ABOVE + _BELOW)
    figure = Figure(figsize=size, facecolor="white")
    axes = figure.add_axes((_LEFT / size[0], _BELOW / size[1], wide / size[0], high / size[1]))
    axes.imshow(
        _tinted(slices, kinds, q_bounds, k_bounds),
        extent=(0, slices.seqlen_k, slices.seqlen_q, 0),
        aspect="auto",
        interpolation="nearest",
    )
    _ticks(axes, slices)
    if longest <= _CELLS_NUMBERED:
        axes.vlines(range(slices.seqlen_k + 1), 0, slices.seqlen_q, color="white", linewidth=1)
        axes.hlines(range(slices.seqlen_q + 1), 0, slices.seqlen_k, color="white", linewidth=1)
    if np.count_nonzero(docs) > 1:
        _documents(axes, docs, wide, high)
    axes.set_xlabel("key", color=_INK)
    axes.set_ylabel("query", color=_INK)
    axes.spines[:].set_color("#9AA1AC")
    top = 1 - 0.12 / size[1]
    figure.text(
        _LEFT / size[0], top, title, va="top", fontweight="bold", color=_INK, fontsize=_title_points(title, size)
    )
    num_docs = f"{len(docs):,} document{'s' if len(docs) > 1 else ''}, "
    num_slices = f"{len(slices):,} slice{'' if len(slices) == 1 else 's'}"
    facts = f"{num_docs}{num_slices}, area {area:,} = {area / (slices.seqlen_q * slices.seqlen_k):.3%} of all cells"
    figure.text(_LEFT / size[0], top - 0.26 / size[1], facts, va="top", fontsize=8.5, color=_QUIET)
    figure.legend(
        handles=[Patch(facecolor=_COLOURS[kind], label=kind.name.lower()) for kind in kinds],
        ncols=4,
        loc="lower left",
        bbox_to_anchor=(_LEFT / size[0], 0.04 / size[1]),
        borderaxespad=0.0,
        frameon=False,
        fontsize=9,
    )
    return figure


def _title_points(title: str, size: tuple[float, float]) -> float:
    """The font size at which a bold title fits the figure."""
    return min(12.0, 72 * (size[0] - _LEFT) / (0.68 * len(title)))


def _tinted(slices: AttnSlices, kinds: list[SliceType], q_bounds: IntArray, k_bounds: IntArray) -> NDArray[np.float64]:
    """RGB of every block: white, and the colour of each type in proportion to its share of the block."""
    from matplotlib.colors import to_rgb

    white = np.array(to_rgb(_EMPTY))
    shares = {}
    for kind in kinds:
        chosen = slices.types == kind
        part = replace(slices, ranges=slices.ranges[chosen], types=slices.types[chosen])
        shares[kind] = density(part, q_bounds, k_bounds)
    total = sum(shares.values(), np.zeros((len(q_bounds) - 1, len(k_bounds) - 1)))
    tint = np.where(total > 0, _FAINTEST + (1 - _FAINTEST) * total, 0.0)
    picture = np.broadcast_to(white, (*total.shape, 3)).copy()
    for kind, share in shares.items():
        weight = np.divide(share * tint, total, out=np.zeros_like(total), where=total > 0)
        picture += weight[:, :, None] * (np.array(to_rgb(_COLOURS[kind])) - white)
    return np.asarray(np.clip(picture, 0.0, 1.0))


def _ticks(axes: Axes, slices: AttnSlices) -> None:
    """Numbers of cells at their middles on small masks, else round positions."""
    for axis, seqlen in ((axes.xaxis, slices.seqlen_k), (axes.yaxis, slices.seqlen_q)):
        if max(slices.seqlen_q, slices.seqlen_k) <= _CELLS_NUMBERED:
            axis.set_ticks([place + 0.5 for place in range(seqlen)], [str(place) for place in range(seqlen)])
        else:
            step = 1 << max((seqlen - 1).bit_length() - 3, 0)
            places = [
                place for place in range(0, seqlen + 1, step) if place in (0, seqlen) or seqlen - place >= step / 2
            ]
            axis.set_ticks(places, [format_count(place) if place else "0" for place in places])
    axes.tick_params(
        labelsize=8, colors=_QUIET, length=0 if max(slices.seqlen_q, slices.seqlen_k) <= _CELLS_NUMBERED else 3
    )


def _documents(axes: Axes, docs: IntArray, wide: float, high: float) -> None:
    """Alternating strips along the upper and right side, one per document, and thin lines between few documents."""
    ends = np.cumsum(docs)
    starts = ends - docs
    spans = [(int(start), int(length)) for start, length in zip(starts, docs, strict=True) if length]
    colours = ["#3C4454" if place % 2 else "#B8BEC8" for place in range(len(spans))]
    above = axes.inset_axes((0, 1 + 0.05 / high, 1, 0.09 / high), sharex=axes)
    above.broken_barh(spans, (0, 1), facecolors=colours)
    beside = axes.inset_axes((1 + 0.05 / wide, 0, 0.09 / wide, 1), sharey=axes)
    beside.bar(0, [length for _, length in spans], 1, [start for start, _ in spans], color=colours)
    for strip in (above, beside):
        strip.axis("off")
    if len(spans) <= 64:
        for start, _ in spans[1:]:
            axes.axhline(start, color=_INK, linewidth=0.5, linestyle=(0, (3, 3)), alpha=0.55)
            axes.axvline(start, color=_INK, linewidth=0.5, linestyle=(0, (3, 3)), alpha=0.55)
