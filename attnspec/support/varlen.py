"""Varlen attention calls as data: what one call computes, and its cumulative lengths. Pure; numpy only.

The semantics are FlashAttention's (docstring of `flash_attn_varlen_func`, 2.1 and later): sequences lie one after
another in packed tensors; the diagonal of a sequence is aligned to its bottom right corner.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
Int32Array = NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Packed:
    """Sequences that tile the packed queries and keys: cumulative lengths int32 (n + 1,), and the longest of each."""

    cu_seqlens_q: Int32Array
    cu_seqlens_k: Int32Array
    max_seqlen_q: int
    max_seqlen_k: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Placed:
    """Sequences anywhere in the packed tensors: lengths int32 (n,); where each starts, and the end (n + 1,)."""

    lengths_q: Int32Array
    lengths_k: Int32Array
    starts_q: Int32Array
    starts_k: Int32Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VarlenCall:
    """One call over n sequences: query q of sequence i sees key k of [k_start, k_end) where, with a = k_end - q_end,
    q + a - left <= k <= q + a + right (None: no bound). int64 arrays (n,).

    Sequences are in order: queries and keys of a later one come after those of an earlier one. Every query of a
    sequence sees a key. Queries outside all sequences see nothing.
    """

    q_start: IntArray
    q_end: IntArray
    k_start: IntArray
    k_end: IntArray
    left: int | None
    right: int | None

    @property
    def kind(self) -> Literal["full", "causal", "window"]:
        """Which flag or argument of a library says it."""
        if self.left is None and self.right in (None, 0):
            return "full" if self.right is None else "causal"
        return "window"

    @property
    def square(self) -> bool:
        """Whether all sequences have as many queries as keys, so that both alignments of a diagonal are one."""
        return bool((self.q_end - self.q_start == self.k_end - self.k_start).all())

    def covers_rows(self, seqlen_q: int) -> bool:
        """Whether every query belongs to a sequence."""
        return int((self.q_end - self.q_start).sum()) == seqlen_q

    def covers_keys(self, seqlen_k: int) -> bool:
        """Whether every key belongs to a sequence."""
        return int((self.k_end - self.k_start).sum()) == seqlen_k

    def is_rectangle(self, seqlen_q: int, seqlen_k: int) -> bool:
        """Whether this is one sequence over all queries and keys, so that a call without cu_seqlens says it.

        Rows above the sequence count as its own where the right bound leaves them without keys.
        """
        if len(self.q_start) != 1 or self.q_end[0] != seqlen_q or self.k_start[0] != 0 or self.k_end[0] != seqlen_k:
            return False
        return bool(
            self.q_start[0] == 0 or (self.right is not None and seqlen_k - seqlen_q + self.right <= -self.q_start[0])
        )

    def boxed(self) -> tuple[VarlenCall, slice, slice]:
        """The call over no more queries and keys than it needs, and which these are."""
        rows = slice(int(self.q_start[0]), int(self.q_end[-1]))
        keys = slice(int(self.k_start[0]), int(self.k_end[-1]))
        call = VarlenCall(
            q_start=self.q_start - rows.start,
            q_end=self.q_end - rows.start,
            k_start=self.k_start - keys.start,
            k_end=self.k_end - keys.start,
            left=self.left,
            right=self.right,
        )
        return call, rows, keys

    def packed(self, seqlen_q: int, seqlen_k: int, batch: int = 1) -> Packed:
        """Cumulative lengths over `batch` rows one after another.

        Queries outside all sequences become sequences without keys, keys outside all become sequences without queries.

        >>> one = np.array([1]), np.array([3]), np.array([2]), np.array([4])
        >>> call = VarlenCall(q_start=one[0], q_end=one[1], k_start=one[2], k_end=one[3], left=None, right=0)
        >>> made = call.packed(3, 5)
        >>> made.cu_seqlens_q.tolist(), made.cu_seqlens_k.tolist()
        ([0, 1, 1, 3, 3], [0, 0, 2, 4, 5])
        """
        gaps_q = np.append(self.q_start, seqlen_q) - np.insert(self.q_end, 0, 0)
        gaps_k = np.append(self.k_start, seqlen_k) - np.insert(self.k_end, 0, 0)
        nothing = np.zeros_like(gaps_q)
        own_q = np.append(self.q_end - self.q_start, 0)
        own_k = np.append(self.k_end - self.k_start, 0)
        lengths_q = np.stack([gaps_q, nothing, own_q], axis=1).reshape(-1)
        lengths_k = np.stack([nothing, gaps_k, own_k], axis=1).reshape(-1)
        kept = (lengths_q > 0) | (lengths_k > 0)
        lengths_q, lengths_k = np.tile(lengths_q[kept], batch), np.tile(lengths_k[kept], batch)
        return Packed(
            cu_seqlens_q=_cumulative(lengths_q),
            cu_seqlens_k=_cumulative(lengths_k),
            max_seqlen_q=int(lengths_q.max(initial=0)),
            max_seqlen_k=int(lengths_k.max(initial=0)),
        )

    def placed(self, seqlen_q: int, seqlen_k: int, batch: int = 1) -> Placed:
        """Lengths and starts over `batch` rows one after another, for libraries that let packed tensors have gaps."""
        row = np.repeat(np.arange(batch), len(self.q_start))
        return Placed(
            lengths_q=np.tile(self.q_end - self.q_start, batch).astype(np.int32),
            lengths_k=np.tile(self.k_end - self.k_start, batch).astype(np.int32),
            starts_q=np.append(np.tile(self.q_start, batch) + row * seqlen_q, batch * seqlen_q).astype(np.int32),
            starts_k=np.append(np.tile(self.k_start, batch) + row * seqlen_k, batch * seqlen_k).astype(np.int32),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VarlenPlan:
    """A mask as calls over disjoint cells, whose outputs are merged by log-sum-exp. No call: an empty mask."""

    calls: tuple[VarlenCall, ...]
    seqlen_q: int
    seqlen_k: int

    @property
    def num_calls(self) -> int:
        """Calls of the library per forward, and per backward."""
        return len(self.calls)


def _cumulative(lengths: IntArray) -> Int32Array:
    return np.insert(np.cumsum(lengths), 0, 0).astype(np.int32)
