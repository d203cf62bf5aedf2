"""yunchang_usp: yunchang's heads exchanged inside, ring across (USP, Fang and Zhao 2024; yunchang 0.6)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from numpy.typing import ArrayLike

from attnspec.errors import UnsupportedError
from attnspec.params import param
from attnspec.shape import Shape
from attnspec.sharding.adapted import Adapted, Traffic, sequences_of
from attnspec.sharding.layout import zigzag
from attnspec.sharding.libraries import YUNCHANG
from attnspec.sharding.mesh import check_several, head_mesh
from attnspec.slices import AttnSlices
from attnspec.support import Device

if TYPE_CHECKING:
    from attnspec.exchange.kernel_call import Bind
    from attnspec.exchange.library_attention import LibraryAttention
    from attnspec.exchange.transport import Transport

KERNELS = ("fa2",)
PROVIDERS = (YUNCHANG,)
KERNEL_PROVIDER = "flash-attn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Parameters of the strategy."""

    ulysses_degree: int | None = param(
        default=None, ge=1, doc="Ranks that share heads; without it the most that divide ranks and both heads, up to 8."
    )


def check(params: Params, shape: Shape, cp_size: int) -> None:
    """The degree must divide the ranks and both kinds of heads."""
    check_several(cp_size)
    head_mesh(shape, cp_size, params.ulysses_degree, even=True)


def shard(params: Params, slices: AttnSlices, docs: ArrayLike, shape: Shape, cp_size: int) -> Adapted:
    """One sequence in zigzag over the places of a ring, each place's slots over the ranks of its head group.

    Raises UnsupportedError for masks that the library cannot express. Gradients of keys go round as float32.
    """
    sequences = sequences_of(slices, "yunchang")
    degrees = head_mesh(shape, cp_size, params.ulysses_degree, even=True)
    if len(sequences) > 1 or sequences.left is not None:
        raise UnsupportedError("no_lowering", "yunchang takes one sequence, full or causal, by its attention layer")
    layout = zigzag(sequences.bounds, degrees.ring_degree).divided(degrees.ulysses_degree)
    if layout.padding_tokens:
        multiple = math.lcm(2 * degrees.ring_degree, cp_size)
        raise UnsupportedError("seqlen", f"{slices.seqlen_q} tokens are no multiple of {multiple}, as yunchang wants")
    times = degrees.ring_degree - 1
    return Adapted(
        slices=slices,
        shape=shape,
        sequences=sequences,
        layout=layout,
        degrees=degrees,
        traffic=Traffic(keys_forward=times, keys_backward=times, grads_backward=times + 1, grad_bytes=4),
    )


def bind(
    plan: Adapted, kernel: Bind, transport: Transport, device: Device, *, needs_backward: bool
) -> LibraryAttention:
    """The plan of one rank, ready to run; the library calls its kernel itself."""
    from attnspec.exchange.yunchang import bind_yunchang

    return bind_yunchang(plan, transport, device, needs_backward=needs_backward)
