"""magi_attn_a2av: MagiAttention with its own dispatch, its group collectives by all-to-all-v (magi-attention 1.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnspec.params import param
from attnspec.shape import Shape
from attnspec.sharding.dispatched import Dispatched
from attnspec.sharding.libraries import MAGI_ATTENTION
from attnspec.slices import AttnSlices
from attnspec.support import Device

if TYPE_CHECKING:
    from attnspec.exchange.groups import Ranks
    from attnspec.exchange.kernel_call import Bind
    from attnspec.exchange.magi import MagiAttention
    from attnspec.exchange.transport import Transport

KERNELS = ("ffa", "ffa_fa4")
PROVIDERS = (MAGI_ATTENTION,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Parameters of the strategy."""

    chunk_size: int = param(default=2048, ge=1, tokens=True, doc="Tokens of a chunk that the dispatcher places.")
    overlap_degree: int = param(default=2, ge=1, doc="Stages into which remote keys are split to hide their transfer.")


def check(params: Params, shape: Shape, cp_size: int) -> None:
    """Any heads on any number of ranks."""


def dispatch(params: Params, kernel: str, slices: AttnSlices, shape: Shape, ranks: Ranks, device: Device) -> Dispatched:
    """The library's own plan, made by all ranks together at run time."""
    from attnspec.exchange.magi import check_environment, dispatch_plan

    check_environment(kernel, native=False)
    return dispatch_plan(
        slices, shape, ranks, device, chunk_size=params.chunk_size, overlap_degree=params.overlap_degree
    )


def bind(
    plan: Dispatched, kernel: Bind, transport: Transport, device: Device, *, needs_backward: bool
) -> MagiAttention:
    """The plan of one rank, ready to run; the library binds its kernel itself."""
    from attnspec.exchange.magi import MagiAttention

    return MagiAttention(plan, transport.rank, device, needs_backward=needs_backward)
