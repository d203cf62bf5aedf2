"""ulysses: all-to-all from sequence shards to head shards and back (DeepSpeed-Ulysses, Jacobs et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from numpy.typing import ArrayLike

from attnspec.shape import Shape
from attnspec.sharding.head_ring import HeadRing
from attnspec.sharding.heads import split_heads
from attnspec.sharding.layout import contiguous
from attnspec.sharding.mesh import check_heads, head_degrees, listed
from attnspec.slices import AttnSlices
from attnspec.support import Device

if TYPE_CHECKING:
    from attnspec.exchange.bound import BoundStrategy
    from attnspec.exchange.kernel_call import Bind
    from attnspec.exchange.transport import Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Parameters of the strategy: none."""


def check(params: Params, shape: Shape, cp_size: int) -> None:
    """Heads must split over the ranks."""
    sizes = head_degrees(shape, shape.num_heads_q)
    check_heads(shape, cp_size, f"allowed cp_size: {listed(sizes)}")


def shard(params: Params, slices: AttnSlices, docs: ArrayLike, shape: Shape, cp_size: int) -> HeadRing:
    """Equal runs of the sequence; between the all-to-alls each rank has all of it for its share of the heads."""
    return HeadRing(
        slices=slices,
        split=split_heads(shape, cp_size, slices),
        ring_degree=1,
        window=None,
        q_ring=contiguous(slices.seqlen_q, 1).padded(cp_size),
        k_ring=contiguous(slices.seqlen_k, 1).padded(cp_size),
    )


def bind(plan: HeadRing, kernel: Bind, transport: Transport, device: Device, *, needs_backward: bool) -> BoundStrategy:
    """The plan of one rank, ready to run."""
    from attnspec.exchange.head_ring import bind_head_ring

    return bind_head_ring(plan, kernel, transport, device, needs_backward=needs_backward)
