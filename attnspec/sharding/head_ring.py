"""Head groups and rings together: what ulysses, ring_p2p, usp and loongtrain share. Pure.

The sequence is split in zigzag over the places of a ring, and each place's slots over the ranks of its head group. An
all-to-all gives each rank of the group all slots of the place for a share of the heads; with these it goes round the
ring of its equals. A head group alone is DeepSpeed-Ulysses, a ring alone Ring Attention, both USP (Fang and Zhao 2024),
with a double ring LoongTrain (Gu et al. 2024).

Bytes that a rank sends, with U and R the degrees, L the slots of a rank, H and G query and key/value heads, D the head
dimension, e the bytes of an element, B the batch, and g = max(G/U, 1):
all-to-all, forward: B L D e (U-1) (2 H/U + 2 g); backward: the same (dO for q; dq, dk, dv for out, k, v);
ring, forward: (R-1) 2 B U L g D e; backward: keys (R-2) of that, gradients R-1, of which those that are sums already
(in a ring R-2) travel as float32 where e is 2.
Jacobs et al. give 4 N h / P for U = P, H = G; Liu et al. 2 N h (P-1)/P for the ring's forward. These hold where nobody
is left out because a mask needs no keys from him, and but for the ends of the tree of a double ring: that has R/W ends
of W places, so R-1-R/W keys travel in the backward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from attnspec.shape import DTYPE_BYTES, Pass, Shape
from attnspec.sharding.calls import Call, Task, call_over
from attnspec.sharding.heads import HeadSplit
from attnspec.sharding.layout import Layout
from attnspec.sharding.mesh import Mesh
from attnspec.sharding.needs import needs
from attnspec.sharding.routes import Routes, Transfer, routes
from attnspec.sharding.sharding import Message
from attnspec.slices import AttnSlices, row_counts, take
from attnspec.slices.edges import IntArray

WIDE_BYTES = 4
"""Element size of sums of gradients in 16-bit types."""


def ring_mask(slices: AttnSlices, queries: Layout, keys: Layout, place: int, of: int) -> AttnSlices:
    """The mask between the query slots of one place and the key slots of another."""
    return take(slices, queries.of(place), keys.of(of), seqlen_q=queries.num_slots, seqlen_k=keys.num_slots)


def ring_calls(slices: AttnSlices, queries: Layout, keys: Layout, ways: Routes, place: int) -> tuple[Call | None, ...]:
    """What a place computes at each step; None where the mask allows nothing."""
    made: list[Call | None] = []
    for step in range(ways.num_places):
        needed = bool(ways.held[place, step])
        of = ways.owner(place, step)
        made.append(call_over(ring_mask(slices, queries, keys, place, of)) if needed else None)
    return tuple(made)


def ring_messages(
    ways: Routes, place: int, ranks: Sequence[int], kv_bytes: int, wide: int, pass_: Pass
) -> list[Message]:
    """What the rank at a place of a ring sends and receives. `ranks` are those of the ring; `wide` is the factor by
    which sums of gradients are larger than keys."""
    made: list[Message] = []

    def add(transfers: Sequence[Transfer], content: str) -> None:
        for one in transfers:
            num_bytes = kv_bytes * (wide if one.added else 1)
            if one.source == place:
                made.append(
                    Message(kind="send", step=one.start, peer=ranks[one.target], num_bytes=num_bytes, content=content)
                )
            if one.target == place:
                made.append(
                    Message(kind="receive", step=one.due, peer=ranks[one.source], num_bytes=num_bytes, content=content)
                )

    if pass_ != "bwd":
        add(ways.forward, "kv")
    if pass_ != "fwd":
        add(ways.backward_keys, "kv")
        add(ways.backward_grads, "dkv")
    return made


def widening(shape: Shape) -> int:
    """By which factor sums of gradients are wider than the element type."""
    return max(WIDE_BYTES // DTYPE_BYTES[shape.dtype], 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadRing:
    """A Sharding. q_ring, k_ring: what the places of the ring hold, before head groups divide it. window: places of an
    inner ring, None for a single ring."""

    slices: AttnSlices
    split: HeadSplit
    ring_degree: int
    window: int | None
    q_ring: Layout
    k_ring: Layout

    @property
    def kernel_shape(self) -> Shape:
        """Of every call of a kernel."""
        return self.split.local_shape

    @property
    def shape(self) -> Shape:
        """Heads and sizes of the whole problem."""
        return self.split.shape

    @cached_property
    def ranks(self) -> Mesh:
        """Who is where."""
        return Mesh(ulysses_degree=self.split.degree, ring_degree=self.ring_degree)

    @property
    def num_ranks(self) -> int:
        """Ranks that share the sequence."""
        return self.ranks.size

    @property
    def mesh(self) -> Mapping[str, int]:
        """Degrees, for the record."""
        degrees = {"ulysses_degree": self.split.degree, "ring_degree": self.ring_degree}
        return degrees if self.window is None else {**degrees, "window": self.window}

    @cached_property
    def queries(self) -> Layout:
        """What the ranks hold of the queries."""
        return self.q_ring.divided(self.split.degree)

    @cached_property
    def keys(self) -> Layout:
        """What the ranks hold of the keys."""
        return self.k_ring.divided(self.split.degree)

    @cached_property
    def needs(self) -> NDArray[np.bool_]:
        """Which place sees keys of which."""
        return needs(self.slices, self.q_ring, self.k_ring)

    @cached_property
    def ways(self) -> Routes:
        """Who sends keys to whom."""
        return routes(self.needs, self.window)

    @property
    def partials(self) -> int:
        """Steps that compute something, at most."""
        return max(int(self.needs.sum(axis=1).max()), 1)

    @property
    def padding_tokens(self) -> int:
        """Slots of the queries' layout without a token."""
        return self.queries.padding_tokens

    @cached_property
    def areas(self) -> tuple[int, ...]:
        """Allowed pairs times query heads of each rank."""
        counts = row_counts(self.slices)
        heads = self.shape.num_heads_q // self.split.degree
        of_places = [int(counts[self.q_ring.tokens(place)].sum()) * heads for place in range(self.ring_degree)]
        return tuple(of_places[self.ranks.place(rank)[1]] for rank in range(self.num_ranks))

    def q_tokens(self, rank: int) -> IntArray:
        """Positions of the queries that a rank holds."""
        return self.queries.tokens(rank)

    def k_tokens(self, rank: int) -> IntArray:
        """Positions of the keys that a rank holds."""
        return self.keys.tokens(rank)

    def whole(self) -> AttnSlices:
        """The mask over all slots, where the ring has one place."""
        return ring_mask(self.slices, self.q_ring, self.k_ring, 0, 0)

    def calls(self, rank: int) -> tuple[Call | None, ...]:
        """What a rank computes at each step of the ring, between the slots of places."""
        place = self.ranks.place(rank)[1]
        return ring_calls(self.slices, self.q_ring, self.k_ring, self.ways, place)

    def tasks(self, rank: int) -> tuple[Task, ...]:
        """What a rank computes."""
        head, place = self.ranks.place(rank)
        made = []
        for stage in range(self.split.stages):
            for step in range(self.ring_degree):
                of = self.ways.owner(place, step)
                if self.ways.held[place, step]:
                    made.append(
                        Task(
                            step=step,
                            slices=ring_mask(self.slices, self.q_ring, self.k_ring, place, of),
                            q_pieces=self.q_ring.of(place),
                            k_pieces=self.k_ring.of(of),
                            heads_q=self.split.heads_q(head, stage),
                        )
                    )
        return tuple(made)

    def messages(self, rank: int, pass_: Pass) -> tuple[Message, ...]:
        """What a rank sends and receives, over all stages."""
        head, place = self.ranks.place(rank)
        split, shape = self.split, self.shape
        vector = shape.batch * shape.head_dim * DTYPE_BYTES[shape.dtype]
        heads_q, heads_kv = split.num_heads_q * split.stages, split.num_heads_kv * split.stages
        q_bytes = vector * self.queries.num_slots * heads_q
        kv_bytes = 2 * vector * self.keys.num_slots * heads_kv
        made: list[Message] = []

        def exchange(step: int, content: str, num_bytes: int) -> None:
            for peer in self.ranks.head_group(place):
                if peer != rank:
                    made.append(Message(kind="send", step=step, peer=peer, num_bytes=num_bytes, content=content))
                    made.append(Message(kind="receive", step=step, peer=peer, num_bytes=num_bytes, content=content))

        ring_bytes = kv_bytes * split.degree
        last = self.ring_degree - 1
        if pass_ != "bwd":
            exchange(0, "q", q_bytes)
            exchange(0, "kv", kv_bytes)
            made += ring_messages(self.ways, place, self.ranks.ring(head), ring_bytes, widening(shape), "fwd")
            exchange(last, "out", q_bytes)
        if pass_ != "fwd":
            exchange(last, "dout", q_bytes)
            made += ring_messages(self.ways, place, self.ranks.ring(head), ring_bytes, widening(shape), "bwd")
            exchange(0, "dq", q_bytes)
            exchange(0, "dkv", kv_bytes)
        return tuple(made)
