"""Splitting heads over the ranks of a head group, in stages. Pure.

DeepSpeed-Ulysses (Jacobs et al. 2023): an all-to-all turns shards of the sequence with all heads into the whole
sequence with a share of the heads. A key/value head whose queries lie on several ranks is sent to all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from attnspec.shape import Shape

MAX_STAGES = 4


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


def split_heads(shape: Shape, degree: int, stages: int | None = None) -> HeadSplit:
    """The split; without `stages` as many, up to 4, as divide a rank's key/value heads. One rank needs one stage."""
    share = shape.num_heads_kv // degree
    if stages is None:
        stages = 1 if degree == 1 or share == 0 else max(n for n in range(1, MAX_STAGES + 1) if share % n == 0)
    assert stages == 1 or share % stages == 0, (shape, degree, stages)
    return HeadSplit(shape=shape, degree=degree, stages=stages)
