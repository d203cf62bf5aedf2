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


def num_items(made: Edges) -> int:
    """How many (band, slice) items `bands` would make."""
    cuts = np.unique(np.concatenate([made.q_start, made.q_end]))
    return int((np.searchsorted(cuts, made.q_end) - np.searchsorted(cuts, made.q_start)).sum())


def bands(made: Edges) -> Bands:
    """The bands of trapezoids; rows without keys are in no band or in one without items."""
    cuts = np.unique(np.concatenate([made.q_start, made.q_end]))
    first = np.searchsorted(cuts, made.q_start)
    which, step = expand(np.searchsorted(cuts, made.q_end) - first)
    band = first[which] + step
    lo = made.lo_at(which, cuts[band])
    order = np.lexsort((lo, band))
    which, band, lo = which[order], band[order], lo[order]
    return Bands(
        q_start=cuts[:-1],
        q_end=cuts[1:],
        offsets=np.searchsorted(band, np.arange(max(len(cuts), 1))),
        band=band,
        which=which,
        lo=lo,
        hi=made.hi_at(which, cuts[band]),
        lo_slope=made.lo_slope[which],
        hi_slope=made.hi_slope[which],
    )
