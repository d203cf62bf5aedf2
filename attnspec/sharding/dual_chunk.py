"""TransformerEngine's layout for context parallelism, DualChunkSwap, and what it can express. Pure.

Read: attn_forward_func_with_cp in transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py, 2.20.
Every sequence is padded to a multiple of 2 x ranks and split in zigzag, as `attnspec.sharding.layout.zigzag` does it,
whatever way of communication follows. Masks are one rectangle or packed sequences, all full or all causal, the latter
with a window where keys are not passed round a ring.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attnspec.errors import UnsupportedError
from attnspec.lower.varlen import varlen_plan
from attnspec.shape import Pass, Shape
from attnspec.sharding.calls import Task
from attnspec.sharding.layout import Layout, zigzag
from attnspec.sharding.sharding import Message, Sharding
from attnspec.slices import AttnSlices, row_counts, take
from attnspec.slices.edges import IntArray


@dataclass(frozen=True, kw_only=True, eq=False)
class DualChunk:
    """A Sharding. lengths: of the sequences, in order; causal, left: the mask inside each, left None for no window.

    own: our plan of the same algorithm, whose messages stand for the library's.
    """

    slices: AttnSlices
    shape: Shape
    lengths: IntArray
    causal: bool
    left: int | None
    layout: Layout
    own: Sharding

    @property
    def num_ranks(self) -> int:
        """Ranks that share the sequence."""
        return self.layout.num_holders

    @property
    def mesh(self) -> Mapping[str, int]:
        """That of our own plan."""
        return self.own.mesh

    @property
    def partials(self) -> int:
        """As many as our own plan makes."""
        return self.own.partials

    @property
    def packed(self) -> bool:
        """Whether tensors are packed sequences: several, or one with padding."""
        return len(self.lengths) > 1 or self.padding_tokens > 0

    @property
    def padding_tokens(self) -> int:
        """Slots without a token."""
        return self.layout.padding_tokens

    @cached_property
    def areas(self) -> tuple[int, ...]:
        """Allowed pairs times query heads of each rank."""
        counts = row_counts(self.slices)
        heads = self.shape.num_heads_q
        return tuple(int(counts[self.layout.tokens(rank)].sum()) * heads for rank in range(self.num_ranks))

    def q_tokens(self, rank: int) -> IntArray:
        """Positions of the queries that a rank holds."""
        return self.layout.tokens(rank)

    def k_tokens(self, rank: int) -> IntArray:
        """The same."""
        return self.layout.tokens(rank)

    def tasks(self, rank: int) -> tuple[Task, ...]:
        """All keys for the rank's rows; in how many calls is the library's own business."""
        every = np.array([[0, self.slices.seqlen_k, 0]], dtype=np.int64)
        pieces = self.layout.of(rank)
        slices = take(self.slices, pieces, every, seqlen_q=self.layout.num_slots, seqlen_k=self.slices.seqlen_k)
        heads = range(self.shape.num_heads_q)
        return (Task(step=0, slices=slices, q_pieces=pieces, k_pieces=every, heads_q=heads),)

    def messages(self, rank: int, pass_: Pass) -> tuple[Message, ...]:
        """Those of our own plan."""
        return self.own.messages(rank, pass_)


def dual_chunk(slices: AttnSlices, shape: Shape, cp_size: int, own: Sharding, *, windows: bool) -> DualChunk:
    """The plan for a mask. Raises UnsupportedError("no_lowering") for masks that the library cannot express.

    windows: whether this way of communication takes a sliding window.
    """
    plan = varlen_plan(slices, max_calls=1)
    call = plan.calls[0] if plan.calls else None
    whole = call is not None and call.covers_rows(slices.seqlen_q) and call.covers_keys(slices.seqlen_k) and call.square
    if call is None or not whole:
        raise UnsupportedError("no_lowering", "TransformerEngine takes sequences that cover all tokens")
    if call.kind == "window" and (call.right != 0 or not windows):
        raise UnsupportedError(
            "no_lowering", "TransformerEngine takes no such window here: only causal ones, by all_gather and a2a"
        )
    documents = np.stack([call.q_start, call.q_end], axis=1)
    layout = zigzag(documents, cp_size)
    if shape.batch > 1 and (len(documents) > 1 or layout.padding_tokens):
        raise UnsupportedError("backend", f"packed sequences are batch 1, not {shape.batch}")
    return DualChunk(
        slices=slices,
        shape=shape,
        lengths=call.q_end - call.q_start,
        causal=call.kind != "full",
        left=call.left if call.kind == "window" else None,
        layout=layout,
        own=own,
    )
