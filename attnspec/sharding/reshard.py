"""Bringing tokens from one layout into another: who sends which of its slots to whom. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnspec.slices.edges import IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Placed:
    """Of every token of a sequence, the rank that holds it and its slot there, int64 (num_tokens,)."""

    rank: IntArray
    slot: IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moves:
    """One rank's part. Slots that it sends, by target, and slots that it fills, by source; both in order of tokens.

    sent_slots, filled_slots: int64; sent_counts, filled_counts: int64 (num_ranks,) how many of them for each rank.
    """

    sent_slots: IntArray
    sent_counts: IntArray
    filled_slots: IntArray
    filled_counts: IntArray


def moves(before: Placed, after: Placed, rank: int, num_ranks: int) -> Moves:
    """What `rank` sends and gets, itself included.

    >>> home = Placed(rank=np.array([0, 0, 1, 1]), slot=np.array([0, 1, 0, 1]))
    >>> work = Placed(rank=np.array([0, 1, 1, 0]), slot=np.array([0, 0, 1, 1]))
    >>> made = moves(home, work, 0, 2)
    >>> made.sent_slots.tolist(), made.sent_counts.tolist(), made.filled_slots.tolist(), made.filled_counts.tolist()
    ([0, 1], [1, 1], [0, 1], [1, 1])
    """
    mine = np.flatnonzero(before.rank == rank)
    mine = mine[np.argsort(after.rank[mine], kind="stable")]
    coming = np.flatnonzero(after.rank == rank)
    coming = coming[np.argsort(before.rank[coming], kind="stable")]
    return Moves(
        sent_slots=before.slot[mine],
        sent_counts=np.bincount(after.rank[mine], minlength=num_ranks),
        filled_slots=after.slot[coming],
        filled_counts=np.bincount(before.rank[coming], minlength=num_ranks),
    )
