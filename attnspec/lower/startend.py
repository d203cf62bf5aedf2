"""Slices to FlashMask's startend_row_indices: per key, which queries do not see it. Pure, vectorised.

FlashMask says a mask by columns (Wang et al. 2024, arXiv 2410.01359; docstring of flashmask_attention in
PaddlePaddle/flash-attention). For key k the rows [LTS, LTE) and [UTS, UTE) are masked, and with causal=True also the
rows before k. Forms, by causal flag and number of values per key:

    causal, 1: LTS             LTE is the end       causal, 2: LTS, LTE
    not causal, 2: LTS, UTE    LTE the end, UTS 0   not causal, 4: LTS, LTE, UTS, UTE

The kernel reads the values as rows and nothing else: no value needs to lie on its side of the diagonal. The first form
that fits is taken, since fewer values are less work. The causal forms are taken where seqlen_q = seqlen_k, where all
alignments of the diagonal agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnspec.errors import UnsupportedError
from attnspec.lower.columns import transposed
from attnspec.slices import AttnSlices, row_intervals
from attnspec.slices.edges import IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StartendRows:
    """indices: int32 (seqlen_k, 1, 2 or 4), in the order of the table above."""

    indices: NDArray[np.int32]
    causal: bool


class _Runs(NamedTuple):
    """Runs of rows that do not see a key: start, end int64 (num_runs, seqlen_k); unused ones are empty and last."""

    start: IntArray
    end: IntArray


def startend_rows(slices: AttnSlices) -> StartendRows:
    """The first form that says disjoint slices exactly; raises UnsupportedError("no_lowering") when none does.

    >>> made = startend_rows(AttnSlices.from_rows([(0, 2, 0, 2, 1), (2, 5, 2, 5, 1)], seqlen_q=5, seqlen_k=5))
    >>> made.indices.T.tolist(), made.causal
    ([[2, 2, 5, 5, 5]], True)
    """
    num_rows, num_keys = slices.seqlen_q, slices.seqlen_k
    masked = _masked(slices)
    found = _causal(masked, num_keys) if num_rows == num_keys else None
    found = _bidirectional(masked, num_rows) if found is None else found
    if found is None:
        most = int((masked.end > masked.start).sum(axis=0).max())
        raise UnsupportedError(
            "no_lowering",
            f"a key is not seen by {most} separate runs of queries; startend_row_indices say at most two, or one "
            "besides the rows before the key",
        )
    columns, causal = found
    return StartendRows(indices=np.stack(columns, axis=1).astype(np.int32), causal=causal)


def _masked(slices: AttnSlices) -> _Runs:
    """The gaps between the rows that see a key."""
    seen = row_intervals(transposed(slices))
    num_rows, num_keys = slices.seqlen_q, slices.seqlen_k
    used = seen.hi > seen.lo
    nothing = np.zeros((1, num_keys), dtype=np.int64)
    # Gap i lies between interval i - 1 (or row 0) and interval i (or the last row).
    start = np.concatenate([nothing, np.where(used, seen.hi, num_rows)])
    end = np.concatenate([np.where(used, seen.lo, num_rows), nothing + num_rows])
    return _first(_Runs(start, end))


def _first(runs: _Runs) -> _Runs:
    """Empty runs moved behind the others."""
    order = np.argsort(runs.end <= runs.start, axis=0, kind="stable")
    start, end = (np.take_along_axis(part, order, axis=0) for part in runs)
    most = int((end > start).sum(axis=0).max(initial=0))
    return _Runs(start[:most], end[:most])


def _causal(masked: _Runs, num_keys: int) -> tuple[list[IntArray], bool] | None:
    """One value or two beside the causal flag."""
    keys = np.arange(num_keys, dtype=np.int64)
    before = (np.minimum(masked.end, keys) - np.minimum(masked.start, keys)).sum(axis=0)
    if (before != keys).any():
        return None
    runs = _first(_Runs(np.maximum(masked.start, keys), np.maximum(masked.end, keys)))
    if len(runs.start) > 1:
        return None
    start = np.full(num_keys, num_keys, dtype=np.int64)
    end = start.copy()
    for run_start, run_end in zip(*runs, strict=True):
        some = run_end > run_start
        start, end = np.where(some, run_start, start), np.where(some, run_end, end)
    return ([start] if (end == num_keys).all() else [start, end]), True


def _bidirectional(masked: _Runs, num_rows: int) -> tuple[list[IntArray], bool] | None:
    """Two values or four without the causal flag. A run that ends the rows is lower, one that starts them upper."""
    if len(masked.start) > 2:
        return None
    num_keys = masked.start.shape[1]
    lower = [np.full(num_keys, num_rows, dtype=np.int64) for _ in range(2)]
    upper = [np.zeros(num_keys, dtype=np.int64) for _ in range(2)]
    several = (masked.end > masked.start).sum(axis=0) > 1
    keys = np.arange(num_keys, dtype=np.int64)
    for place, (start, end) in enumerate(zip(*masked, strict=True)):
        some = end > start
        alone = (end == num_rows) | ((start > 0) & (start >= keys))
        is_lower = np.where(several, place == 1, alone)
        for side, chosen in ((lower, some & is_lower), (upper, some & ~is_lower)):
            side[0], side[1] = np.where(chosen, start, side[0]), np.where(chosen, end, side[1])
    if (lower[1] == num_rows).all() and (upper[0] == 0).all():
        return [lower[0], upper[1]], False
    return [*lower, *upper], False
