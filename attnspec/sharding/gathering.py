"""Gathering all keys on all ranks: what ring_allgather does. Pure.

Queries lie in zigzag, so that causal work is even; every rank gathers the keys and values of all, brings them into the
order of the sequence and computes its rows; gradients of keys are reduced and scattered. This is the context
parallelism of Llama 3 (Dubey et al. 2024, section 3.3.2), per document.

Bytes that a rank sends, with P ranks, L slots of keys a rank, G key/value heads, D the head dimension, e the bytes of
an element, B the batch: gather (P-1) 2 B L G D e, in the forward and again in the backward; reduce-scatter the same
with float32 elements where P > 2 and e is 2. These are the bytes of the ring algorithms, which are the fewest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attnspec.shape import DTYPE_BYTES, Pass, Shape
from attnspec.sharding.calls import Call, Task, call_over
from attnspec.sharding.head_ring import widening
from attnspec.sharding.layout import Layout
from attnspec.sharding.sharding import Message
from attnspec.slices import AttnSlices, clip, row_counts, take
from attnspec.slices.edges import IntArray


@dataclass(frozen=True, kw_only=True, eq=False)
class Gathering:
    """A Sharding. queries: zigzag in halves, so that the rows of each half are one call of a kernel."""

    slices: AttnSlices
    shape: Shape
    queries: Layout
    keys: Layout

    @property
    def kernel_shape(self) -> Shape:
        """Of every call of a kernel."""
        return self.shape

    @property
    def num_ranks(self) -> int:
        """Ranks that share the sequence."""
        return self.queries.num_holders

    @property
    def mesh(self) -> Mapping[str, int]:
        """One group."""
        return {"allgather_degree": self.num_ranks}

    @property
    def partials(self) -> int:
        """Every row sees all its keys at once."""
        return 1

    @property
    def padding_tokens(self) -> int:
        """Slots of queries without a token."""
        return self.queries.padding_tokens

    @cached_property
    def areas(self) -> tuple[int, ...]:
        """Allowed pairs times query heads of each rank."""
        counts = row_counts(self.slices)
        return tuple(
            int(counts[self.queries.tokens(rank)].sum()) * self.shape.num_heads_q for rank in range(self.num_ranks)
        )

    @property
    def widening(self) -> int:
        """By which factor gradients are wider than keys while they are reduced."""
        return widening(self.shape) if self.num_ranks > 2 else 1

    def q_tokens(self, rank: int) -> IntArray:
        """Positions of the queries that a rank holds."""
        return self.queries.tokens(rank)

    def k_tokens(self, rank: int) -> IntArray:
        """Positions of the keys that a rank holds."""
        return self.keys.tokens(rank)

    def calls(self, rank: int) -> tuple[Call, ...]:
        """What a rank computes: calls over different rows, keys in the order of the sequence."""
        (task,) = self.tasks(rank)
        half = self.queries.num_slots // 2
        bounds = [(0, half), (half, 2 * half)] if self.num_ranks > 1 else [(0, self.queries.num_slots)]
        made = [call_over(clip(task.slices, start, end, 0, self.slices.seqlen_k)) for start, end in bounds]
        return tuple(call for call in made if call is not None)

    def tasks(self, rank: int) -> tuple[Task, ...]:
        """What a rank computes, as one task."""
        every = np.array([[0, self.slices.seqlen_k, 0]], dtype=np.int64)
        pieces = self.queries.of(rank)
        slices = take(self.slices, pieces, every, seqlen_q=self.queries.num_slots, seqlen_k=self.slices.seqlen_k)
        heads = range(self.shape.num_heads_q)
        return (Task(step=0, slices=slices, q_pieces=pieces, k_pieces=every, heads_q=heads),)

    def messages(self, rank: int, pass_: Pass) -> tuple[Message, ...]:
        """As a ring collective sends them: round after round to the next rank, from the one before."""
        shape = self.shape
        kv_bytes = (
            2 * shape.batch * self.keys.num_slots * shape.num_heads_kv * shape.head_dim * DTYPE_BYTES[shape.dtype]
        )
        rounds = [] if pass_ == "bwd" else [("kv", kv_bytes)]
        if pass_ != "fwd":
            rounds += [("kv", kv_bytes), ("dkv", kv_bytes * self.widening)]
        after, before = (rank + 1) % self.num_ranks, (rank - 1) % self.num_ranks
        made = []
        for content, num_bytes in rounds:
            for step in range(self.num_ranks - 1):
                made.append(Message(kind="send", step=step, peer=after, num_bytes=num_bytes, content=content))
                made.append(Message(kind="receive", step=step, peer=before, num_bytes=num_bytes, content=content))
        return tuple(made)
