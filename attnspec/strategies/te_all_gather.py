"""te_all_gather: TransformerEngine's own context parallelism, keys gathered on all ranks (cp_comm_type all_gather)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from numpy.typing import ArrayLike

from attnspec.shape import Shape
from attnspec.sharding.dual_chunk import DualChunk, dual_chunk
from attnspec.sharding.gathering import Gathering
from attnspec.sharding.layout import documents_of, zigzag
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
    """Any heads on any number of ranks."""


def shard(params: Params, slices: AttnSlices, docs: ArrayLike, shape: Shape, cp_size: int) -> DualChunk:
    """Every sequence in zigzag over all ranks. Raises UnsupportedError for masks that the library cannot express."""
    q_documents, k_documents = documents_of(docs, slices)
    own = Gathering(
        slices=slices,
        shape=shape,
        queries=zigzag(q_documents, cp_size, halves=True),
        keys=zigzag(k_documents, cp_size, halves=True),
    )
    return dual_chunk(slices, shape, cp_size, own, windows=True)


def bind(
    plan: DualChunk, kernel: Bind, transport: Transport, device: Device, *, needs_backward: bool
) -> TransformerEngineAttention:
    """The plan of one rank, ready to run; the library calls its kernel itself."""
    from attnspec.exchange.transformer_engine import TransformerEngineAttention

    return TransformerEngineAttention(plan, "all_gather", None, transport, device, needs_backward=needs_backward)
