"""magi_attn_native: MagiAttention with its own dispatch and its native group collectives (magi-attention 1.1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from attnspec.shape import Shape
from attnspec.sharding.dispatched import Dispatched, check_magi
from attnspec.sharding.dispatched import DispatchParams as Params
from attnspec.sharding.libraries import MAGI_ATTENTION, magi_variables
from attnspec.slices import AttnSlices
from attnspec.support import Device

if TYPE_CHECKING:
    from attnspec.exchange.groups import Ranks
    from attnspec.exchange.kernel_call import Bind
    from attnspec.exchange.library_attention import LibraryAttention
    from attnspec.exchange.transport import Transport

KERNELS = ("ffa", "ffa_fa4")
PROVIDERS = (MAGI_ATTENTION,)
KERNEL_PROVIDER = "magi-attention"


def check(params: Params, shape: Shape, cp_size: int) -> None:
    """Any heads on several ranks, batch 1."""
    check_magi(shape, cp_size)


def variables(kernel: str) -> Mapping[str, str]:
    """What the process has to be started with."""
    return magi_variables(kernel, native=True)


def dispatch(params: Params, kernel: str, slices: AttnSlices, shape: Shape, ranks: Ranks, device: Device) -> Dispatched:
    """The library's own plan, made by all ranks together at run time."""
    from attnspec.exchange.magi import dispatch_plan

    return dispatch_plan(params, slices, shape, ranks, device)


def bind(
    plan: Dispatched, kernel: Bind, transport: Transport, device: Device, *, needs_backward: bool
) -> LibraryAttention:
    """The plan of one rank, ready to run; the library binds its kernel itself."""
    from attnspec.exchange.magi import bind_magi

    return bind_magi(plan, transport.rank, device, needs_backward=needs_backward)
