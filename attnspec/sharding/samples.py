"""Samples: documents that a mask links, and how many ranks each gets. Pure.

Hybrid context parallelism (Megatron Core, hybrid_cp_schedule, 2025) gives each sample of a packed sequence its own
group of ranks, a power of two by its length, and puts groups together so that the ranks' work is even.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnspec.slices import AttnSlices, edges
from attnspec.slices.edges import IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """documents: their numbers, ascending. cost: allowed pairs of its rows."""

    documents: tuple[int, ...]
    num_tokens: int
    cost: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A sample on the ranks [group size, group (size + 1)): the group-th of those of `size` ranks."""

    sample: Sample
    size: int
    group: int


def samples(slices: AttnSlices, documents: IntArray, counts: IntArray) -> tuple[Sample, ...]:
    """Documents that share neither rows nor keys of any slice, in order. documents: int64 (n, 2) of start and end that
    tile the sequence; counts: allowed keys of every row. Empty documents belong to none.

    >>> slices = AttnSlices.from_rows([(0, 2, 0, 2, 1), (2, 5, 2, 5, 0)], seqlen_q=5, seqlen_k=5)
    >>> made = samples(slices, np.array([[0, 2], [2, 5]]), np.array([1, 2, 3, 3, 3]))
    >>> [(one.documents, one.num_tokens, one.cost) for one in made]
    [((0,), 2, 3), ((1,), 3, 9)]
    """
    start, end = documents.T
    filled = np.flatnonzero(start < end)
    label = _linked(slices, end[filled])
    totals = np.concatenate([[0], np.cumsum(counts)])
    made = []
    for name in np.unique(label):
        members = filled[label == name]
        made.append(
            Sample(
                documents=tuple(members.tolist()),
                num_tokens=int((end[members] - start[members]).sum()),
                cost=int((totals[end[members]] - totals[start[members]]).sum()),
            )
        )
    return tuple(made)


def place(made: Sequence[Sample], num_ranks: int, tokens_per_rank: int) -> tuple[Placement, ...]:
    """Where each sample goes; num_ranks is a power of two.

    A sample of n tokens gets the smallest power of two of ranks that is at least n / tokens_per_rank. The largest ones
    choose first, each the group whose most loaded rank is then least loaded. While that makes the most loaded rank of
    all less loaded, the sample that loads it most gets twice the ranks.

    >>> two = [Sample(documents=(n,), num_tokens=8, cost=36) for n in range(2)]
    >>> [(one.size, one.group) for one in place(two, 2, 8)]
    [(1, 0), (1, 1)]
    """
    sizes = [min(_power_of_two(-(-one.num_tokens // tokens_per_rank)), num_ranks) for one in made]
    groups, loads = _assigned(made, sizes, num_ranks)
    for _ in range(2 * num_ranks):
        busiest = int(loads.argmax())
        there = [n for n, one in enumerate(made) if groups[n] == busiest // sizes[n] and sizes[n] < num_ranks]
        if not there:
            break
        heaviest = max(there, key=lambda n: (made[n].cost / sizes[n], -n))
        wider = [*sizes]
        wider[heaviest] *= 2
        groups_then, loads_then = _assigned(made, wider, num_ranks)
        if loads_then.max() >= loads.max():
            break
        sizes, groups, loads = wider, groups_then, loads_then
    return tuple(
        Placement(sample=one, size=size, group=group) for one, size, group in zip(made, sizes, groups, strict=True)
    )


def _assigned(made: Sequence[Sample], sizes: Sequence[int], num_ranks: int) -> tuple[list[int], NDArray[np.float64]]:
    """(group of each sample, load of each rank)."""
    loads = np.zeros(num_ranks)
    groups = [0] * len(made)
    for n in sorted(range(len(made)), key=lambda n: (-sizes[n], -made[n].cost, n)):
        # Sizes only shrink, so all ranks of a group are loaded alike, and its first one tells.
        groups[n] = int(loads[:: sizes[n]].argmin())
        loads.reshape(-1, sizes[n])[groups[n]] += made[n].cost / sizes[n]
    return groups, loads


def _power_of_two(number: int) -> int:
    return 1 << max(number - 1, 0).bit_length()


def _linked(slices: AttnSlices, ends: IntArray) -> IntArray:
    """A label per document, equal for documents that a slice links, also over others. ends: ascending."""
    made = edges(slices)
    by_rows = _documents(ends, made.q_start, made.q_end)
    by_keys = _documents(ends, made.lo, made.hi + made.hi_slope * (made.q_end - 1 - made.q_start))
    steps = np.zeros(len(ends) + 1, dtype=np.int64)
    for first, last in (by_rows, by_keys):
        np.add.at(steps, first, 1)
        np.add.at(steps, last, -1)
    # A document that no run of positions joins to the one before it begins a new label.
    label = np.cumsum(np.concatenate([[0], np.cumsum(steps)[: len(ends) - 1] == 0])) if len(ends) else steps[:0]
    parent = list(range(int(label.max(initial=-1)) + 1))

    def root(one: int) -> int:
        while parent[one] != one:
            parent[one] = parent[parent[one]]
            one = parent[one]
        return one

    pairs = np.unique(np.stack([label[by_rows[0]], label[by_keys[0]]], axis=1), axis=0)
    for one, other in pairs.tolist():
        parent[max(root(one), root(other))] = min(root(one), root(other))
    return np.array([root(one) for one in label.tolist()], dtype=np.int64)


def _documents(ends: IntArray, start: IntArray, end: IntArray) -> tuple[IntArray, IntArray]:
    """First and last document of each run [start, end) of positions."""
    return np.searchsorted(ends, start, side="right"), np.searchsorted(ends, end, side="left")
