"""ring_flash_attn_llama3: ring-flash-attn's gathering of keys, some heads at a time (ring-flash-attn 0.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from numpy.typing import ArrayLike

from attnspec.errors import UnsupportedError
from attnspec.params import param
from attnspec.shape import Shape
from attnspec.sharding.adapted import Adapted, Traffic, sequences_of
from attnspec.sharding.layout import contiguous
from attnspec.sharding.libraries import RING_FLASH_ATTN
from attnspec.sharding.mesh import Mesh, check_several, divisors, listed
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
    """Parameters of the strategy."""

    heads_k_stride: int = param(default=1, ge=1, doc="Key/value heads that are gathered at a time.")


def check(params: Params, shape: Shape, cp_size: int) -> None:
    """The stride must divide the key/value heads; several ranks, batch 1."""
    check_several(cp_size)
    if shape.batch > 1:
        raise UnsupportedError("backend", f"packed sequences are batch 1, not {shape.batch}")
    if shape.num_heads_kv % params.heads_k_stride:
        raise UnsupportedError(
            "heads",
            f"heads_k_stride {params.heads_k_stride} does not divide {shape.num_heads_kv} key/value heads; "
            f"allowed heads_k_stride: {listed(divisors(shape.num_heads_kv))}",
        )


def shard(params: Params, slices: AttnSlices, docs: ArrayLike, shape: Shape, cp_size: int) -> Adapted:
    """Equal runs of the packed sequences. Raises UnsupportedError for masks that the library cannot express."""
    sequences = sequences_of(slices, "ring-flash-attn")
    if slices.seqlen_q % cp_size:
        raise UnsupportedError(
            "seqlen",
            f"{slices.seqlen_q} tokens cannot be split into {cp_size} equal runs; allowed: a multiple of {cp_size}",
        )
    return Adapted(
        slices=slices,
        shape=shape,
        sequences=sequences,
        layout=contiguous(slices.seqlen_q, cp_size),
        degrees=Mesh(ulysses_degree=1, ring_degree=cp_size),
        traffic=Traffic(keys_forward=cp_size - 1, keys_backward=cp_size - 1, grads_backward=cp_size - 1),
        gathers=True,
        varlen=True,
        settings={"heads_k_stride": params.heads_k_stride},
    )


def bind(
    plan: Adapted, kernel: Bind, transport: Transport, device: Device, *, needs_backward: bool
) -> LibraryAttention:
    """The plan of one rank, ready to run; the library calls its kernel itself."""
    from attnspec.exchange.ring_flash_attn import bind_llama3

    return bind_llama3(plan, transport, device, needs_backward=needs_backward)
