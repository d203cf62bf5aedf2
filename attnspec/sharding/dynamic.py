"""Samples on groups of ranks of their own size: what hybrid_dcp does. Pure.

Tokens live in equal runs of the sequence. An all-to-all brings each sample to its group, where it is split in zigzag
and goes round a ring (`attnspec.sharding.head_ring`); outputs go back. Groups of one size work side by side, the
largest first. Megatron Core moves samples outside attention, where its figures leave it out; `reshard` false does so.

Bytes that a rank sends, with M its tokens that work elsewhere, W the tokens that work here and live elsewhere, H and G
query and key/value heads, D the head dimension, e the bytes of an element, B the batch: B D e times M (H + 2 G) + W H
in the forward, M H + W (H + 2 G) in the backward; and the rings', each as in head_ring with its own samples' slots.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from attnspec.shape import DTYPE_BYTES, Pass, Shape
from attnspec.sharding.calls import Call, Task
from attnspec.sharding.head_ring import ring_calls, ring_mask, ring_messages, widening
from attnspec.sharding.layout import Layout, contiguous
from attnspec.sharding.needs import needs
from attnspec.sharding.reshard import Moves, Placed, moves
from attnspec.sharding.routes import Routes, routes
from attnspec.sharding.sharding import Message
from attnspec.slices import AttnSlices, row_counts
from attnspec.slices.edges import IntArray


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupRing:
    """The samples of one group of ranks, which begin at `first_rank`."""

    slices: AttnSlices
    first_rank: int
    queries: Layout
    keys: Layout

    @property
    def size(self) -> int:
        """Ranks of the group."""
        return self.queries.num_holders

    @property
    def ranks(self) -> range:
        """These ranks."""
        return range(self.first_rank, self.first_rank + self.size)

    @cached_property
    def needs(self) -> NDArray[np.bool_]:
        """Which place sees keys of which."""
        return needs(self.slices, self.queries, self.keys)

    @cached_property
    def ways(self) -> Routes:
        """Who sends keys to whom."""
        return routes(self.needs)

    def calls(self, place: int) -> tuple[Call | None, ...]:
        """What a place computes at each step."""
        return ring_calls(self.slices, self.queries, self.keys, self.ways, place)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Section:
    """A rank's part of one group: its place in the ring, and the first of its slots among all of the rank's."""

    ring: GroupRing
    place: int
    q_start: int
    k_start: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Dynamic:
    """A Sharding. groups: largest first; those of one size share no rank. reshard: whether tokens are brought and
    fetched as part of the work."""

    slices: AttnSlices
    shape: Shape
    num_ranks: int
    groups: tuple[GroupRing, ...]
    reshard: bool

    @property
    def kernel_shape(self) -> Shape:
        """Of every call of a kernel."""
        return self.shape

    @property
    def mesh(self) -> Mapping[str, int]:
        """Groups of each size."""
        sizes = [group.size for group in self.groups]
        return {f"groups_of_{size}": sizes.count(size) for size in sorted(set(sizes), reverse=True)}

    @property
    def partials(self) -> int:
        """Steps that compute something, at most."""
        return max((int(group.needs.sum(axis=1).max(initial=0)) for group in self.groups), default=1) or 1

    @property
    def padding_tokens(self) -> int:
        """Slots of queries without a token, where they work."""
        return sum(group.queries.padding_tokens for group in self.groups)

    @cached_property
    def areas(self) -> tuple[int, ...]:
        """Allowed pairs times query heads of each rank."""
        counts = row_counts(self.slices)
        found = [0] * self.num_ranks
        for group in self.groups:
            for place, rank in enumerate(group.ranks):
                found[rank] += int(counts[group.queries.tokens(place)].sum()) * self.shape.num_heads_q
        return tuple(found)

    def sections(self, rank: int) -> tuple[Section, ...]:
        """The groups that a rank is in, largest first."""
        made, q_start, k_start = [], 0, 0
        for group in self.groups:
            if rank in group.ranks:
                made.append(Section(ring=group, place=rank - group.first_rank, q_start=q_start, k_start=k_start))
                q_start += group.queries.num_slots
                k_start += group.keys.num_slots
        return tuple(made)

    def num_slots(self, rank: int) -> tuple[int, int]:
        """Slots of a rank's queries and keys while it works."""
        held = self.sections(rank)
        return sum(one.ring.queries.num_slots for one in held), sum(one.ring.keys.num_slots for one in held)

    @cached_property
    def home(self) -> tuple[Layout, Layout]:
        """Where queries and keys live."""
        slices = self.slices
        return contiguous(slices.seqlen_q, self.num_ranks), contiguous(slices.seqlen_k, self.num_ranks)

    def q_tokens(self, rank: int) -> IntArray:
        """Positions of the queries that a rank holds."""
        if self.reshard:
            return self.home[0].tokens(rank)
        return _joined([one.ring.queries.tokens(one.place) for one in self.sections(rank)])

    def k_tokens(self, rank: int) -> IntArray:
        """Positions of the keys that a rank holds."""
        if self.reshard:
            return self.home[1].tokens(rank)
        return _joined([one.ring.keys.tokens(one.place) for one in self.sections(rank)])

    def q_slots(self, rank: int) -> IntArray:
        """The slots in which a rank works on its queries, without padding."""
        return _joined([one.q_start + one.ring.queries.slots(one.place) for one in self.sections(rank)])

    def k_slots(self, rank: int) -> IntArray:
        """The slots in which a rank works on its keys, without padding."""
        return _joined([one.k_start + one.ring.keys.slots(one.place) for one in self.sections(rank)])

    def q_moves(self, rank: int) -> Moves:
        """Queries of a rank on their way to work."""
        return moves(self._homes[0], self._work[0], rank, self.num_ranks)

    def k_moves(self, rank: int) -> Moves:
        """Keys of a rank on their way to work."""
        return moves(self._homes[1], self._work[1], rank, self.num_ranks)

    def tasks(self, rank: int) -> tuple[Task, ...]:
        """What a rank computes."""
        made = []
        for section in self.sections(rank):
            ring, place = section.ring, section.place
            for step in range(ring.size):
                of = ring.ways.owner(place, step)
                if ring.ways.held[place, step]:
                    made.append(
                        Task(
                            step=step,
                            slices=ring_mask(self.slices, ring.queries, ring.keys, place, of),
                            q_pieces=ring.queries.of(place),
                            k_pieces=ring.keys.of(of),
                            heads_q=range(self.shape.num_heads_q),
                        )
                    )
        return tuple(made)

    def messages(self, rank: int, pass_: Pass) -> tuple[Message, ...]:
        """What a rank sends and receives, group after group."""
        shape = self.shape
        vector = shape.batch * shape.head_dim * DTYPE_BYTES[shape.dtype]
        q_vector, kv_vector = vector * shape.num_heads_q, 2 * vector * shape.num_heads_kv
        made: list[Message] = []

        def carry(content: str, counts: IntArray, vector_bytes: int) -> None:
            """counts: tokens that go from each rank (rows) to each (columns)."""
            for peer in range(self.num_ranks):
                sent, received = int(counts[rank, peer]) * vector_bytes, int(counts[peer, rank]) * vector_bytes
                if sent and peer != rank:
                    made.append(Message(kind="send", step=0, peer=peer, num_bytes=sent, content=content))
                if received and peer != rank:
                    made.append(Message(kind="receive", step=0, peer=peer, num_bytes=received, content=content))

        for direction in ("fwd", "bwd") if pass_ == "fwd_bwd" else (pass_,):
            if self.reshard:
                carry("q" if direction == "fwd" else "dout", self._counts[0], q_vector)
                if direction == "fwd":
                    carry("kv", self._counts[1], kv_vector)
            for section in self.sections(rank):
                ring = section.ring
                kv_bytes = kv_vector * ring.keys.num_slots
                made += ring_messages(ring.ways, section.place, ring.ranks, kv_bytes, widening(shape), direction)
            if self.reshard:
                carry("out" if direction == "fwd" else "dq", self._counts[0].T, q_vector)
                if direction == "bwd":
                    carry("dkv", self._counts[1].T, kv_vector)
        return tuple(made)

    @cached_property
    def _counts(self) -> tuple[IntArray, IntArray]:
        """Queries and keys that live on each rank (rows) and work on each (columns)."""
        made = []
        for home, work in zip(self._homes, self._work, strict=True):
            pairs = np.bincount(home.rank * self.num_ranks + work.rank, minlength=self.num_ranks**2)
            made.append(pairs.reshape(self.num_ranks, self.num_ranks))
        return made[0], made[1]

    @cached_property
    def _homes(self) -> tuple[Placed, Placed]:
        """Where queries and keys live: of every token the rank and its slot there."""
        queries, keys = self.home
        return _placed(queries), _placed(keys)

    @cached_property
    def _work(self) -> tuple[Placed, Placed]:
        """Where queries and keys work: of every token the rank and its slot there."""
        made = []
        for seqlen, of_keys in ((self.slices.seqlen_q, False), (self.slices.seqlen_k, True)):
            at_rank, at_slot = np.zeros(seqlen, dtype=np.int64), np.zeros(seqlen, dtype=np.int64)
            for rank in range(self.num_ranks):
                for one in self.sections(rank):
                    layout = one.ring.keys if of_keys else one.ring.queries
                    tokens = layout.tokens(one.place)
                    at_rank[tokens] = rank
                    at_slot[tokens] = layout.slots(one.place) + (one.k_start if of_keys else one.q_start)
            made.append(Placed(rank=at_rank, slot=at_slot))
        return made[0], made[1]


def _placed(layout: Layout) -> Placed:
    places = layout.places()
    return Placed(rank=places // max(layout.num_slots, 1), slot=places % max(layout.num_slots, 1))


def _joined(parts: list[IntArray]) -> IntArray:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
