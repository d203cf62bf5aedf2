"""NVIDIA's management library through ctypes: driver version, throttle reasons, SM clock. Absent is no error."""

from __future__ import annotations

import ctypes
from typing import Any, Self

import torch

_SUCCESS = 0
_CLOCK_SM = 1
THROTTLE_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""Bits of nvmlClocksEventReasons that slow the clock below what was asked (idle and user settings are none)."""


class Nvml:
    """One device as the management library sees it."""

    def __init__(self, library: Any, handle: ctypes.c_void_p) -> None:
        self._library, self._handle = library, handle

    @classmethod
    def of(cls, device: torch.device) -> Self | None:
        """The device with the same UUID; None where the library or the device is not there (MIG, containers)."""
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return None
        handle = ctypes.c_void_p()
        uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
        if uuid is None or library.nvmlInit_v2() != _SUCCESS:
            return None
        found = library.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode(), ctypes.byref(handle))
        return cls(library, handle) if found == _SUCCESS else None

    def driver_version(self) -> str | None:
        """Such as 580.65.06."""
        text = ctypes.create_string_buffer(96)
        found = self._library.nvmlSystemGetDriverVersion(text, ctypes.c_uint(len(text)))
        return text.value.decode() if found == _SUCCESS else None

    def throttle_reasons(self) -> tuple[str, ...] | None:
        """What slows the clock right now."""
        bits = ctypes.c_ulonglong()
        found = self._library.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle, ctypes.byref(bits))
        if found != _SUCCESS:
            return None
        return tuple(name for bit, name in THROTTLE_REASONS.items() if bits.value & bit)

    def throttled(self) -> bool | None:
        """Whether anything does."""
        reasons = self.throttle_reasons()
        return None if reasons is None else bool(reasons)

    def clocks_mhz(self) -> dict[str, int]:
        """SM and memory clocks now and at most, as far as the library tells."""
        found = {}
        for name, call in (("now", "nvmlDeviceGetClockInfo"), ("max", "nvmlDeviceGetMaxClockInfo")):
            for domain, number in (("sm", _CLOCK_SM), ("memory", 2)):
                value = ctypes.c_uint()
                if getattr(self._library, call)(self._handle, number, ctypes.byref(value)) == _SUCCESS:
                    found[f"{domain}_{name}"] = value.value
        return found

    def power_limit_w(self) -> float | None:
        """The enforced power limit."""
        value = ctypes.c_uint()
        found = self._library.nvmlDeviceGetEnforcedPowerLimit(self._handle, ctypes.byref(value))
        return value.value / 1000 if found == _SUCCESS else None
