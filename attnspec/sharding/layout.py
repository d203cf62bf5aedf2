"""Layouts: which tokens of a sequence each holder has, and in which slot. Pure, vectorised.

A holder is a rank, or a place in a ring. All holders of a layout have equally many slots; slots that hold no token are
padding.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from attnspec.slices import AttnSlices
from attnspec.slices.documents import document_bounds
from attnspec.slices.edges import IntArray, expand

_HOLDER, _START, _END, _SLOT = range(4)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layout:
    """pieces: int64 (n, 4), columns holder, start, end, slot, sorted by holder and slot: tokens [start, end) of the
    sequence lie at `slot` and after it. No token has two holders; no piece is empty. num_tokens: tokens held in all.
    """

    pieces: IntArray
    num_holders: int
    num_slots: int
    num_tokens: int

    @property
    def padding_tokens(self) -> int:
        """Slots of all holders that hold no token."""
        return self.num_holders * self.num_slots - self.num_tokens

    def of(self, holder: int) -> IntArray:
        """The pieces of one holder as `attnspec.slices.take` wants them: int64 (n, 3) of start, end, slot."""
        first, last = np.searchsorted(self.pieces[:, _HOLDER], [holder, holder + 1])
        return self.pieces[first:last, _START:]

    def tokens(self, holder: int) -> IntArray:
        """Positions of the tokens that a holder has, in the order of their slots."""
        start, end, _ = self.of(holder).T
        return ranges(start, end)

    def slots(self, holder: int) -> IntArray:
        """The slots that hold these tokens."""
        start, end, slot = self.of(holder).T
        return ranges(slot, slot + end - start)

    def places(self) -> IntArray:
        """Where each token lies when all holders' slots stand one after another, int64 (num_tokens,).

        The tokens held must be all from 0 on.
        """
        holder, start, end, slot = self.pieces.T
        found = np.empty(self.num_tokens, dtype=np.int64)
        at = holder * self.num_slots + slot
        found[ranges(start, end)] = ranges(at, at + end - start)
        return found

    def padded(self, multiple: int) -> Layout:
        """The same with more slots at the end of each holder, a multiple in all."""
        num_slots = -(-self.num_slots // multiple) * multiple
        return dataclasses.replace(self, num_slots=num_slots)

    def divided(self, parts: int) -> Layout:
        """Each holder's slots cut into `parts` equal runs: part p of holder h becomes holder h parts + p.

        Slots are padded at the end of each holder to a multiple of `parts`.

        >>> contiguous(6, 2).divided(2).pieces.tolist()
        [[0, 0, 2, 0], [1, 2, 3, 0], [2, 3, 5, 0], [3, 5, 6, 0]]
        """
        if parts == 1:
            return self
        share = -(-self.num_slots // parts)
        holder, start, end, slot = self.pieces.T
        first, last = slot // share, (slot + end - start - 1) // share
        which, step = expand(last - first + 1)
        part = first[which] + step
        low = np.maximum(slot[which], part * share)
        high = np.minimum((slot + end - start)[which], (part + 1) * share)
        begin = start[which] + low - slot[which]
        pieces = np.stack([holder[which] * parts + part, begin, begin + high - low, low - part * share], axis=1)
        return Layout(
            pieces=_sorted(pieces),
            num_holders=self.num_holders * parts,
            num_slots=share,
            num_tokens=self.num_tokens,
        )


def contiguous(num_tokens: int, num_holders: int) -> Layout:
    """Equal runs of the sequence, the last ones padded.

    >>> contiguous(10, 3).pieces.tolist(), contiguous(10, 3).padding_tokens
    ([[0, 0, 4, 0], [1, 4, 8, 0], [2, 8, 10, 0]], 2)
    """
    share = -(-num_tokens // num_holders)
    start = np.minimum(np.arange(num_holders, dtype=np.int64) * share, num_tokens)
    end = np.minimum(start + share, num_tokens)
    pieces = np.stack([np.arange(num_holders), start, end, np.zeros_like(start)], axis=1)
    return Layout(pieces=_sorted(pieces), num_holders=num_holders, num_slots=share, num_tokens=num_tokens)


def zigzag(documents: IntArray, num_holders: int, *, halves: bool = False) -> Layout:
    """Every document in 2 x num_holders equal chunks, of which holder i has the i-th and the i-th from the end.

    Under a causal mask all holders then have the same work (Brandon et al. 2023, Striped Attention, show why contiguous
    runs have not; the zigzag order is that of Llama 3, Dubey et al. 2024, section 3.3.2). documents: int64 (n, 2) of
    start and end, disjoint; slots follow their order. A document is padded to a multiple of 2 x num_holders (one holder
    pads nothing). Its two chunks lie side by side; with `halves` the early chunks of all documents fill the first half
    of the slots and the late ones the second.

    >>> layout = zigzag(np.array([[0, 7], [7, 9]]), 2)
    >>> layout.pieces.tolist()
    [[0, 0, 2, 0], [0, 6, 7, 2], [0, 7, 8, 4], [1, 2, 4, 0], [1, 4, 6, 2], [1, 8, 9, 4]]
    >>> layout.num_slots, layout.padding_tokens
    (6, 3)
    """
    start, end = np.asarray(documents, dtype=np.int64).reshape(-1, 2).T
    num_tokens = int((end - start).sum())
    if num_holders == 1:
        slot = np.cumsum(end - start) - (end - start)
        pieces = np.stack([np.zeros_like(start), start, end, slot], axis=1)
        return Layout(pieces=_sorted(pieces), num_holders=1, num_slots=num_tokens, num_tokens=num_tokens)
    chunk = -(-(end - start) // (2 * num_holders))
    before = np.cumsum(chunk) - chunk
    early, late = (before, before + chunk.sum()) if halves else (2 * before, 2 * before + chunk)
    holders = np.arange(num_holders, dtype=np.int64)[:, None]
    parts = []
    for which, slot in ((holders, early), (2 * num_holders - 1 - holders, late)):
        low = np.minimum(start + which * chunk, end)
        high = np.minimum(low + chunk, end)
        parts.append(np.stack(np.broadcast_arrays(holders, low, high, slot), axis=-1).reshape(-1, 4))
    return Layout(
        pieces=_sorted(np.concatenate(parts)),
        num_holders=num_holders,
        num_slots=2 * int(chunk.sum()),
        num_tokens=num_tokens,
    )


def documents_of(docs: ArrayLike, slices: AttnSlices) -> tuple[IntArray, IntArray]:
    """Starts and ends of the documents of queries and of keys, int64 (n, 2); docs: lengths that sum to seqlen_q.

    Where a mask is a rectangle the keys are one document.

    >>> documents_of([3, 4], AttnSlices.from_rows([], seqlen_q=7, seqlen_k=7))[0].tolist()
    [[0, 3], [3, 7]]
    """
    queries = np.stack(document_bounds(docs, slices.seqlen_q), axis=1)
    square = slices.seqlen_q == slices.seqlen_k
    return queries, queries if square else np.array([[0, slices.seqlen_k]], dtype=np.int64)


def ranges(start: IntArray, end: IntArray) -> IntArray:
    """All integers of [start, end) of each pair, one after another.

    >>> ranges(np.array([3, 9]), np.array([5, 10])).tolist()
    [3, 4, 9]
    """
    which, step = expand(end - start)
    return np.asarray(start[which] + step)


def _sorted(pieces: IntArray) -> IntArray:
    kept = pieces[pieces[:, _START] < pieces[:, _END]]
    return kept[np.lexsort((kept[:, _SLOT], kept[:, _HOLDER]))]
