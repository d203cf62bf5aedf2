"""The process groups of a job: one for control, over gloo and apart from what is timed; one per channel for data."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from attnspec.errors import UnsupportedError
from attnspec.exchange.transport import GroupTransport, SilentTransport, Transport
from attnspec.sharding.mesh import Mesh
from attnspec.sharding.routes import Channel

_parts: dict[tuple[int, ...], dist.ProcessGroup] = {}
"""Process groups of some ranks of the job, made once."""


class Ranks:
    """One rank among those of its job; a job of one rank needs no process group."""

    def __init__(self, rank: int, size: int, transport: Transport, store: Any = None) -> None:
        self.rank, self.size, self.transport = rank, size, transport
        self._store, self._meetings = store, 0

    @classmethod
    def alone(cls) -> Ranks:
        """The only rank."""
        return cls(0, 1, SilentTransport())

    @classmethod
    def join(
        cls,
        *,
        rank: int,
        size: int,
        device: torch.device,
        timeout_s: float,
        store: Any = None,
    ) -> Ranks:
        """Meet the others; without a store through MASTER_ADDR and MASTER_PORT, as torchrun sets them.

        Data go over NCCL on CUDA, else over gloo. The NCCL streams have priority, so that a transfer starts although
        a kernel fills the device.
        """
        timeout = timedelta(seconds=timeout_s)
        if store is None:
            store, *_ = next(rendezvous("env://", rank, size, timeout=timeout))
        dist.init_process_group("gloo", rank=rank, world_size=size, timeout=timeout, store=store)
        groups = {channel: _group(device, timeout) for channel in Channel}
        return cls(rank, size, GroupTransport(groups), store)

    def leave(self) -> None:
        """Part from the others."""
        if self.size > 1:
            dist.destroy_process_group()

    def largest(self, numbers: list[float]) -> list[float]:
        """The elementwise maximum over ranks, on all of them."""
        if self.size == 1 or not numbers:
            return numbers
        shared = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(shared, op=dist.ReduceOp.MAX)
        return shared.tolist()

    def share(self, thing: Any) -> list[Any]:
        """What each rank has, by rank, on all of them."""
        if self.size == 1:
            return [thing]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, thing)
        return found

    def meet(self) -> None:
        """Wait until all ranks are here."""
        if self.size > 1:
            dist.barrier()

    def meet_within(self, seconds: float) -> bool:
        """Whether all ranks came here in that time, by the store alone: their groups may be held up by messages."""
        if self.size == 1:
            return True
        assert self._store is not None
        self._meetings += 1
        keys = [f"attnspec/meeting/{self._meetings}/{rank}" for rank in range(self.size)]
        try:
            self._store.set(keys[self.rank], "")
            self._store.wait(keys, timedelta(seconds=seconds))
        except RuntimeError:  # of the store, for ranks that are late as for those that are gone
            return False
        return True

    def line_up(self, device: torch.device) -> Callable[[], None]:
        """What enqueues a one-element all-reduce on the current stream: no host waits, and devices go on together."""
        assert isinstance(self.transport, GroupTransport)
        transport, signal = self.transport, torch.zeros(1, device=device)
        return lambda: transport.reduce(signal)


def all_ranks(transport: Transport) -> dist.ProcessGroup:
    """The process group of all ranks, for libraries that want one. Raises UnsupportedError in a job of one rank."""
    if not isinstance(transport, GroupTransport):
        raise UnsupportedError("mesh", "a library's context parallelism needs at least 2 ranks")
    return transport.group(Channel.INNER)


def mesh_groups(transport: Transport, mesh: Mesh) -> list[dist.ProcessGroup]:
    """The process groups of the rank's head group and of its ring; all ranks ask together."""
    backend = dist.get_backend(all_ranks(transport))
    parts = [mesh.head_group(ring) for ring in range(mesh.ring_degree)]
    parts += [mesh.ring(head) for head in range(mesh.ulysses_degree)]
    for part in parts:
        if part not in _parts:
            _parts[part] = dist.new_group(part, backend=backend)
    head, ring = mesh.place(transport.rank)
    return [_parts[mesh.head_group(ring)], _parts[mesh.ring(head)]]


def _group(device: torch.device, timeout: timedelta) -> dist.ProcessGroup:
    if device.type != "cuda":
        group: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=timeout)
        return group
    options: Any = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    group = dist.new_group(backend="nccl", timeout=timeout, pg_options=options)
    # The first operation of a communicator needs all ranks, and sets it up.
    dist.all_reduce(torch.zeros(1, device=device), group=group)
    torch.cuda.synchronize(device)
    return group
