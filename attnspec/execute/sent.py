"""What a rank really sends in an iteration: every operator that torch.distributed is asked for, by us or by a library.

Each call of torch.distributed, from Python, C++ or an autograd thread, is an operator `c10d::...` of the dispatcher,
which a TorchDispatchMode (torch's notes on extending it document that) sees with its tensors, splits and process group.
The profiler tells less: over gloo a reduce-scatter shows as an all-reduce, and an all-to-all without its splits. What a
library sends past torch.distributed (symmetric memory, NVSHMEM, its own kernels) nobody sees here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from attnspec.exchange.transport import Parcel, Pending, Transport
from attnspec.sharding.routes import Channel

_NAMESPACES = frozenset({"c10d", "_c10d_functional", "symm_mem"})
_SILENT = frozenset({"recv_", "recv_any_source_", "barrier", "monitored_barrier_", "check_for_nan", "wait_tensor"})


def _own(sizes: Sequence[int], num_bytes: int, size: int, rank: int) -> int:
    """Bytes of the own part among those of an all-to-all, which are alike where no sizes are given."""
    return num_bytes * sizes[rank] // max(sum(sizes), 1) if sizes else num_bytes // size


def _all_to_all(args: Sequence[Any], size: int, rank: int) -> int:
    num_bytes: int = args[1].nbytes
    return num_bytes - _own(args[4], num_bytes, size, rank)


def _all_reduce(args: Sequence[Any], size: int, rank: int) -> int:
    return 2 * (size - 1) * _bytes(args[0]) // size


def _scatter(args: Sequence[Any], size: int, rank: int) -> int:
    return sum(_bytes(parts) - parts[rank].nbytes for parts in args[1])


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(one.nbytes for one in tensors)


_COUNTS: Mapping[str, Callable[[Sequence[Any], int, int], int]] = {
    "send": lambda args, size, rank: _bytes(args[0]),
    "_allgather_base_": lambda args, size, rank: (size - 1) * args[1].nbytes,
    "allgather_": lambda args, size, rank: (size - 1) * _bytes(args[1]),
    "allgather_coalesced_": lambda args, size, rank: (size - 1) * _bytes(args[1]),
    "allgather_into_tensor_coalesced_": lambda args, size, rank: (size - 1) * _bytes(args[1]),
    "_reduce_scatter_base_": lambda args, size, rank: (size - 1) * args[0].nbytes,
    "reduce_scatter_": lambda args, size, rank: (size - 1) * _bytes(args[0]),
    "reduce_scatter_tensor_coalesced_": lambda args, size, rank: (size - 1) * _bytes(args[0]),
    "alltoall_base_": _all_to_all,
    "alltoall_": lambda args, size, rank: _bytes(args[1]) - args[1][rank].nbytes,
    "allreduce_": _all_reduce,
    "allreduce_coalesced_": _all_reduce,
    "broadcast_": lambda args, size, rank: _bytes(args[0]) if size > 1 else 0,
    "reduce_": lambda args, size, rank: _bytes(args[0]) if size > 1 else 0,
    "gather_": lambda args, size, rank: _bytes(args[1]) if rank != args[3] else 0,
    "scatter_": _scatter,
}
"""Bytes that a rank sends, by operator: its real tensors, and how often a ring (or chain) algorithm sends them."""


class Sent(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, it counts. num_bytes: what this rank sent. calls: operators by name. unknown: those that it
    cannot count, so that num_bytes is too small where there are any.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_bytes = 0
        self.calls: Counter[str] = Counter()
        self.unknown: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Count, and do as without."""
        if func.namespace in _NAMESPACES:
            self._count(func, args)
        return func(*args, **(kwargs or {}))

    def _count(self, func: Any, args: Sequence[Any]) -> None:
        name = func._schema.name.partition("::")[2]
        if name in _SILENT:
            return
        if func.namespace != "c10d" or name not in _COUNTS:
            self.unknown.add(func._schema.name)
            return
        group = next(
            dist.ProcessGroup.unbox(value)
            for value, asked in zip(args, func._schema.arguments, strict=False)
            if asked.name == "process_group"
        )
        self.calls[name] += 1
        self.num_bytes += _COUNTS[name](args, group.size(), group.rank())


class WatchedTransport:
    """Another transport; what it asks torch.distributed for is counted, and the computation between is left alone."""

    def __init__(self, transport: Transport, sent: Sent) -> None:
        self._transport, self._sent = transport, sent
        self.rank, self.size = transport.rank, transport.size

    def post(self, channel: Channel, sends: Sequence[Parcel], receives: Sequence[Parcel]) -> Pending:
        """As the other does."""
        with self._sent:
            return self._transport.post(channel, sends, receives)

    def gather(self, part: Tensor, whole: Tensor) -> None:
        """As the other does."""
        with self._sent:
            self._transport.gather(part, whole)

    def reduce_scatter(self, parts: Tensor, total: Tensor) -> None:
        """As the other does."""
        with self._sent:
            self._transport.reduce_scatter(parts, total)
