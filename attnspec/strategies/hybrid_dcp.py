"""hybrid_dcp: each document on a group of ranks of its own size (hybrid context parallelism of Megatron Core, 2025)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from numpy.typing import ArrayLike

from attnspec.errors import UnsupportedError
from attnspec.params import param
from attnspec.shape import Shape
from attnspec.sharding.dynamic import Dynamic, GroupRing
from attnspec.sharding.layout import documents_of, zigzag
from attnspec.sharding.samples import Sample, place, samples
from attnspec.slices import AttnSlices, row_counts
from attnspec.support import Device

if TYPE_CHECKING:
    from attnspec.exchange.bound import BoundStrategy
    from attnspec.exchange.kernel_call import Bind
    from attnspec.exchange.transport import Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Parameters of the strategy."""

    tokens_per_rank: int | None = param(
        default=None,
        ge=1,
        tokens=True,
        doc="Most tokens of one document on a rank before its group doubles; without it seqlen / cp_size.",
    )
    reshard: bool = param(
        default=True, doc="Bring samples to their groups and outputs back inside the timed region; else untimed."
    )


def check(params: Params, shape: Shape, cp_size: int) -> None:
    """Groups are powers of two, so the ranks must be one."""
    if cp_size & (cp_size - 1):
        below = 1 << (cp_size.bit_length() - 1)
        raise UnsupportedError(
            "mesh",
            f"groups of a power of two do not tile {cp_size} ranks; allowed cp_size: {below}, {2 * below} and all "
            "other powers of two",
        )


def shard(params: Params, slices: AttnSlices, docs: ArrayLike, shape: Shape, cp_size: int) -> Dynamic:
    """Samples, that is documents which the mask links, on groups of ranks; each document in zigzag over its group."""
    q_documents, k_documents = documents_of(docs, slices)
    counts = row_counts(slices)
    if q_documents is k_documents:
        found = samples(slices, q_documents, counts)
    else:
        every = tuple(range(len(q_documents)))
        found = (Sample(documents=every, num_tokens=slices.seqlen_q, cost=int(counts.sum())),)
    tokens_per_rank = params.tokens_per_rank or -(-slices.seqlen_q // cp_size)
    members: dict[tuple[int, int], list[int]] = {}
    for one in place(found, cp_size, tokens_per_rank):
        members.setdefault((one.size, one.group), []).extend(one.sample.documents)
    groups = []
    for (size, group), documents in sorted(members.items(), key=lambda item: (-item[0][0], item[0][1])):
        keys = k_documents[sorted(documents)] if q_documents is k_documents else k_documents
        groups.append(
            GroupRing(
                slices=slices,
                first_rank=group * size,
                queries=zigzag(q_documents[sorted(documents)], size),
                keys=zigzag(keys, size),
            )
        )
    return Dynamic(slices=slices, shape=shape, num_ranks=cp_size, groups=tuple(groups), reshard=params.reshard)


def bind(plan: Dynamic, kernel: Bind, transport: Transport, device: Device, *, needs_backward: bool) -> BoundStrategy:
    """The plan of one rank, ready to run."""
    from attnspec.exchange.dynamic import bind_dynamic

    return bind_dynamic(plan, kernel, transport, device, needs_backward=needs_backward)
