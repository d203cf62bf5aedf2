"""te_p2p: TransformerEngine's own context parallelism, keys passed round a ring (cp_comm_type p2p)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from numpy.typing import ArrayLike

from attnspec.shape import Shape
from attnspec.sharding.adapted import Adapted
from attnspec.sharding.libraries import TRANSFORMER_ENGINE
from attnspec.sharding.mesh import Mesh, check_several
from attnspec.sharding.transformer_engine import dual_chunk
from attnspec.slices import AttnSlices
from attnspec.support import Device

if TYPE_CHECKING:
    from attnspec.exchange.kernel_call import Bind
    from attnspec.exchange.library_attention import LibraryAttention
    from attnspec.exchange.transport import Transport

KERNELS = ("cudnn",)
PROVIDERS = (TRANSFORMER_ENGINE,)
KERNEL_PROVIDER = "transformer-engine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Parameters of the strategy: none."""


def check(params: Params, shape: Shape, cp_size: int) -> None:
    """Any heads on several ranks."""
    check_several(cp_size)


def shard(params: Params, slices: AttnSlices, docs: ArrayLike, shape: Shape, cp_size: int) -> Adapted:
    """Every sequence in zigzag over all ranks. Raises UnsupportedError for masks that the library cannot express."""
    degrees = Mesh(ulysses_degree=1, ring_degree=cp_size)
    return dual_chunk(slices, shape, degrees, windows=False)


def bind(
    plan: Adapted, kernel: Bind, transport: Transport, device: Device, *, needs_backward: bool
) -> LibraryAttention:
    """The plan of one rank, ready to run; the library calls its kernel itself."""
    from attnspec.exchange.transformer_engine import bind_transformer_engine

    return bind_transformer_engine(plan, "p2p", transport, device, needs_backward=needs_backward)
