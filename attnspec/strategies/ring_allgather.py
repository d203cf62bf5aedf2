"""ring_allgather: K and V gathered on all ranks, dK and dV reduced and scattered (Llama 3, Dubey et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from numpy.typing import ArrayLike

from attnspec.shape import Shape
from attnspec.sharding.gathering import Gathering
from attnspec.sharding.layout import documents_of, zigzag
from attnspec.slices import AttnSlices
from attnspec.support import Device

if TYPE_CHECKING:
    from attnspec.exchange.bound import BoundStrategy
    from attnspec.exchange.kernel_call import Bind
    from attnspec.exchange.transport import Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Parameters of the strategy: none."""


def check(params: Params, shape: Shape, cp_size: int) -> None:
    """Any heads on any number of ranks."""


def shard(params: Params, slices: AttnSlices, docs: ArrayLike, shape: Shape, cp_size: int) -> Gathering:
    """Every document in zigzag over the ranks; all keys on every rank while it computes."""
    q_documents, k_documents = documents_of(docs, slices)
    return Gathering(
        slices=slices,
        shape=shape,
        queries=zigzag(q_documents, cp_size, halves=True),
        keys=zigzag(k_documents, cp_size, halves=True),
    )


def bind(plan: Gathering, kernel: Bind, transport: Transport, device: Device, *, needs_backward: bool) -> BoundStrategy:
    """The plan of one rank, ready to run."""
    from attnspec.exchange.gathering import bind_gathering

    return bind_gathering(plan, kernel, transport, device, needs_backward=needs_backward)
