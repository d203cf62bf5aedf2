"""Plans of libraries that compute packed sequences their own way, for comparison with ours. Pure.

Such a library is told the sequences and gets the tokens of a rank in an order that it prescribes; what it sends follows
from its source, and is said here as a count of sends: what a rank holds of K and V, and gradients of that. In a head
group of U ranks, for L slots of a rank, H and G query and key/value heads, D the head dimension, e the bytes of an
element and B the batch, all-to-alls move B L D e (U-1)/U (2 H + 2 G), in the forward and in the backward.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from attnspec.errors import UnsupportedError
from attnspec.lower.varlen import varlen_plan
from attnspec.shape import DTYPE_BYTES, Pass, Shape
from attnspec.sharding.calls import Task
from attnspec.sharding.layout import Layout
from attnspec.sharding.mesh import Mesh
from attnspec.sharding.sharding import Message
from attnspec.slices import AttnSlices, row_counts, take
from attnspec.slices.edges import IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sequences:
    """A mask as libraries say it. bounds: int64 (n, 2), start and end of each; left: of a causal window, else None."""

    bounds: IntArray
    causal: bool
    left: int | None

    @property
    def lengths(self) -> IntArray:
        """Of each, int64 (n,)."""
        return np.asarray(self.bounds[:, 1] - self.bounds[:, 0])

    def __len__(self) -> int:
        return len(self.bounds)


def sequences_of(slices: AttnSlices, library: str) -> Sequences:
    """The sequences that a mask is: they cover all tokens, all are full, or all causal, these perhaps with a window.

    Raises UnsupportedError("no_lowering") naming the library for any other mask.
    """
    plan = varlen_plan(slices, max_calls=1)
    call = plan.calls[0] if plan.calls else None
    if call is None or not (call.covers_rows(slices.seqlen_q) and call.covers_keys(slices.seqlen_k) and call.square):
        raise UnsupportedError("no_lowering", f"{library} takes sequences that cover all tokens")
    if call.kind == "window" and call.right != 0:
        raise UnsupportedError("no_lowering", f"{library} takes causal windows only")
    return Sequences(
        bounds=np.stack([call.q_start, call.q_end], axis=1),
        causal=call.kind != "full",
        left=call.left if call.kind == "window" else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """How often a rank sends as many bytes as its own K and V have, and as many elements as gradients of them."""

    keys_forward: int
    keys_backward: int
    grads_backward: int
    grad_bytes: int | None = None
    """Of an element of these gradients; as the inputs where None."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Adapted:
    """A Sharding. layout: what each rank holds. degrees: who shares heads, who passes keys on.

    gathers: keys are not passed on step by step, but gathered before one step. varlen: tensors are packed sequences,
    even where one sequence is all. settings: what the library is told beside.
    """

    slices: AttnSlices
    shape: Shape
    sequences: Sequences
    layout: Layout
    degrees: Mesh
    traffic: Traffic
    gathers: bool = False
    varlen: bool = False
    settings: Mapping[str, int] = field(default_factory=dict)

    @property
    def num_ranks(self) -> int:
        """Ranks that share the sequence."""
        return self.degrees.size

    @property
    def mesh(self) -> Mapping[str, int]:
        """Degrees, for the record, named as in our own strategies."""
        if self.gathers:
            return {"allgather_degree": self.num_ranks, **self.settings}
        return {"ulysses_degree": self.degrees.ulysses_degree, "ring_degree": self.degrees.ring_degree}

    @property
    def partials(self) -> int:
        """One for each step."""
        return 1 if self.gathers else self.degrees.ring_degree

    @property
    def packed(self) -> bool:
        """Whether tensors are packed sequences: several, or one with padding."""
        return self.varlen or len(self.sequences) > 1 or self.padding_tokens > 0

    @property
    def padding_tokens(self) -> int:
        """Slots without a token."""
        return self.layout.padding_tokens

    @cached_property
    def areas(self) -> tuple[int, ...]:
        """Allowed pairs times query heads of each rank."""
        counts = row_counts(self.slices)
        held = [int(counts[self.layout.tokens(rank)].sum()) for rank in range(self.num_ranks)]
        heads = self.shape.num_heads_q // self.degrees.ulysses_degree
        return tuple(sum(held[one] for one in self._group(rank)) * heads for rank in range(self.num_ranks))

    def q_tokens(self, rank: int) -> IntArray:
        """Positions of the queries that a rank holds."""
        return self.layout.tokens(rank)

    def k_tokens(self, rank: int) -> IntArray:
        """The same."""
        return self.layout.tokens(rank)

    def tasks(self, rank: int) -> tuple[Task, ...]:
        """The rows of a head group for the rank's heads; in how many calls is the library's own business."""
        group, num_slots = self._group(rank), self.layout.num_slots
        every = np.array([[0, self.slices.seqlen_k, 0]], dtype=np.int64)
        pieces = np.concatenate([self.layout.of(one) + np.array([0, 0, n * num_slots]) for n, one in enumerate(group)])
        slices = take(self.slices, pieces, every, seqlen_q=len(group) * num_slots, seqlen_k=self.slices.seqlen_k)
        heads, head = self.shape.num_heads_q // len(group), group.index(rank)
        return (
            Task(
                step=0,
                slices=slices,
                q_pieces=pieces,
                k_pieces=every,
                heads_q=range(head * heads, (head + 1) * heads),
            ),
        )

    def messages(self, rank: int, pass_: Pass) -> tuple[Message, ...]:
        """What a rank sends and receives."""
        shape, group = self.shape, self._group(rank)
        ring = self.degrees.ring(self.degrees.place(rank)[0])
        element = DTYPE_BYTES[shape.dtype]
        vectors = shape.batch * self.layout.num_slots * shape.head_dim
        made: list[Message] = []

        def both(step: int, to: int, of: int, num_bytes: int, content: str) -> None:
            made.append(Message(kind="send", step=step, peer=to, num_bytes=num_bytes, content=content))
            made.append(Message(kind="receive", step=step, peer=of, num_bytes=num_bytes, content=content))

        def exchange(content: str, num_heads: int) -> None:
            for peer in group:
                if peer != rank:
                    both(0, peer, peer, vectors * num_heads // len(group) * element, content)

        def passed_on(content: str, times: int, element_bytes: int) -> None:
            place = ring.index(rank)
            to, of = ring[(place + 1) % len(ring)], ring[(place - 1) % len(ring)]
            for step in range(times if len(ring) > 1 else 0):
                both(step, to, of, 2 * vectors * shape.num_heads_kv * element_bytes, content)

        if pass_ != "bwd":
            exchange("q", shape.num_heads_q)
            exchange("kv", 2 * shape.num_heads_kv)
            passed_on("kv", self.traffic.keys_forward, element)
            exchange("out", shape.num_heads_q)
        if pass_ != "fwd":
            exchange("dout", shape.num_heads_q)
            passed_on("kv", self.traffic.keys_backward, element)
            passed_on("dkv", self.traffic.grads_backward, self.traffic.grad_bytes or element)
            exchange("dq", shape.num_heads_q)
            exchange("dkv", 2 * shape.num_heads_kv)
        return tuple(made)

    def _group(self, rank: int) -> tuple[int, ...]:
        return self.degrees.head_group(self.degrees.place(rank)[1])
