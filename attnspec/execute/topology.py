"""How the CUDA devices of a machine are connected: NVLinks, PCIe, NUMA nodes. What nobody tells is None."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attnspec.execute.nvml import Nvml

PCI_DEVICES = Path("/sys/bus/pci/devices")


def device_topology(devices: Sequence[Nvml | None], pci_devices: Path = PCI_DEVICES) -> dict[str, Any]:
    """Of devices in torch's order; None for one that the management library does not know (MIG, some containers).

    nvlinks_to_switch, numa_nodes, cpus, pcie: by device. nvlinks: active links that lead from one straight to the
    other; p2p_over_nvlink, pcie_ancestor: between two, None for one with itself. PCI addresses are not recorded.
    """
    places = [None if one is None else one.pci_place() for one in devices]
    ends = [None if one is None else one.nvlinks() for one in devices]
    pairs = [[(one, other) for other in devices] for one in devices]
    return {
        "nvlinks": [[None if of is None or place is None else of.count(place) for place in places] for of in ends],
        "nvlinks_to_switch": [None if of is None else of.count("switch") for of in ends],
        "p2p_over_nvlink": [
            [None if a is None or b is None or a is b else a.p2p_over_nvlink(b) for a, b in row] for row in pairs
        ],
        "pcie_ancestor": [
            [None if a is None or b is None or a is b else a.common_ancestor(b) for a, b in row] for row in pairs
        ],
        "pcie": [None if one is None else one.pcie() or None for one in devices],
        "numa_nodes": [_numa_node(pci_devices, place) for place in places],
        "cpus": [_line(pci_devices, place, "local_cpulist") for place in places],
    }


def _numa_node(pci_devices: Path, place: str | None) -> int | None:
    """-1 in the file means that the machine has no nodes or does not say."""
    told = _line(pci_devices, place, "numa_node")
    return None if told is None or not told.isdigit() else int(told)


def _line(pci_devices: Path, place: str | None, name: str) -> str | None:
    if place is not None:
        with contextlib.suppress(OSError):
            return (pci_devices / place / name).read_text().strip() or None
    return None
