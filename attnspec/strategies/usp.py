"""usp: Ulysses inside, rings across (USP, Fang and Zhao 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from numpy.typing import ArrayLike

from attnspec.params import param
from attnspec.shape import Shape
from attnspec.sharding.head_ring import HeadRing
from attnspec.sharding.heads import split_heads
from attnspec.sharding.layout import documents_of, zigzag
from attnspec.sharding.mesh import head_mesh
from attnspec.slices import AttnSlices
from attnspec.support import Device

if TYPE_CHECKING:
    from attnspec.exchange.bound import BoundStrategy
    from attnspec.exchange.kernel_call import Bind
    from attnspec.exchange.transport import Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Parameters of the strategy."""

    ulysses_degree: int | None = param(
        default=None, ge=1, doc="Ranks that share heads; without it the most that divide ranks and heads, up to 8."
    )


def check(params: Params, shape: Shape, cp_size: int) -> None:
    """The degree must divide the ranks, and heads must split over it."""
    head_mesh(shape, cp_size, params.ulysses_degree)


def shard(params: Params, slices: AttnSlices, docs: ArrayLike, shape: Shape, cp_size: int) -> HeadRing:
    """Every document in zigzag over the ring; each place's tokens split over its head group."""
    mesh = head_mesh(shape, cp_size, params.ulysses_degree)
    q_documents, k_documents = documents_of(docs, slices)
    return HeadRing(
        slices=slices,
        split=split_heads(shape, mesh.ulysses_degree, slices if mesh.ring_degree == 1 else None),
        ring_degree=mesh.ring_degree,
        window=None,
        q_ring=zigzag(q_documents, mesh.ring_degree).padded(mesh.ulysses_degree),
        k_ring=zigzag(k_documents, mesh.ring_degree).padded(mesh.ulysses_degree),
    )


def bind(plan: HeadRing, kernel: Bind, transport: Transport, device: Device, *, needs_backward: bool) -> BoundStrategy:
    """The plan of one rank, ready to run."""
    from attnspec.exchange.head_ring import bind_head_ring

    return bind_head_ring(plan, kernel, transport, device, needs_backward=needs_backward)
