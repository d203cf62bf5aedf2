"""te_a2a_p2p: TransformerEngine's own context parallelism, heads exchanged inside, rings across (a2a+p2p)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from numpy.typing import ArrayLike

from attnspec.errors import UnsupportedError
from attnspec.params import param
from attnspec.shape import Shape
from attnspec.sharding.dual_chunk import DualChunk, dual_chunk
from attnspec.sharding.head_ring import HeadRing
from attnspec.sharding.heads import split_heads
from attnspec.sharding.layout import documents_of, zigzag
from attnspec.sharding.libraries import TRANSFORMER_ENGINE
from attnspec.sharding.mesh import Mesh, head_mesh
from attnspec.slices import AttnSlices
from attnspec.support import Device

if TYPE_CHECKING:
    from attnspec.exchange.kernel_call import Bind
    from attnspec.exchange.transformer_engine import TransformerEngineAttention
    from attnspec.exchange.transport import Transport

KERNELS = ("cudnn",)
PROVIDERS = (TRANSFORMER_ENGINE,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Parameters of the strategy."""

    ulysses_degree: int = param(default=2, ge=1, doc="Ranks that share heads; the rest is the ring.")


def check(params: Params, shape: Shape, cp_size: int) -> None:
    """The degree must divide the ranks and both kinds of heads."""
    head_mesh(shape, cp_size, params.ulysses_degree)
    if shape.num_heads_kv % params.ulysses_degree:
        raise UnsupportedError(
            "heads", f"{shape.num_heads_kv} key/value heads cannot be split over {params.ulysses_degree} ranks"
        )


def shard(params: Params, slices: AttnSlices, docs: ArrayLike, shape: Shape, cp_size: int) -> DualChunk:
    """Every sequence in zigzag over all ranks. Raises UnsupportedError for masks that the library cannot express."""
    degree = params.ulysses_degree
    q_documents, k_documents = documents_of(docs, slices)
    own = HeadRing(
        slices=slices,
        split=split_heads(shape, degree, 1),
        ring_degree=cp_size // degree,
        window=None,
        q_ring=zigzag(q_documents, cp_size // degree).padded(degree),
        k_ring=zigzag(k_documents, cp_size // degree).padded(degree),
    )
    return dual_chunk(slices, shape, cp_size, own, windows=False)


def bind(
    plan: DualChunk, kernel: Bind, transport: Transport, device: Device, *, needs_backward: bool
) -> TransformerEngineAttention:
    """The plan of one rank, ready to run; the library calls its kernel itself."""
    from attnspec.exchange.transformer_engine import TransformerEngineAttention

    mesh = Mesh(**plan.mesh)
    return TransformerEngineAttention(plan, "a2a+p2p", mesh, transport, device, needs_backward=needs_backward)
