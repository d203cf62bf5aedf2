"""loongtrain: head groups inside, double rings across (LoongTrain, Gu et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from numpy.typing import ArrayLike

from attnspec.errors import UnsupportedError
from attnspec.params import param
from attnspec.shape import Shape
from attnspec.sharding.head_ring import HeadRing
from attnspec.sharding.heads import split_heads
from attnspec.sharding.layout import documents_of, zigzag
from attnspec.sharding.mesh import Mesh, divisors, head_mesh, listed
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
        default=None,
        ge=1,
        doc="Ranks that share heads; without it the most, up to 8, that divide ranks and heads, with whole windows.",
    )
    window: int = param(default=1, ge=1, doc="Ranks of an inner ring; must divide the ring degree.")


def check(params: Params, shape: Shape, cp_size: int) -> None:
    """The degree must divide the ranks, heads must split over it, and the window must divide the ring."""
    mesh = _mesh(params, shape, cp_size)
    if mesh.ring_degree % params.window == 0:
        return
    if params.ulysses_degree is None:
        raise UnsupportedError(
            "mesh",
            f"window {params.window} does not divide {cp_size} ranks; allowed window: {listed(divisors(cp_size))}",
        )
    raise UnsupportedError(
        "mesh",
        f"window {params.window} does not divide the ring of {mesh.ring_degree} ranks ({cp_size} ranks over "
        f"ulysses_degree {mesh.ulysses_degree}); allowed window: {listed(divisors(mesh.ring_degree))}",
    )


def shard(params: Params, slices: AttnSlices, docs: ArrayLike, shape: Shape, cp_size: int) -> HeadRing:
    """As usp, with a double ring."""
    mesh = _mesh(params, shape, cp_size)
    q_documents, k_documents = documents_of(docs, slices)
    return HeadRing(
        slices=slices,
        split=split_heads(shape, mesh.ulysses_degree, slices if mesh.ring_degree == 1 else None),
        ring_degree=mesh.ring_degree,
        window=params.window,
        q_ring=zigzag(q_documents, mesh.ring_degree).padded(mesh.ulysses_degree),
        k_ring=zigzag(k_documents, mesh.ring_degree).padded(mesh.ulysses_degree),
    )


def bind(plan: HeadRing, kernel: Bind, transport: Transport, device: Device, *, needs_backward: bool) -> BoundStrategy:
    """The plan of one rank, ready to run."""
    from attnspec.exchange.head_ring import bind_head_ring

    return bind_head_ring(plan, kernel, transport, device, needs_backward=needs_backward)


def _mesh(params: Params, shape: Shape, cp_size: int) -> Mesh:
    return head_mesh(shape, cp_size, params.ulysses_degree, window=params.window)
