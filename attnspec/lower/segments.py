"""Slices joined to segments: a rectangle of queries and keys cut by at most two diagonals. Pure.

A segment is what one sequence of a varlen attention call is: the band between two diagonals inside a rectangle. Slices
are cut where a diagonal enters or leaves the rectangle; here such pieces are joined again, so that a sliding window is
one segment (and not a causal and a bi_causal slice), and a rectangle whose keys grow with the queries is one too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np

from attnspec.slices import AttnSlices, Edges, RowIntervals, joined_bands
from attnspec.slices.bands import Bands
from attnspec.slices.edges import IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Query q of [q_start, q_end) sees the keys k of [k_start, k_end) with lower <= k - q <= upper (None: no bound).

    Every row sees a key, the first row k_start, the last row k_end - 1.
    """

    q_start: int
    q_end: int
    k_start: int
    k_end: int
    lower: int | None = None
    upper: int | None = None

    @property
    def num_rows(self) -> int:
        """Queries."""
        return self.q_end - self.q_start

    @property
    def num_keys(self) -> int:
        """Keys."""
        return self.k_end - self.k_start


class Piece(NamedTuple):
    """A trapezoid: on row q of [q_start, q_end) the keys [lo + lo_slope (q - q_start), hi + hi_slope (q - q_start))."""

    q_start: int
    q_end: int
    lo: int
    hi: int
    lo_slope: int
    hi_slope: int


def pieces_of_edges(made: Edges) -> list[Piece]:
    """The trapezoids of a table of slices, sorted by row and key."""
    columns = (made.q_start, made.q_end, made.lo, made.hi, made.lo_slope, made.hi_slope)
    return sorted(Piece(*row) for row in zip(*(column.tolist() for column in columns), strict=True))


def pieces_of_bands(held: Bands) -> Iterator[Piece]:
    """The trapezoids between neighbouring row boundaries, sorted by row and key."""
    columns = (held.q_start[held.band], held.q_end[held.band], held.lo, held.hi, held.lo_slope, held.hi_slope)
    for row in zip(*(column.tolist() for column in columns), strict=True):
        yield Piece(*row)


def pieces_of_rows(rows: RowIntervals) -> list[Piece]:
    """Maximal runs of neighbouring rows whose intervals move by the same steps, sorted by row and key.

    `rows` covers all queries in order. Here cells of different slices that touch on a row are one interval already.
    """
    found: list[Piece] = []
    for lo, hi in zip(rows.lo, rows.hi, strict=True):
        used = hi > lo
        steps = np.stack([np.diff(lo), np.diff(hi)])
        valid = used[1:] & used[:-1] & np.isin(steps, (0, 1)).all(axis=0)
        kind = np.where(valid, steps[0] * 2 + steps[1], -1)
        # A run of equal steps from row s to row e covers rows s to e; the next run starts after it.
        turns = np.flatnonzero(np.diff(kind)) + 1
        starts = np.concatenate([[0], turns]).astype(np.int64)
        ends = np.concatenate([turns, [len(kind)]]).astype(np.int64)
        next_row = 0
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            move = int(kind[start]) if start < len(kind) else -1
            if move >= 0:
                first = max(start, next_row)
                found.append(Piece(first, end + 1, int(lo[first]), int(hi[first]), move >> 1, move & 1))
                next_row = end + 1
            elif end > next_row:
                found.extend(_lone(lo, hi, max(start, next_row), end))
                next_row = end
        found.extend(_lone(lo, hi, next_row, len(used)))
    return sorted(found)


def _lone(lo: IntArray, hi: IntArray, start: int, end: int) -> Iterator[Piece]:
    """Rows of [start, end) that see keys, each by itself."""
    for row in (np.flatnonzero(hi[start:end] > lo[start:end]) + start).tolist():
        yield Piece(row, row + 1, int(lo[row]), int(hi[row]), 0, 0)


class _Shape(Enum):
    """How an edge runs so far: FREE after one row, FLAT, SLOPED, or CUT (sloped, then flat)."""

    FREE = 0
    FLAT = 1
    SLOPED = 2
    CUT = 3


class _Edge(NamedTuple):
    """One side of a growing segment: its shape, the key it was flat at (lo) or reached last (hi), its diagonal."""

    shape: _Shape
    key: int
    diagonal: int | None


def _next_lo(edge: _Edge, row: int, lo: int, slope: int, single: bool) -> _Edge | None:
    """The lower edge max(start, q + diagonal) over further rows, or None when they do not continue it."""
    if edge.shape is _Shape.SLOPED:
        goes_on = edge.diagonal == lo - row and (slope == 1 or single)
        return edge if goes_on else None
    if single and lo == edge.key:
        return _Edge(_Shape.FLAT, edge.key, None)
    if slope == 1 or single:
        return _Edge(_Shape.SLOPED, edge.key, lo - row) if lo - edge.key in (0, 1) else None
    return _Edge(_Shape.FLAT, edge.key, None) if lo == edge.key else None


def _next_hi(edge: _Edge, row: int, hi: int, slope: int, single: bool) -> _Edge | None:
    """The upper edge min(end, q + diagonal + 1) over further rows, or None when they do not continue it."""
    step = hi - edge.key
    sloped = edge.diagonal if edge.shape is _Shape.SLOPED else hi - 1 - row
    if edge.shape in (_Shape.FLAT, _Shape.CUT):
        return edge if step == 0 and (slope == 0 or single) else None
    if slope == 1 or (single and step == 1):
        return _Edge(_Shape.SLOPED, hi, sloped) if step == 1 else None
    if step == 0:
        return _Edge(_Shape.CUT, hi, edge.diagonal) if edge.shape is _Shape.SLOPED else _Edge(_Shape.FLAT, hi, None)
    return _Edge(_Shape.CUT, hi, sloped) if step == 1 else None


class _Growing:
    """A segment while rows are still joined to it."""

    def __init__(self, piece: Piece) -> None:
        single = piece.q_end - piece.q_start == 1
        lo, hi = _Shape.FREE, _Shape.FREE
        if not single:
            lo = _Shape.SLOPED if piece.lo_slope else _Shape.FLAT
            hi = _Shape.SLOPED if piece.hi_slope else _Shape.FLAT
        self.q_start, self.q_end = piece.q_start, piece.q_end
        self._lo = _Edge(lo, piece.lo, piece.lo - piece.q_start if lo is _Shape.SLOPED else None)
        last = piece.hi + piece.hi_slope * (piece.q_end - piece.q_start - 1)
        self._hi = _Edge(hi, last, piece.hi - 1 - piece.q_start if hi is _Shape.SLOPED else None)

    def absorb(self, piece: Piece) -> bool:
        """Take the rows of `piece`, which start where this segment ends, if they continue it.

        Rows that share no key with the last one are left to be a segment of their own: that binds no diagonal.
        """
        if piece.lo >= self._hi.key:
            return False
        single = piece.q_end - piece.q_start == 1
        lo = _next_lo(self._lo, piece.q_start, piece.lo, piece.lo_slope, single)
        hi = _next_hi(self._hi, piece.q_start, piece.hi, piece.hi_slope, single)
        if lo is None or hi is None:
            return False
        self._lo = lo
        self._hi = hi._replace(key=hi.key + piece.hi_slope * (piece.q_end - piece.q_start - 1))
        self.q_end = piece.q_end
        return True

    def segment(self) -> Segment:
        """What was joined."""
        return Segment(
            q_start=self.q_start,
            q_end=self.q_end,
            k_start=self._lo.key,
            k_end=self._hi.key,
            lower=self._lo.diagonal,
            upper=self._hi.diagonal,
        )


def join(pieces: Iterable[Piece]) -> list[Segment]:
    """Pieces, sorted by row and key, joined over neighbouring rows; segments sorted by query and key.

    >>> window = [Piece(0, 3, 0, 1, 0, 1), Piece(3, 6, 1, 4, 1, 1)]
    >>> join(window)
    [Segment(q_start=0, q_end=6, k_start=0, k_end=6, lower=-2, upper=0)]
    """
    done: list[_Growing] = []
    ending: dict[int, list[_Growing]] = defaultdict(list)
    for piece in pieces:
        candidates = ending[piece.q_start]
        grown = next((candidate for candidate in candidates if candidate.absorb(piece)), None)
        if grown is None:
            grown = _Growing(piece)
            done.append(grown)
        else:
            candidates.remove(grown)
        ending[grown.q_end].append(grown)
    made = (growing.segment() for growing in done)
    return sorted(made, key=lambda one: (one.q_start, one.k_start))


def single(slices: AttnSlices) -> Segment | None:
    """The whole mask as one segment, or None. Slices may meet in rows and in keys, as those of a zigzag do.

    >>> quarters = [(0, 4, 0, 4, 1), (4, 8, 0, 4, 0), (4, 8, 4, 8, 1)]
    >>> single(AttnSlices.from_rows(quarters, seqlen_q=8, seqlen_k=8))
    Segment(q_start=0, q_end=8, k_start=0, k_end=8, lower=None, upper=0)
    """
    held = joined_bands(slices)
    if (np.diff(held.offsets) > 1).any():
        return None
    grown: _Growing | None = None
    for piece in pieces_of_bands(held):
        if grown is None:
            grown = _Growing(piece)
        elif piece.q_start != grown.q_end or not grown.absorb(piece):
            return None
    return None if grown is None else grown.segment()


def split_stairs(pieces: list[Piece]) -> Iterator[list[Piece]]:
    """The same cells with rectangles cut along diagonals: first what was no rectangle, then below, beside, above.

    Rectangles over neighbouring rows that start at one key form stairs; all of a flight are cut along one diagonal, the
    one through the lower right corners of most of them. What lies below the diagonal of a flight is then one causal
    segment, and what lies above it one inverse causal triangle per step. Rows that end before the diagonal come apart.
    """
    other, below, beside, above = [], [], [], []
    for flight in _flights(pieces):
        if flight[0].lo_slope or flight[0].hi_slope:
            other.extend(flight)
            continue
        corners = [piece.hi - piece.q_end for piece in flight]
        diagonal = max(sorted(set(corners)), key=corners.count)
        for q_start, q_end, lo, hi, _, _ in flight:
            meets_lo = min(max(q_start, lo - diagonal), q_end)
            meets_hi = min(max(q_start, hi - diagonal), q_end)
            below.append(Piece(meets_lo, meets_hi, lo, meets_lo + diagonal + 1, 0, 1))
            beside.append(Piece(meets_hi, q_end, lo, hi, 0, 0))
            last = min(max(q_start, hi - diagonal - 1), q_end)
            above.append(Piece(q_start, min(meets_lo, last), lo, hi, 0, 0))
            above.append(Piece(meets_lo, last, meets_lo + diagonal + 1, hi, 1, 0))
    for part in (other, below, beside, above):
        yield sorted(piece for piece in part if piece.q_start < piece.q_end)


def _flights(pieces: list[Piece]) -> Iterator[list[Piece]]:
    """Runs of flat pieces over neighbouring rows with one first key and growing ends; every other piece by itself."""
    open_flights: dict[tuple[int, int], list[Piece]] = {}
    for piece in pieces:
        if piece.lo_slope or piece.hi_slope:
            yield [piece]
            continue
        flight = open_flights.pop((piece.q_start, piece.lo), [])
        if flight and flight[-1].hi >= piece.hi:
            yield flight
            flight = []
        flight.append(piece)
        earlier = open_flights.pop((piece.q_end, piece.lo), None)
        if earlier is not None:
            yield earlier
        open_flights[piece.q_end, piece.lo] = flight
    yield from open_flights.values()
