"""The plan of a library that dispatches tokens itself: what it told about it. Pure.

Bytes that a rank sends: every remote key and value once per rank that it is sent to in the forward and again in the
backward, and gradients of all that it received back to where they came from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attnspec.errors import UnsupportedError
from attnspec.params import param
from attnspec.shape import DTYPE_BYTES, Pass, Shape
from attnspec.sharding.calls import Task
from attnspec.sharding.mesh import check_several
from attnspec.sharding.sharding import Message
from attnspec.slices import AttnSlices, row_counts, take
from attnspec.slices.edges import IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchParams:
    """Parameters of a strategy whose library dispatches tokens itself."""

    chunk_size: int = param(default=2048, ge=1, tokens=True, doc="Tokens of a chunk that the dispatcher places.")
    overlap_degree: int = param(default=2, ge=1, doc="Stages into which remote keys are split to hide their transfer.")


def check_magi(shape: Shape, cp_size: int) -> None:
    """Raise UnsupportedError unless MagiAttention takes the batch, on several ranks."""
    check_several(cp_size)
    if shape.batch != 1:
        raise UnsupportedError("backend", f"MagiAttention takes packed tokens, batch 1, not {shape.batch}")


@dataclass(frozen=True, kw_only=True, eq=False)
class Dispatched:
    """A Sharding. tokens: positions that each rank holds, in its order; slots: where they lie among its num_slots.

    casts: int64 (num_ranks, num_ranks), how many keys each rank (rows) sends to each (columns) in a forward.
    handle: whatever the library wants to see again.
    """

    slices: AttnSlices
    shape: Shape
    mesh: Mapping[str, int]
    partials: int
    tokens: tuple[IntArray, ...]
    slots: tuple[IntArray, ...]
    num_slots: tuple[int, ...]
    casts: IntArray
    handle: object

    @property
    def num_ranks(self) -> int:
        """Ranks that share the sequence."""
        return len(self.tokens)

    @property
    def padding_tokens(self) -> int:
        """Slots without a token."""
        return sum(self.num_slots) - self.slices.seqlen_q

    @cached_property
    def areas(self) -> tuple[int, ...]:
        """Allowed pairs times query heads of each rank."""
        counts = row_counts(self.slices)
        return tuple(int(counts[tokens].sum()) * self.shape.num_heads_q for tokens in self.tokens)

    def q_tokens(self, rank: int) -> IntArray:
        """Positions of the queries that a rank holds."""
        return self.tokens[rank]

    def k_tokens(self, rank: int) -> IntArray:
        """The same: keys lie where queries do."""
        return self.tokens[rank]

    def tasks(self, rank: int) -> tuple[Task, ...]:
        """All keys for the rank's rows; in how many calls is the library's own business."""
        pieces = np.stack([self.tokens[rank], self.tokens[rank] + 1, self.slots[rank]], axis=1)
        every = np.array([[0, self.slices.seqlen_k, 0]], dtype=np.int64)
        seqlen_k = self.slices.seqlen_k
        slices = take(self.slices, pieces, every, seqlen_q=self.num_slots[rank], seqlen_k=seqlen_k)
        heads = range(self.shape.num_heads_q)
        return (Task(step=0, slices=slices, q_pieces=pieces, k_pieces=every, heads_q=heads),)

    def messages(self, rank: int, pass_: Pass) -> tuple[Message, ...]:
        """Keys, and on the way back gradients of them."""
        shape = self.shape
        size = 2 * shape.batch * shape.num_heads_kv * shape.head_dim * DTYPE_BYTES[shape.dtype]
        ways = [("kv", self.casts)] if pass_ != "bwd" else []
        if pass_ != "fwd":
            ways += [("kv", self.casts), ("dkv", self.casts.T)]
        made = []
        for content, counts in ways:
            for peer in range(self.num_ranks):
                sent, received = int(counts[rank, peer]) * size, int(counts[peer, rank]) * size
                if sent and peer != rank:
                    made.append(Message(kind="send", step=0, peer=peer, num_bytes=sent, content=content))
                if received and peer != rank:
                    made.append(Message(kind="receive", step=0, peer=peer, num_bytes=received, content=content))
        return tuple(made)
