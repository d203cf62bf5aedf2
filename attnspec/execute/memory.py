"""Memory: what counts as running out of it, letting go of it, limiting it, and how much a step needs at most."""

from __future__ import annotations

import contextlib
import gc
import resource
from pathlib import Path

import torch

from attnspec.execute.prepared import Step

HOST_SHARE = 0.9
_CPU_ALLOCATOR = "DefaultCPUAllocator: can't allocate memory"
_CUDA_DRIVER = "CUDA error: out of memory"


def out_of_memory(error: BaseException) -> str | None:
    """The reason_code of an error that means too little memory, else None.

    torch raises no type of its own for the host's memory, nor for the CUDA driver's; there only the text tells.

    >>> out_of_memory(MemoryError()), out_of_memory(ValueError())
    ('host_memory', None)
    """
    if isinstance(error, torch.OutOfMemoryError):
        return "device_memory"
    if isinstance(error, MemoryError):
        return "host_memory"
    if isinstance(error, RuntimeError):
        if _CPU_ALLOCATOR in str(error):
            return "host_memory"
        if _CUDA_DRIVER in str(error):
            return "device_memory"
    return None


def release(device: torch.device) -> None:
    """Give what nobody holds any more back to the device or the system, reference cycles included."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def available_host_bytes() -> int | None:
    """What this process may still use of the host's memory: the system's own estimate and the control group's limit."""
    found = []
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        found.append(int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]) * 1024)
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        with contextlib.suppress(OSError, ValueError):
            found.append(int(Path(limit).read_text()) - int(Path(used).read_text()))
    return max(min(found), 0) if found else None


def limit_host_memory(available_bytes: int | None) -> None:
    """Let allocations over the available memory fail, so that a case runs out of memory and not the whole worker.

    The limit is on private data mapped (RLIMIT_DATA), which counts what was asked for and not what was touched.
    """
    if available_bytes is None:
        return
    status = Path("/proc/self/status")
    held = 0
    with contextlib.suppress(OSError, ValueError, StopIteration):
        line = next(line for line in status.read_text(encoding="ascii").splitlines() if line.startswith("VmData:"))
        held = int(line.split()[1]) * 1024
    wanted = held + int(HOST_SHARE * available_bytes)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def allocated_bytes(device: torch.device) -> int:
    """Device memory held by tensors; 0 on the CPU."""
    return int(torch.cuda.memory_allocated(device)) if device.type == "cuda" else 0


def peak_bytes(step: Step, device: torch.device, resident_bytes: int) -> int | None:
    """Most device memory of one iteration with its untimed part; None on the CPU.

    resident_bytes: what it needs beside that and is there already, which counts too: inputs, mask, a kept forward.
    Memory that was dropped while another stream still uses it counts as long as nobody else can have it.
    """
    if device.type != "cuda":
        return None
    before = torch.cuda.memory_stats(device)["active_bytes.all.current"]
    if step.before is not None:
        step.before()
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    step.run()
    torch.cuda.synchronize(device)
    return resident_bytes + int(torch.cuda.memory_stats(device)["active_bytes.all.peak"] - before)
