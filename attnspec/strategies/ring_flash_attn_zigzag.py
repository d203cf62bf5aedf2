"""ring_flash_attn_zigzag: ring-flash-attn's ring, zigzag where causal (ring-flash-attn 0.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from numpy.typing import ArrayLike

from attnspec.errors import UnsupportedError
from attnspec.shape import Shape
from attnspec.sharding.adapted import Adapted, Traffic, sequences_of
from attnspec.sharding.layout import zigzag
from attnspec.sharding.libraries import RING_FLASH_ATTN
from attnspec.sharding.mesh import Mesh, check_several
from attnspec.slices import AttnSlices
from attnspec.support import Device

if TYPE_CHECKING:
    from attnspec.exchange.kernel_call import Bind
    from attnspec.exchange.library_attention import LibraryAttention
    from attnspec.exchange.transport import Transport

KERNELS = ("fa2",)
PROVIDERS = (RING_FLASH_ATTN,)
KERNEL_PROVIDER = "flash-attn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Parameters of the strategy: none."""


def check(params: Params, shape: Shape, cp_size: int) -> None:
    """Any heads on several ranks."""
    check_several(cp_size)


def shard(params: Params, slices: AttnSlices, docs: ArrayLike, shape: Shape, cp_size: int) -> Adapted:
    """Every sequence in zigzag over all ranks. Raises UnsupportedError for masks that the library cannot express.

    Gradients of keys go all the way round as float32. Padding at the end of a sequence is seen by no causal row.
    """
    sequences = sequences_of(slices, "ring-flash-attn")
    layout = zigzag(sequences.bounds, cp_size)
    if sequences.left is not None:
        raise UnsupportedError("no_lowering", "ring-flash-attn takes windows by ring_flash_attn_llama3 only")
    if not sequences.causal and (len(sequences) > 1 or layout.padding_tokens):
        raise UnsupportedError(
            "no_lowering",
            "ring-flash-attn's ring takes full attention over one sequence of a multiple of 2 x ranks tokens; "
            "ring_flash_attn_llama3 takes others",
        )
    if shape.batch > 1 and (len(sequences) > 1 or layout.padding_tokens):
        raise UnsupportedError("backend", f"packed sequences are batch 1, not {shape.batch}")
    return Adapted(
        slices=slices,
        shape=shape,
        sequences=sequences,
        layout=layout,
        degrees=Mesh(ulysses_degree=1, ring_degree=cp_size),
        traffic=Traffic(keys_forward=cp_size - 1, keys_backward=cp_size - 1, grads_backward=cp_size, grad_bytes=4),
    )


def bind(
    plan: Adapted, kernel: Bind, transport: Transport, device: Device, *, needs_backward: bool
) -> LibraryAttention:
    """The plan of one rank, ready to run; the library calls its kernel itself."""
    from attnspec.exchange.ring_flash_attn import bind_zigzag

    return bind_zigzag(plan, transport, device, needs_backward=needs_backward)
