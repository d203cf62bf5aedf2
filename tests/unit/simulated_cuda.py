"""A CUDA device in simulated time: one stream of operations behind a host that enqueues them.

Host calls cost host time; operations run on the device after what was enqueued before them and after their enqueueing.
A full queue makes the host wait.
"""

from __future__ import annotations

import math
from collections import deque
from types import SimpleNamespace

CYCLES_PER_NS = 2.0
LAUNCH_NS = 5_000
QUEUE_LENGTH = 1024


class Device:
    def __init__(self, *, flush_ns=58_000):
        self.host_ns = 1_000_000
        self.free_ns = 0
        self.flush_ns = flush_ns
        self.log: list[str] = []
        self.queue: deque[float] = deque(maxlen=QUEUE_LENGTH)

    def enqueue(self, name: str, duration_ns: float, launch_ns: int = LAUNCH_NS) -> None:
        if len(self.queue) == QUEUE_LENGTH:
            self.host_ns = max(self.host_ns, math.ceil(self.queue[0]))
        self.host_ns += launch_ns
        self.free_ns = max(self.free_ns, self.host_ns) + duration_ns
        self.queue.append(self.free_ns)
        self.log.append(name)

    def synchronize(self, *_):
        self.host_ns = max(self.host_ns, math.ceil(self.free_ns))

    def kernel(self, duration_ns: float, launch_ns: int = LAUNCH_NS):
        return lambda: self.enqueue("kernel", duration_ns, launch_ns)

    def install(self, monkeypatch, module) -> None:
        """Put this device behind a module that uses torch.cuda."""
        device = self

        class Event:
            def __init__(self, enable_timing=False):
                assert enable_timing
                self.at_ns = None

            def record(self):
                device.enqueue("event", 0.0, launch_ns=200)
                self.at_ns = device.free_ns

            def query(self):
                return device.host_ns >= self.at_ns

            def synchronize(self):
                device.host_ns = max(device.host_ns, math.ceil(self.at_ns))

            def elapsed_time(self, other):
                return (other.at_ns - self.at_ns) / 1e6

        cuda = SimpleNamespace(
            get_device_properties=lambda _: SimpleNamespace(L2_cache_size=50 * 2**20),
            synchronize=self.synchronize,
        )
        buffer = SimpleNamespace(zero_=lambda: device.enqueue("flush", device.flush_ns))
        monkeypatch.setattr(
            module, "torch", SimpleNamespace(cuda=cuda, empty=lambda *_, **__: buffer, int32=None, device=None)
        )
        monkeypatch.setattr(
            module, "_spin", lambda cycles: device.enqueue("spin", cycles / CYCLES_PER_NS + 1000, launch_ns=2000)
        )
        monkeypatch.setattr(module, "_events", Event)
        monkeypatch.setattr(module, "Nvml", SimpleNamespace(of=lambda _: SimpleNamespace(throttled=lambda: False)))
        clock = SimpleNamespace(perf_counter_ns=lambda: self.host_ns, time_ns=lambda: self.host_ns)
        monkeypatch.setattr(module, "time", clock)
