"""te_a2a: TransformerEngine's own context parallelism, heads exchanged for the sequence (cp_comm_type a2a)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from numpy.typing import ArrayLike

from attnspec.errors import UnsupportedError
from attnspec.shape import Shape
from attnspec.sharding.dual_chunk import DualChunk, dual_chunk
from attnspec.sharding.head_ring import HeadRing
from attnspec.sharding.heads import split_heads
from attnspec.sharding.layout import contiguous
from attnspec.sharding.libraries import TRANSFORMER_ENGINE
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
    """Parameters of the strategy: none."""


def check(params: Params, shape: Shape, cp_size: int) -> None:
    """Both kinds of heads must split over the ranks."""
    if shape.num_heads_q % cp_size or shape.num_heads_kv % cp_size:
        raise UnsupportedError(
            "heads",
            f"{shape.num_heads_q} query and {shape.num_heads_kv} key/value heads cannot be split over {cp_size} ranks; "
            "cp_size must divide both",
        )


def shard(params: Params, slices: AttnSlices, docs: ArrayLike, shape: Shape, cp_size: int) -> DualChunk:
    """Every sequence in zigzag over all ranks. Raises UnsupportedError for masks that the library cannot express."""
    own = HeadRing(
        slices=slices,
        split=split_heads(shape, cp_size),
        ring_degree=1,
        window=None,
        q_ring=contiguous(slices.seqlen_q, 1).padded(cp_size),
        k_ring=contiguous(slices.seqlen_k, 1).padded(cp_size),
    )
    return dual_chunk(slices, shape, cp_size, own, windows=True)


def bind(
    plan: DualChunk, kernel: Bind, transport: Transport, device: Device, *, needs_backward: bool
) -> TransformerEngineAttention:
    """The plan of one rank, ready to run; the library calls its kernel itself."""
    from attnspec.exchange.transformer_engine import TransformerEngineAttention

    return TransformerEngineAttention(plan, "a2a", None, transport, device, needs_backward=needs_backward)
