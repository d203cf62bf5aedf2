"""Splitting heads over the ranks of a head group, in stages. Pure.

DeepSpeed-Ulysses (Jacobs et al. 2023): an all-to-all turns shards of the sequence with all heads into the whole
sequence with a share of the heads. A key/value head whose queries lie on several ranks is sent to all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from attnspec.shape import DTYPE_BYTES, Shape
from attnspec.slices import AttnSlices, row_counts

MOST_FLOPS_PER_BYTE = 80_000
"""In two stages up to here: at 58,000 (64:8 heads, full, 32K tokens on two ranks) two were as fast as one or faster, at
117,000 (64K) 3 percent slower in the backward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSplit:
    """`degree` ranks share the heads of `shape`, each rank's share in `stages` equal parts, one after another."""

    shape: Shape
    degree: int
    stages: int

    @property
    def num_heads_q(self) -> int:
        """Query heads of one stage on one rank."""
        return self.shape.num_heads_q // (self.degree * self.stages)

    @property
    def num_heads_kv(self) -> int:
        """Key/value heads of one stage on one rank."""
        return max(self.shape.num_heads_kv // (self.degree * self.stages), 1)

    @property
    def copies(self) -> int:
        """On how many ranks each key/value head is."""
        return max(self.degree // self.shape.num_heads_kv, 1)

    @property
    def local_shape(self) -> Shape:
        """The shape of a kernel's problem."""
        shape = self.shape
        return Shape(
            batch=shape.batch,
            num_heads_q=self.num_heads_q,
            num_heads_kv=self.num_heads_kv,
            head_dim=shape.head_dim,
            dtype=shape.dtype,
        )

    def heads_q(self, member: int, stage: int) -> range:
        """Query heads of a member of the group in a stage.

        >>> shape = Shape(batch=1, num_heads_q=8, num_heads_kv=2, head_dim=64, dtype="bfloat16")
        >>> split = HeadSplit(shape=shape, degree=4, stages=1)
        >>> split.heads_q(2, 0), split.heads_kv(2, 0), split.copies
        (range(4, 6), range(1, 2), 2)
        """
        first = (member * self.stages + stage) * self.num_heads_q
        return range(first, first + self.num_heads_q)

    def heads_kv(self, member: int, stage: int) -> range:
        """The key/value heads that these queries share."""
        first = self.heads_q(member, stage).start // self.shape.group_size
        return range(first, first + self.num_heads_kv)


def split_heads(shape: Shape, degree: int, slices: AttnSlices | None = None) -> HeadSplit:
    """The split. In one stage but where each rank computes all of `slices` for its heads: see `num_stages`."""
    return HeadSplit(shape=shape, degree=degree, stages=1 if slices is None else num_stages(shape, degree, slices))


def num_stages(shape: Shape, degree: int, slices: AttnSlices) -> int:
    """Two, so that half of the messages go beside computation, or three where a rank's key/value heads are odd.

    One where nothing divides, and where messages are little beside computation: more calls then cost more than the
    messages do. Two H200, each against one and four stages by turns: docs/adr/0013-messages-and-kernels-share-sms.md.
    """
    share = shape.num_heads_kv // degree
    if degree == 1 or share == 0 or flops_per_byte(shape, degree, slices) > MOST_FLOPS_PER_BYTE:
        return 1
    return next((n for n in (2, 3) if share % n == 0), 1)


def flops_per_byte(shape: Shape, degree: int, slices: AttnSlices) -> float:
    """A rank's forward FLOPs (4 for each allowed pair, query head and head dimension) over the bytes it sends in it.

    Infinite for one rank. The bytes are those of `attnspec.sharding.head_ring`, without padding.
    """
    heads_q, heads_kv = shape.num_heads_q / degree, max(shape.num_heads_kv / degree, 1)
    flops_of_head = 4 * int(row_counts(slices).sum())
    tokens_sent = (degree - 1) / degree * (slices.seqlen_q * heads_q + slices.seqlen_k * heads_kv)
    return flops_of_head * heads_q / (2 * tokens_sent * DTYPE_BYTES[shape.dtype]) if tokens_sent else math.inf
