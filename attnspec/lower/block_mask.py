"""FlexAttention's BlockMask straight from slices, in memory proportional to the blocks that are not empty. Pure.

A block is full when all its block_q x block_k cells are allowed, partial when some are. A block that reaches over the
end of the sequence is never full. Both sides are built: key blocks per query block (forward), query blocks per key
block (backward). A side is made from trapezoids (`attnspec.slices.edges`): on the rows of one block a trapezoid touches
one run of column blocks, and the inner part of the run is full; only the few blocks at its two ends need counting.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from attnspec.slices import AttnSlices, Edges, edges
from attnspec.slices.edges import IntArray, expand

_CHUNK_ENTRIES = 2**22
"""Entries written at a time, so that temporaries stay small beside the table itself."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockLists:
    """Per row of blocks: num int32 (rows,), indices int32 (rows, width), of which the first num[row] count, ascending.

    width is the largest num (0 when there is no block); unused places hold 0.
    """

    num: NDArray[np.int32]
    indices: NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockMask:
    """Partial and full key blocks per query block (kv, full_kv) and query blocks per key block (q, full_q)."""

    seqlen_q: int
    seqlen_k: int
    block_q: int
    block_k: int
    kv: BlockLists
    full_kv: BlockLists
    q: BlockLists
    full_q: BlockLists

    @property
    def num_bytes(self) -> int:
        """Memory of the index tables as they are, not padded."""
        return sum(side.indices.nbytes for side in (self.kv, self.full_kv, self.q, self.full_q))


def block_mask(slices: AttnSlices, block_q: int, block_k: int) -> BlockMask:
    """The BlockMask of disjoint slices.

    >>> made = block_mask(AttnSlices.from_rows([(0, 8, 0, 8, 1)], seqlen_q=8, seqlen_k=8), 4, 4)
    >>> made.kv.indices.tolist(), made.full_kv.num.tolist(), made.full_kv.indices.tolist()
    ([[0], [1]], [0, 1], [[0], [0]])
    """
    made = edges(slices)
    kv, full_kv = _side(made, slices.seqlen_q, block_q, slices.seqlen_k, block_k)
    q, full_q = _side(_transposed(made), slices.seqlen_k, block_k, slices.seqlen_q, block_q)
    return BlockMask(
        seqlen_q=slices.seqlen_q,
        seqlen_k=slices.seqlen_k,
        block_q=block_q,
        block_k=block_k,
        kv=kv,
        full_kv=full_kv,
        q=q,
        full_q=full_q,
    )


def num_table_entries(slices: AttnSlices, block_q: int, block_k: int) -> int:
    """An upper bound of the entries of all four index tables, in time proportional to slices and rows of blocks."""
    made = edges(slices)
    total = 0
    for side, rows, row_block, col_block in (
        (made, slices.seqlen_q, block_q, block_k),
        (_transposed(made), slices.seqlen_k, block_k, block_q),
    ):
        item, block, _, first, last = _cut(side, row_block)
        touched = (side.hi_at(item, last) - 1) // col_block - side.lo_at(item, first) // col_block + 1
        per_row = np.zeros(-(-rows // row_block), dtype=np.int64)
        np.add.at(per_row, block, touched)
        total += 2 * int(per_row.max(initial=0)) * len(per_row)
    return total


def _transposed(made: Edges) -> Edges:
    """The same cells with queries and keys exchanged; a trapezoid becomes at most three."""
    last = made.q_end - 1
    every = np.arange(len(made), dtype=np.int64)
    k_start, k_end = made.lo, made.hi_at(every, last)
    # From `leaves` on a key's first query moves on; until `full` a key's last query has moved on.
    leaves = np.where(made.hi_slope == 1, np.minimum(made.hi, k_end), k_end)
    full = np.where(made.lo_slope == 1, np.minimum(made.lo + (last - made.q_start), k_end), k_start)
    cuts = np.stack([k_start, np.minimum(leaves, full), np.maximum(leaves, full), k_end])
    parts = []
    for start, end in itertools.pairwise(cuts):
        moves = (made.hi_slope == 1) & (start >= leaves)
        grows = (made.lo_slope == 1) & (start < full)
        parts.append(
            Edges(
                index=made.index,
                q_start=start,
                q_end=end,
                lo=np.where(moves, made.q_start + start - made.hi + 1, made.q_start),
                hi=np.where(grows, made.q_start + start - made.lo + 1, made.q_end),
                lo_slope=moves.astype(np.int64),
                hi_slope=grows.astype(np.int64),
            )
        )
    names = ("index", "q_start", "q_end", "lo", "hi", "lo_slope", "hi_slope")
    joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    kept = joined["q_start"] < joined["q_end"]
    return replace(parts[0], **{name: joined[name][kept] for name in names})


def _cut(made: Edges, row_block: int) -> tuple[IntArray, IntArray, IntArray, IntArray, IntArray]:
    """Every (trapezoid, row block) pair: trapezoid, block, whether all rows are covered, first and last common row."""
    start = made.q_start // row_block
    item, step = expand((made.q_end - 1) // row_block - start + 1)
    block = start[item] + step
    first = np.maximum(made.q_start[item], block * row_block)
    last = np.minimum(made.q_end[item], (block + 1) * row_block) - 1
    return item, block, last - first + 1 == row_block, first, last


def _side(made: Edges, num_rows: int, row_block: int, num_cols: int, col_block: int) -> tuple[BlockLists, BlockLists]:
    """(partial, full) column blocks of each row block."""
    num_row_blocks, num_col_blocks = -(-num_rows // row_block), -(-num_cols // col_block)
    item, block, whole, first, last = _cut(made, row_block)
    touch_start = made.lo_at(item, first) // col_block
    touch_end = (made.hi_at(item, last) - 1) // col_block + 1
    full_start = -(-made.lo_at(item, last) // col_block)
    full_end = made.hi_at(item, first) // col_block
    inner = whole & (full_start < full_end)
    full_start, full_end = np.where(inner, full_start, touch_end), np.where(inner, full_end, touch_end)

    # What is left and right of the full run is counted; several trapezoids may share such a block and fill it together.
    pair, step = expand(np.concatenate([full_start - touch_start, touch_end - full_end]))
    col = np.concatenate([touch_start, full_end])[pair] + step
    pair %= max(len(item), 1)
    cells = _cells(made, item[pair], first[pair], last[pair], col * col_block, (col + 1) * col_block)
    key = block[pair] * num_col_blocks + col
    order = np.argsort(key, kind="stable")
    key, starts = np.unique(key[order], return_index=True)
    count = np.add.reduceat(cells[order], starts) if len(starts) else cells
    filled = count == row_block * col_block

    partial_row, partial_col = np.divmod(key[~filled], num_col_blocks)
    filled_row, filled_col = np.divmod(key[filled], num_col_blocks)
    full = _lists(
        num_row_blocks,
        np.concatenate([block[inner], filled_row]),
        np.concatenate([full_start[inner], filled_col]),
        np.concatenate([full_end[inner], filled_col + 1]),
    )
    return _lists(num_row_blocks, partial_row, partial_col, partial_col + 1), full


def _cells(made: Edges, which: IntArray, first: IntArray, last: IntArray, start: IntArray, end: IntArray) -> IntArray:
    """Allowed cells of trapezoids `which` on rows first to last (inclusive) and columns [start, end)."""
    rows, width = last - first + 1, end - start
    upper = _clipped_sum(made.hi_at(which, first) - start, made.hi_slope[which], rows, width)
    return upper - _clipped_sum(made.lo_at(which, first) - start, made.lo_slope[which], rows, width)


def _clipped_sum(value: IntArray, slope: IntArray, rows: IntArray, width: IntArray) -> IntArray:
    """Sum over i in [0, rows) of value + slope i clipped to [0, width]."""
    flat = rows * np.clip(value, 0, width)
    below = np.clip(-value, 0, rows)
    inside = np.clip(width - value, 0, rows) - below
    rising = inside * (value + below) + inside * (inside - 1) // 2 + (rows - below - inside) * width
    return np.where(slope == 1, rising, flat)


def _lists(num_rows: int, row: IntArray, start: IntArray, end: IntArray) -> BlockLists:
    """Runs [start, end) of column blocks, disjoint inside a row, as padded lists."""
    order = np.lexsort((start, row))
    row, start, length = row[order], start[order], (end - start)[order]
    num = np.zeros(num_rows, dtype=np.int64)
    np.add.at(num, row, length)
    width = int(num.max(initial=0))
    indices = np.zeros((num_rows, width), dtype=np.int32)
    total = np.cumsum(length)
    place = total - length - (np.cumsum(num) - num)[row]
    for part in np.array_split(np.arange(len(row)), 1 + int(num.sum()) // _CHUNK_ENTRIES):
        run, step = expand(length[part])
        run = part[run]
        indices[row[run], place[run] + step] = start[run] + step
    return BlockLists(num=num.astype(np.int32), indices=indices)
