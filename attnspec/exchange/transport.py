"""Sending and receiving between ranks: batches that run beside the computation and are waited for when needed.

On CUDA a batch is one NCCL group on the process group's own stream; it starts when the current stream has reached the
call, and `wait` makes the current stream wait, never the host. On the CPU gloo's threads move the data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch.distributed as dist
from torch import Tensor

from attnspec.exchange.lanes import use
from attnspec.sharding.routes import Channel


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """A tensor to send to a rank, or to fill from it. Contiguous."""

    peer: int
    tensor: Tensor


class Pending(Protocol):
    """A batch under way."""

    def wait(self) -> None:
        """Let what follows on the current stream see the batch done.

        May be called again, on that stream or on one that has waited for it.
        """
        ...


class Transport(Protocol):
    """How ranks exchange tensors. Ranks are those of the job."""

    rank: int
    size: int

    def post(self, channel: Channel, sends: Sequence[Parcel], receives: Sequence[Parcel]) -> Pending:
        """Start a batch. Both ends of a channel post their parcels for each other in the same order."""
        ...

    def gather(self, part: Tensor, whole: Tensor) -> None:
        """All ranks' parts into whole, (size, *part.shape); the current stream waits for it."""
        ...

    def reduce_scatter(self, parts: Tensor, total: Tensor) -> None:
        """The sum over ranks of parts[rank] into total; the current stream waits for it."""
        ...


class _Works:
    def __init__(self, works: Sequence[Any], held: Sequence[Parcel]) -> None:
        self._works, self._held = works, held

    def wait(self) -> None:
        for work in self._works:
            work.wait()
        for parcel in self._held:
            use(parcel.tensor)  # only this stream has waited; another may have allocated it
        self._works, self._held = (), ()


class _Done:
    def wait(self) -> None:
        return


class GroupTransport:
    """Over process groups that all hold all ranks, one for each channel."""

    def __init__(self, groups: Mapping[Channel, dist.ProcessGroup]) -> None:
        self._groups = groups
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()

    def group(self, channel: Channel) -> dist.ProcessGroup:
        """The process group of a channel, for libraries that want one."""
        return self._groups[channel]

    def post(self, channel: Channel, sends: Sequence[Parcel], receives: Sequence[Parcel]) -> Pending:
        """One batch of point-to-point operations."""
        group = self._groups[channel]
        batch = [dist.P2POp(dist.isend, one.tensor, one.peer, group=group) for one in sends]
        batch += [dist.P2POp(dist.irecv, one.tensor, one.peer, group=group) for one in receives]
        if not batch:
            return _Done()
        return _Works(dist.batch_isend_irecv(batch), (*sends, *receives))

    def reduce(self, total: Tensor) -> None:
        """The sum over ranks, in place; the current stream waits for it."""
        dist.all_reduce(total, group=self._groups[Channel.INNER])

    def gather(self, part: Tensor, whole: Tensor) -> None:
        """One all-gather."""
        _all_gather(whole.view(-1), part.view(-1), group=self._groups[Channel.INNER])

    def reduce_scatter(self, parts: Tensor, total: Tensor) -> None:
        """One reduce-scatter."""
        _reduce_scatter(total.view(-1), parts.view(-1), group=self._groups[Channel.INNER])


class SilentTransport:
    """A rank by itself: nothing is sent, and what others would have sent is left as it is.

    For jobs of one rank, and for timing the computation of a rank alone.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size

    def post(self, channel: Channel, sends: Sequence[Parcel], receives: Sequence[Parcel]) -> Pending:
        """Nothing."""
        return _Done()

    def gather(self, part: Tensor, whole: Tensor) -> None:
        """The own part."""
        whole[self.rank].copy_(part)

    def reduce_scatter(self, parts: Tensor, total: Tensor) -> None:
        """The own part."""
        total.copy_(parts[self.rank])


# torch 2.13 renamed both and warns about the old names, which 2.11 and 2.12 have alone.
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
