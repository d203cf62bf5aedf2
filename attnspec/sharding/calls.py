"""Attention calls of a rank: parts of the mask between its queries and the keys that it has at the time. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from attnspec.slices import AttnSlices, clip, edges
from attnspec.slices.edges import IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Call:
    """A kernel's call over the slots [q_start, q_end) of queries and [k_start, k_end) of keys, no more than it needs.

    slices: the mask between them, counted from their first slots.
    """

    slices: AttnSlices
    q_start: int
    q_end: int
    k_start: int
    k_end: int


def call_over(slices: AttnSlices) -> Call | None:
    """The call that computes `slices`, None when they allow nothing.

    >>> made = call_over(AttnSlices.from_rows([(4, 8, 0, 2, 0)], seqlen_q=8, seqlen_k=8))
    >>> (made.q_start, made.q_end, made.k_start, made.k_end), made.slices.rows()[0][:4]
    ((4, 8, 0, 2), (0, 4, 0, 2))
    """
    made = edges(slices)
    if len(made) == 0:
        return None
    last = made.q_end - 1 - made.q_start
    q_start, q_end = int(made.q_start.min()), int(made.q_end.max())
    k_start, k_end = int(made.lo.min()), int((made.hi + made.hi_slope * last).max())
    return Call(
        slices=clip(slices, q_start, q_end, k_start, k_end, shift=True),
        q_start=q_start,
        q_end=q_end,
        k_start=k_start,
        k_end=k_end,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task:
    """What a rank computes at one step, for checking and showing a plan: `slices` between slots, and who lies there.

    q_pieces, k_pieces: int64 (n, 3) of start, end, slot, as `attnspec.slices.take` has them. heads_q: the query heads.
    """

    step: int
    slices: AttnSlices
    q_pieces: IntArray
    k_pieces: IntArray
    heads_q: range
