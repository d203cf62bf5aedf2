"""Refusing tables of slices that are not a mask: bad ranges, unknown types, cells allowed twice. Pure, exact."""

from __future__ import annotations

import numpy as np

from attnspec.errors import InputError
from attnspec.slices.bands import Cuts, bands, cut
from attnspec.slices.edges import Edges, edges
from attnspec.slices.overlap import common_cell
from attnspec.slices.table import AttnSlices, SliceType

_COLUMNS = ("q_start", "q_end", "k_start", "k_end")
_BAND_ITEMS = 1 << 22


def check(slices: AttnSlices) -> None:
    """Raise InputError unless the slices describe a mask.

    Ranges lie inside the sequence and do not end before they start, types are known, and no cell is allowed by two
    slices (bounding rectangles may meet). The error names the offending slices, and for an overlap a common cell.

    >>> check(AttnSlices.from_rows([(0, 4, 0, 2, 0), (0, 4, 2, 6, 1)], seqlen_q=4, seqlen_k=6))
    >>> check(AttnSlices.from_rows([(0, 4, 0, 4, 0), (0, 4, 2, 6, 0)], seqlen_q=4, seqlen_k=6))
    Traceback (most recent call last):
    ...
    attnspec.errors.InputError: slices 0 [0, 4, 0, 4, full] and 1 [0, 4, 2, 6, full] overlap: both allow q=0, k=2
    """
    _check_table(slices)
    _check_ranges(slices)
    made = edges(slices)
    cuts = cut(made)
    few = int(cuts.count.sum()) <= max(_BAND_ITEMS, 4 * len(made))
    found = _band_overlap(made, cuts) if few else common_cell(made)
    if found is not None:
        one, other, q, k = found
        one, other = sorted((int(made.index[one]), int(made.index[other])))
        raise InputError(f"slices {_named(slices, one)} and {_named(slices, other)} overlap: both allow q={q}, k={k}")


def _check_table(slices: AttnSlices) -> None:
    for name, length in (("seqlen_q", slices.seqlen_q), ("seqlen_k", slices.seqlen_k)):
        if length < 0:
            raise InputError(f"{name} is {length}; allowed: 0 or more")
    if slices.ranges.shape != (len(slices.types), 4):
        raise InputError(
            f"ranges have shape {slices.ranges.shape} for {len(slices.types)} types; allowed: ({len(slices.types)}, 4)"
        )
    if slices.ranges.dtype != np.int64:
        raise InputError(f"ranges are {slices.ranges.dtype}; allowed: int64")


def _check_ranges(slices: AttnSlices) -> None:
    unknown = np.flatnonzero((slices.types < 0) | (slices.types > max(SliceType)))
    if len(unknown):
        first = int(unknown[0])
        allowed = ", ".join(f"{kind.value} ({kind.name.lower()})" for kind in SliceType)
        raise InputError(f"slice {first} has type {int(slices.types[first])}; allowed: {allowed}")
    for start, length, name in ((0, slices.seqlen_q, "seqlen_q"), (2, slices.seqlen_k, "seqlen_k")):
        low, high = slices.ranges[:, start], slices.ranges[:, start + 1]
        bad = np.flatnonzero((low < 0) | (high < low) | (high > length))
        if len(bad):
            first = int(bad[0])
            raise InputError(
                f"slice {_named(slices, first)} is not inside the sequence; "
                f"allowed: 0 <= {_COLUMNS[start]} <= {_COLUMNS[start + 1]} <= {length} ({name})"
            )


def _named(slices: AttnSlices, number: int) -> str:
    bounds = ", ".join(map(str, slices.ranges[number].tolist()))
    return f"{number} [{bounds}, {SliceType(int(slices.types[number])).name.lower()}]"


def _band_overlap(made: Edges, cuts: Cuts) -> tuple[int, int, int, int] | None:
    """Two trapezoids that share a cell (q, k), by comparing neighbours on the first and last row of every band."""
    held = bands(made, cuts)
    same = held.band[1:] == held.band[:-1]
    gap = held.lo[1:] - held.hi[:-1]
    length = (held.q_end - held.q_start - 1)[held.band[1:]]
    last_gap = gap + (held.lo_slope[1:] - held.hi_slope[:-1]) * length
    bad = np.flatnonzero(same & ((gap < 0) | (last_gap < 0)))
    if len(bad) == 0:
        return None
    item = int(bad[0])
    # Where neighbours drift together the gap closes by one key a row: they meet on the row after it is 0.
    step = 0 if gap[item] < 0 else int(gap[item]) + 1
    q = int(held.q_start[held.band[item]]) + step
    k = int(held.lo[item + 1] + held.lo_slope[item + 1] * step)
    return int(held.which[item]), int(held.which[item + 1]), q, k
