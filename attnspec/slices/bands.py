"""Bands of rows on which the same slices are active, in the order of their keys. Pure, vectorised.

Between two neighbouring row boundaries no slice starts or ends, so every active slice is a trapezoid over the whole
band. Disjoint trapezoids keep their order over a band, since their ends move by whole keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnspec.slices.edges import Edges, IntArray, expand


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bands:
    """b bands and their p active slices, int64.

    q_start, q_end (b,): rows. offsets (b + 1,): items of band i are offsets[i] to offsets[i + 1]. Items (p,) are
    sorted by lo inside their band: on row q of the band the keys are [lo + lo_slope (q - q_start),
    hi + hi_slope (q - q_start)). band: the band of an item; which: its number in the Edges.
    """

    q_start: IntArray
    q_end: IntArray
    offsets: IntArray
    band: IntArray
    which: IntArray
    lo: IntArray
    hi: IntArray
    lo_slope: IntArray
    hi_slope: IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cuts:
    """Where bands begin and end, before they are filled: rows (b + 1,), first and count of a slice's bands."""

    rows: IntArray
    first: IntArray
    count: IntArray


def cut(made: Edges) -> Cuts:
    """The bands of trapezoids. `count.sum()` is how many items `bands` makes: at worst the square of the slices."""
    rows = np.sort(np.concatenate([made.q_start, made.q_end]))
    rows = rows[np.concatenate([[True], rows[1:] != rows[:-1]])[: len(rows)]]  # np.unique hashes, 30 times slower.
    first = np.searchsorted(rows, made.q_start)
    return Cuts(rows=rows, first=first, count=np.searchsorted(rows, made.q_end) - first)


def bands(made: Edges, cuts: Cuts) -> Bands:
    """The bands filled with their slices; rows without keys are in no band or in one without items."""
    which, step = expand(cuts.count)
    band = cuts.first[which] + step
    lo = made.lo_at(which, cuts.rows[band])
    order = np.lexsort((lo, band))
    which, band, lo = which[order], band[order], lo[order]
    return Bands(
        q_start=cuts.rows[:-1],
        q_end=cuts.rows[1:],
        offsets=np.searchsorted(band, np.arange(max(len(cuts.rows), 1))),
        band=band,
        which=which,
        lo=lo,
        hi=made.hi_at(which, cuts.rows[band]),
        lo_slope=made.lo_slope[which],
        hi_slope=made.hi_slope[which],
    )
