"""What a worker finds: software, device, host. Constant over attempts on one machine; no names of people or hosts."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from attnspec import __version__, plugins
from attnspec.errors import AttnspecError, EnvironmentMissingError, InputError
from attnspec.execute.memory import available_host_bytes
from attnspec.execute.nvml import Nvml
from attnspec.support import Device
from attnspec.wire import WIRE_VERSION, JobRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """torch's device, the same for Support, its driver, and everything else as JSON for the record.

    variables: those that change what is measured, as the process was started with them.
    """

    device: torch.device
    support: Device
    driver: str | None
    variables: Mapping[str, str]
    facts: dict[str, Any]


def look_around(request: JobRequest, local_rank: int, variables: Mapping[str, str]) -> Environment:
    """Find out. Raises EnvironmentMissingError when the device that the job needs is not there.

    variables: `measured_variables` from before anything in this process set any, since what kernels set
    (`set_defaults`) depends on which cases an attempt is asked for.
    """
    device = _device(request, local_rank)
    nvml = Nvml.of(device) if device.type == "cuda" else None
    driver = _driver(nvml) if device.type == "cuda" else None
    facts: dict[str, Any] = {
        "attnspec": __version__,
        "code_sha256": request.code_sha256,
        "wire_version": WIRE_VERSION,
        "image_id": request.image_id,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "versions": _versions(request),
        "cpu": _cpu(),
        "env": dict(sorted(request.env.items())),
        "variables": dict(variables),
    }
    if device.type == "cuda":
        found = torch.cuda.get_device_properties(device)
        support = Device(type="cuda", capability=(found.major, found.minor), model=found.name)
        cudnn: Any = torch.backends.cudnn
        nccl: Any = torch.cuda.nccl
        facts["cuda"] = {
            "runtime": torch.version.cuda,
            "cudnn": cudnn.version(),
            "nccl": ".".join(map(str, nccl.version())) if torch.distributed.is_nccl_available() else None,
            "capability": [found.major, found.minor],
            "memory_bytes": found.total_memory,
            "num_sms": found.multi_processor_count,
            "l2_bytes": found.L2_cache_size,
            "num_devices": torch.cuda.device_count(),
            "power_limit_w": None if nvml is None else nvml.power_limit_w(),
            "clocks_max_mhz": None if nvml is None else _most(nvml.clocks_mhz()),
        }
    else:
        support = Device(type="cpu", model=facts["cpu"]["model"])
    facts["device"], facts["driver"] = support.model, driver
    return Environment(device=device, support=support, driver=driver, variables=variables, facts=facts)


def conditions(environment: Environment) -> dict[str, Any]:
    """What changes from moment to moment, noted beside the environment."""
    found: dict[str, Any] = {"host_available_bytes": available_host_bytes(), "load": list(os.getloadavg())}
    if environment.device.type == "cuda":
        nvml = Nvml.of(environment.device)
        free, _ = torch.cuda.mem_get_info(environment.device)
        found |= {"device_free_bytes": free}
        if nvml is not None:
            found |= {"clocks_mhz": nvml.clocks_mhz(), "throttle_reasons": list(nvml.throttle_reasons() or ())}
    return found


def _device(request: JobRequest, local_rank: int) -> torch.device:
    if request.device == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        built = f"torch {torch.__version__} was built for CUDA {torch.version.cuda}" if torch.version.cuda else ""
        raise EnvironmentMissingError(
            "the runner expects a CUDA device and torch finds none"
            f" ({built or f'torch {torch.__version__} was built without CUDA'}); "
            "choose a runner for this machine, or install the driver and a torch that fit"
        )
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise EnvironmentMissingError(f"rank {local_rank} of this machine needs a GPU of its own; it has {count}")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def _versions(request: JobRequest) -> dict[str, str]:
    """torch and friends, and every package that could run a kernel or strategy of the job, without importing them."""
    distributions = {"torch", "numpy", "pyarrow", "triton"}
    asked = [case.implementation for workload in request.workloads for case in workload.cases]
    used = {("kernels", one.kernel) for one in asked} | {("strategies", one.strategy) for one in asked if one.strategy}
    for kind, name in used:
        with contextlib.suppress(InputError):  # an unknown one becomes its cases' own outcome
            module = plugins.load(kind, name)
            held = (*getattr(module, "PROVIDERS", ()), *getattr(module, "BACKEND_PACKAGES", {}).values())
            distributions |= {provider.distribution for provider in held}
    found = {}
    for name in sorted(distributions):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _driver(nvml: Nvml | None) -> str | None:
    version = None if nvml is None else nvml.driver_version()
    if version is None:
        with contextlib.suppress(OSError):
            text = Path("/proc/driver/nvidia/version").read_text()
            if match := re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", text):
                version = match[1]
    return version


def set_defaults(kernels: Iterable[str]) -> None:
    """The variables that kernels want, where nobody set them. Before any of their libraries is imported."""
    for kernel in sorted(set(kernels)):
        with contextlib.suppress(AttnspecError):  # an unknown kernel is its cases' outcome, told in their turn
            for name, value in getattr(plugins.load("kernels", kernel), "ENVIRONMENT", {}).items():
                os.environ.setdefault(name, value)


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu() -> dict[str, Any]:
    return {
        "model": _first(_lines("/proc/cpuinfo"), "model name") or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "usable_cores": usable_cores(),
        "threads": torch.get_num_threads(),
        "governor": next(iter(_lines("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")), None),
        "memory_kib": _first(_lines("/proc/meminfo"), "MemTotal"),
    }


def _lines(path: str) -> list[str]:
    with contextlib.suppress(OSError):
        return Path(path).read_text(errors="replace").splitlines()
    return []


def _first(lines: Iterable[str], name: str) -> str | None:
    for line in lines:
        key, colon, value = line.partition(":")
        if colon and key.strip() == name:
            return value.strip()
    return None


def _most(clocks_mhz: dict[str, int]) -> dict[str, int]:
    return {name: value for name, value in clocks_mhz.items() if name.endswith("_max")}
