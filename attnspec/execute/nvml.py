"""NVIDIA's management library through ctypes: driver, throttle reasons, SM clock, connections. Absent is no error."""

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


_NOT_SUPPORTED = 3
_MOST_LINKS = 18
_P2P_NVLINK = 2
_SWITCH = 2
ANCESTORS = {0: "same board", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""nvmlGpuTopologyLevel, by the names that nvidia-smi topo has for them."""
P2P_STATUSES = {
    0: "ok",
    1: "not supported by the chipset",
    2: "not supported by the GPU",
    3: "not supported by the topology",
    4: "disabled",
    5: "not supported",
}
"""nvmlGpuP2PStatus."""


class _PciInfo(ctypes.Structure):
    _fields_ = (
        ("busIdLegacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("pciDeviceId", ctypes.c_uint),
        ("pciSubSystemId", ctypes.c_uint),
        ("busId", ctypes.c_char * 32),
    )

    @property
    def place(self) -> str:
        """As Linux names it, such as 0000:1b:00.0."""
        return f"{self.domain:04x}:{self.bus:02x}:{self.device:02x}.0"


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

    def pci_place(self) -> str | None:
        """Where it is on the PCI bus, as Linux names that."""
        found = _PciInfo()
        return found.place if self._ask("nvmlDeviceGetPciInfo_v3", ctypes.byref(found)) == _SUCCESS else None

    def pcie(self) -> dict[str, int]:
        """Generation and lanes that device and slot allow, as far as the library tells."""
        found = {}
        for name, call in (("generation", "Generation"), ("lanes", "Width")):
            value = ctypes.c_uint()
            if self._ask(f"nvmlDeviceGetMaxPcieLink{call}", ctypes.byref(value)) == _SUCCESS:
                found[name] = value.value
        return found

    def nvlinks(self) -> tuple[str, ...] | None:
        """The other end of each active NVLink: `switch`, a GPU's PCI place, or `other`. None where nothing is told."""
        ends: list[str] = []
        told = False
        for link in range(_MOST_LINKS):
            active, kind, remote = ctypes.c_uint(), ctypes.c_uint(), _PciInfo()
            answer = self._ask("nvmlDeviceGetNvLinkState", link, ctypes.byref(active))
            told = told or answer in (_SUCCESS, _NOT_SUPPORTED)
            if answer != _SUCCESS or not active.value:
                continue
            switched = (
                self._ask("nvmlDeviceGetNvLinkRemoteDeviceType", link, ctypes.byref(kind)) == _SUCCESS
                and kind.value == _SWITCH
            )
            known = self._ask("nvmlDeviceGetNvLinkRemotePciInfo_v2", link, ctypes.byref(remote)) == _SUCCESS
            ends.append("switch" if switched else remote.place if known else "other")
        return tuple(ends) if told else None

    def p2p_over_nvlink(self, other: Nvml) -> str | None:
        """Whether they reach each other's memory over NVLink, one of P2P_STATUSES."""
        status = ctypes.c_uint()
        if self._ask("nvmlDeviceGetP2PStatus", other._handle, _P2P_NVLINK, ctypes.byref(status)) != _SUCCESS:
            return None
        return P2P_STATUSES.get(status.value)

    def common_ancestor(self, other: Nvml) -> str | None:
        """The innermost thing on PCIe that both hang on, one of ANCESTORS."""
        level = ctypes.c_uint()
        if self._ask("nvmlDeviceGetTopologyCommonAncestor", other._handle, ctypes.byref(level)) != _SUCCESS:
            return None
        return ANCESTORS.get(level.value)

    def _ask(self, name: str, *arguments: Any) -> int | None:
        """The answer's code; None where this version of the library has no such function."""
        call = getattr(self._library, name, None)
        return None if call is None else int(call(self._handle, *arguments))
