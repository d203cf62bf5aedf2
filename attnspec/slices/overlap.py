"""Exact overlap of many tall slices by a sweep over rows, in memory proportional to the slices. Pure.

At any row the active trapezoids are ordered by their first key. Two of them can only meet if they are neighbours at
some row, so each new pair of neighbours (after an insertion or a removal) is compared once, at its first and last
common row.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from attnspec.slices.edges import Edges


def common_cell(made: Edges) -> tuple[int, int, int, int] | None:
    """Two trapezoids and a cell (q, k) that both allow, or None when all are disjoint."""
    q_start, q_end = made.q_start.tolist(), made.q_end.tolist()
    lo0, lo_slope = (made.lo - made.lo_slope * made.q_start).tolist(), made.lo_slope.tolist()
    hi0, hi_slope = (made.hi - made.hi_slope * made.q_start).tolist(), made.hi_slope.tolist()
    count = len(made)
    # Events in the order of rows; at one row ends come before starts.
    keys = np.concatenate([made.q_end * 2, made.q_start * 2 + 1])
    active: list[int] = []

    def met(left: int, right: int, q: int) -> tuple[int, int, int, int] | None:
        last = min(q_end[left], q_end[right]) - 1
        if last < q:
            return None
        gap = lo0[right] + lo_slope[right] * q - hi0[left] - hi_slope[left] * q
        if gap >= 0:
            if gap + (lo_slope[right] - hi_slope[left]) * (last - q) >= 0:
                return None
            q += gap + 1
        return left, right, q, lo0[right] + lo_slope[right] * q

    for event in np.argsort(keys, kind="stable").tolist():
        ends = event < count
        item = event if ends else event - count
        q = q_end[item] if ends else q_start[item]
        row = q - 1 if ends else q

        def lo_now(other: int, row: int = row) -> int:
            return int(lo0[other] + lo_slope[other] * row)

        place = bisect_left(active, lo_now(item), key=lo_now)
        if ends:
            del active[place]
            found = met(active[place - 1], active[place], q) if 0 < place < len(active) else None
        else:
            found = met(active[place - 1], item, q) if place else None
            if found is None and place < len(active):
                found = met(item, active[place], q)
            active.insert(place, item)
        if found is not None:
            return found
    return None
