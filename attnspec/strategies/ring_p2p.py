"""ring_p2p: K and V go round a ring while all ranks compute (Ring Attention, Liu et al. 2023); zigzag per document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from numpy.typing import ArrayLike

from attnspec.shape import Shape
from attnspec.sharding.head_ring import HeadRing
from attnspec.sharding.heads import split_heads
from attnspec.sharding.layout import documents_of, zigzag
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
    """Any heads on any number of ranks."""


def shard(params: Params, slices: AttnSlices, docs: ArrayLike, shape: Shape, cp_size: int) -> HeadRing:
    """Every document in zigzag over one ring of all ranks."""
    q_documents, k_documents = documents_of(docs, slices)
    return HeadRing(
        slices=slices,
        split=split_heads(shape, 1),
        ring_degree=cp_size,
        window=None,
        q_ring=zigzag(q_documents, cp_size),
        k_ring=zigzag(k_documents, cp_size),
    )


def bind(plan: HeadRing, kernel: Bind, transport: Transport, device: Device, *, needs_backward: bool) -> BoundStrategy:
    """The plan of one rank, ready to run."""
    from attnspec.exchange.head_ring import bind_head_ring

    return bind_head_ring(plan, kernel, transport, device, needs_backward=needs_backward)
