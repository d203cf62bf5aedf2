"""A CUDA device in simulated time: one stream of operations behind a host that enqueues them.

Host calls cost host time; operations run on the device after what was enqueued before them and after their enqueueing.
"""

from __future__ import annotations

from types import SimpleNamespace

CYCLES_PER_NS = 2.0
LAUNCH_NS = 5_000


class Device:
    def __init__(self, *, flush_ns=58_000):
        self.host_ns = 1_000_000
        self.free_ns = 0
        self.flush_ns = flush_ns
        self.log: list[str] = []

    def enqueue(self, name: str, duration_ns: float, launch_ns: int = LAUNCH_NS) -> None:
        self.host_ns += launch_ns
        self.free_ns = max(self.free_ns, self.host_ns) + duration_ns
        self.log.append(name)

    def synchronize(self, *_):
        self.host_ns = max(self.host_ns, int(self.free_ns))

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
                device.synchronize()

            def elapsed_time(self, other):
                return (other.at_ns - self.at_ns) / 1e6

        stream = SimpleNamespace(wait_stream=lambda other: device.log.append(f"wait {other}"))
        cuda = SimpleNamespace(
            get_device_properties=lambda _: SimpleNamespace(L2_cache_size=50 * 2**20),
            synchronize=self.synchronize,
            current_stream=lambda _: stream,
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
