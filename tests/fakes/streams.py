"""The streams of a CUDA device over CPU tensors: which memory is used before what came earlier is done with it.

Everything is computed at once, in the order in which it is enqueued, and results are right whatever is forgotten. But a
stream knows up to which operation of each other stream it has waited (a vector clock), each byte knows the last
operation of each stream that read and wrote it, and an operation that has not waited for them is a fault. Freed memory
belongs to the stream that it was allocated on, as in torch's caching allocator: the next allocation there may get it,
so by then that stream must have waited for what others did with it, or they must have been told by `record_stream`.

The lanes and the transport of attnspec.exchange run as they are, on CPU tensors that say that they are on CUDA.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import attnspec
from attnspec.exchange import lanes, transport
from attnspec.sharding.routes import Channel
from attnspec.support import merging

READ, WRITE = 0, 1
_ROOM = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
_SOURCES = str(Path(attnspec.__file__).parent)


class Stream:
    """clock: for each stream the number of its last operation that this one comes after; never changed in place."""

    def __init__(self, device, number, name, num_streams):
        self.device, self.number, self.name = device, number, name
        self.clock = np.zeros(num_streams, dtype=np.int64)

    @property
    def now(self):
        """The number of its last operation."""
        return self.clock[self.number]

    def wait_stream(self, other):
        self.wait_for(other.clock)

    def wait_for(self, clock):
        self.device.collect()
        self.clock = np.maximum(self.clock, clock)

    def record_event(self):
        at = self.clock
        return SimpleNamespace(wait=lambda: self.device.current.wait_for(at))

    def begin(self):
        """The next operation."""
        self.device.collect()
        self.clock = self.clock + (np.arange(len(self.clock)) == self.number)


class Memory:
    """What streams did with a storage. last: by kind, stream and byte, the number of an operation. born: the owner's."""

    def __init__(self, storage, owner, born, made):
        self.alive, self.owner, self.born, self.made = StorageWeakRef(storage), owner, born, made
        self.last = np.zeros((2, len(owner.clock), storage.nbytes()), dtype=np.int64)
        self.told = []

    def of(self, tensor):
        """`last` of a tensor's bytes: (kind, stream, *shape, bytes of an element), a view."""
        size, (*outer, step) = tensor.element_size(), self.last.strides
        strides = (*outer, *(one * size * step for one in tensor.stride()), step)
        first = tensor.storage_offset() * size
        shape = (*self.last.shape[:2], *tensor.shape, size)
        return np.lib.stride_tricks.as_strided(self.last[:, :, first:], shape, strides)

    def pending(self):
        """Freed: by stream the last operation that nobody waits for before the memory is handed out again."""
        last = self.last.max(axis=(0, 2), initial=0)
        for stream in self.told:
            last = np.where(last <= stream.clock, 0, last)
        last[self.owner.number] = 0
        return last


class Device:
    """One rank's device in a job of `size` ranks. faults: what was found, each once."""

    def __init__(self, monkeypatch, rank, size):
        names = ["main", "side", *(channel.name for channel in Channel)]
        self.streams = [Stream(self, number, name, len(names)) for number, name in enumerate(names)]
        self.main, self.side, *_ = self.streams
        self.current = self.main
        self.faults: dict[str, None] = {}
        self._held: dict[int, Memory] = {}
        self._freed: dict[str, list] = {name: [] for name in names}
        cuda = SimpleNamespace(current_stream=lambda _=None: self.current, stream=self._on)
        monkeypatch.setattr(lanes, "torch", SimpleNamespace(cuda=cuda))
        monkeypatch.setattr(lanes, "_side_stream", lambda _: self.side)
        monkeypatch.setattr(torch.Tensor, "is_cuda", True)
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda one, stream: self.memory(one).told.append(stream))
        monkeypatch.setattr(merging, "_merge_on_cuda", merging._merge_plainly)
        dist = SimpleNamespace(get_rank=lambda: rank, get_world_size=lambda: size, isend=READ, irecv=WRITE)
        dist.P2POp = lambda kind, tensor, peer, group: (kind, tensor, group)
        dist.batch_isend_irecv = lambda batch: [self._message([one[:2] for one in batch], batch[0][2])]
        monkeypatch.setattr(transport, "dist", dist)
        for name in ("_all_gather", "_reduce_scatter"):
            monkeypatch.setattr(transport, name, self._collective)
        self.transport = transport.GroupTransport(dict(zip(Channel, self.streams[2:], strict=True)))

    def running(self):
        """A context; operations of torch inside are the device's."""
        return _Operations(self)

    def allocate(self, tensor, made):
        """The current stream's memory for a new tensor."""
        stream = self.current
        for freed, pending in self._freed[stream.name]:
            for other in self.streams:
                if pending[other.number] > stream.clock[other.number]:
                    self._fault(f"{made} on {stream.name} gets memory of {freed}, still in use on {other.name}")
        self._freed[stream.name].clear()
        storage = tensor.untyped_storage()
        self._held[storage._cdata] = Memory(storage, stream, stream.now, made)

    def holds(self, tensor):
        """Whether it has been seen."""
        return tensor.untyped_storage()._cdata in self._held

    def memory(self, tensor):
        """Of any tensor; what is new was there before, and is the main stream's."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._held:
            self._held[storage._cdata] = Memory(storage, self.main, 0, "an input")
        return self._held[storage._cdata]

    def use(self, stream, tensor, kind, what):
        """The last operation of a stream reads or writes a tensor. What was never written may be read at any time."""
        memory = self.memory(tensor)
        last = memory.of(tensor)
        for other in self.streams:
            before = last[WRITE if kind == READ else slice(None), other.number].max(initial=0)
            if kind == WRITE and other is memory.owner:
                before = max(before, memory.born)
            if before > stream.clock[other.number]:
                did = "reads" if kind == READ else "writes"
                self._fault(f"{what} on {stream.name} {did} memory of {memory.made} too early for {other.name}")
        last[kind, stream.number] = stream.now

    def collect(self):
        """Memory that nobody holds any more goes back to its stream; before any clock changes."""
        for key in [key for key, memory in self._held.items() if memory.alive.expired()]:
            memory = self._held.pop(key)
            self._freed[memory.owner.name].append((memory.made, memory.pending()))

    def returned(self, call, made):
        """What a call made; by then the main stream must wait for all others."""
        self.collect()
        for other in self.streams:
            if other.now > self.main.clock[other.number]:
                self._fault(f"{call} returns too early for {other.name}")
        return made

    def _message(self, tensors, stream):
        """What follows on the current stream waits for it where that is asked for."""
        stream.wait_stream(self.current)
        stream.begin()
        for kind, tensor in tensors:
            assert tensor.is_contiguous()
            self.use(stream, tensor, kind, "a message")
        return stream.record_event()

    def _collective(self, target, source, group):
        self._message([(READ, source), (WRITE, target)], group).wait()

    def _fault(self, words):
        self.faults[words] = None

    @contextmanager
    def _on(self, stream):
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before


class _Operations(TorchDispatchMode):
    """Each operation reads and writes on the current stream what its schema says; views do nothing."""

    def __init__(self, device):
        super().__init__()
        self._device = device

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        device, schema = self._device, func._schema
        device.collect()
        made = func(*args, **(kwargs or {}))
        aliases = [one.alias_info for one in schema.returns]
        if aliases and all(one is not None and not one.is_write for one in aliases):
            return made
        device.current.begin()
        name = schema.name.split("::")[1]
        what = f"{name} ({_where()})"
        given = {**dict(zip((one.name for one in schema.arguments), args, strict=False)), **(kwargs or {})}
        shape_only = name.startswith("new_") or name.endswith("_like")
        used = []
        for one in schema.arguments:
            kind = WRITE if one.alias_info is not None and one.alias_info.is_write else READ
            used += [(kind, tensor) for tensor in _tensors(given.get(one.name)) if kind == WRITE or not shape_only]
        for kind, tensor in used:
            device.use(device.current, tensor, kind, what)
        for tensor in _tensors(made):
            if not device.holds(tensor):
                device.allocate(tensor, what)
                if name not in _ROOM:
                    device.use(device.current, tensor, WRITE, what)
        return made


def _tensors(given):
    return [one for one in tree_leaves(given) if isinstance(one, torch.Tensor)]


def _where():
    """The line of the project that asks for it, none of the guard's."""
    frame = sys._getframe(2)
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(_SOURCES) and not path.endswith("guard.py"):
            return f"{path.rpartition('/')[2]}:{frame.f_lineno}"
        frame = frame.f_back
    return "outside"
