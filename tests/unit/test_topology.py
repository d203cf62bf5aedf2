"""How devices are connected, as a stand-in for the management library tells it."""

# ruff: noqa: N802  (the library's own names)

from __future__ import annotations

import ctypes

import pytest

from attnspec.execute.nvml import Nvml
from attnspec.execute.topology import device_topology

NOT_SUPPORTED, INVALID, OK = 3, 2, 0


def _handle(number):
    return ctypes.c_void_p(number + 1)  # 0 would be a null pointer


def _number(handle):
    return handle.value - 1


class Library:
    """Two to eight GPUs. links: device -> the other end of each active link, a device or "switch"."""

    def __init__(self, links, status=0, level=20):
        self.links, self.status, self.level = links, status, level

    def nvmlDeviceGetPciInfo_v3(self, handle, info):
        info._obj.domain, info._obj.bus, info._obj.device = 0, 0x1B + _number(handle), 0
        return OK

    def nvmlDeviceGetNvLinkState(self, handle, link, active):
        ends = self.links[_number(handle)]
        if ends is None:
            return NOT_SUPPORTED
        if link >= max(len(ends), 4):
            return INVALID
        active._obj.value = link < len(ends)
        return OK

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle, link, kind):
        kind._obj.value = 2 if self.links[_number(handle)][link] == "switch" else 0
        return OK

    def nvmlDeviceGetNvLinkRemotePciInfo_v2(self, handle, link, info):
        end = self.links[_number(handle)][link]
        at = {"switch": 100}.get(end, end)
        return NOT_SUPPORTED if end == "other" else self.nvmlDeviceGetPciInfo_v3(_handle(at), info)

    def nvmlDeviceGetP2PStatus(self, one, other, index, status):
        assert index == 2
        status._obj.value = self.status
        return OK

    def nvmlDeviceGetTopologyCommonAncestor(self, one, other, level):
        level._obj.value = self.level
        return OK

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle, value):
        value._obj.value = 5
        return OK

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle, value):
        value._obj.value = 16
        return OK


def devices(library, count=2):
    return [Nvml(library, _handle(index)) for index in range(count)]


def pci(folder, **files):
    for number, place in enumerate(("0000:1b:00.0", "0000:1c:00.0")):
        (folder / place).mkdir()
        for name, lines in files.items():
            (folder / place / name).write_text(f"{lines[number]}\n")
    return folder


def test_links_through_a_switch(tmp_path):
    found = device_topology(
        devices(Library({0: ["switch"] * 18, 1: ["switch"] * 18}, level=50)),
        pci(tmp_path, numa_node=(0, 1), local_cpulist=("0-31", "32-63")),
    )
    assert found == {
        "nvlinks": [[0, 0], [0, 0]],
        "nvlinks_to_switch": [18, 18],
        "p2p_over_nvlink": [[None, "ok"], ["ok", None]],
        "pcie_ancestor": [[None, "SYS"], ["SYS", None]],
        "pcie": [{"generation": 5, "lanes": 16}] * 2,
        "numa_nodes": [0, 1],
        "cpus": ["0-31", "32-63"],
    }


def test_links_straight_to_another(tmp_path):
    found = device_topology(devices(Library({0: [1, 1, "other"], 1: [0, 0]})), tmp_path)
    assert (found["nvlinks"], found["nvlinks_to_switch"]) == ([[0, 2], [2, 0]], [0, 0])
    assert found["numa_nodes"] == found["cpus"] == [None, None]


def test_devices_without_nvlink_have_none(tmp_path):
    found = device_topology(devices(Library({0: None, 1: None}, status=5)), pci(tmp_path, numa_node=(-1, -1)))
    assert (found["nvlinks"], found["nvlinks_to_switch"]) == ([[0, 0], [0, 0]], [0, 0])
    assert found["p2p_over_nvlink"][0][1] == "not supported"
    assert found["numa_nodes"] == [None, None]


@pytest.mark.parametrize("known", [[None, None], devices(object())], ids=["no library", "an old library"])
def test_what_nobody_tells_is_none(tmp_path, known):
    found = device_topology(known, tmp_path)
    nothing = [None, None]
    for name in ("nvlinks", "p2p_over_nvlink", "pcie_ancestor"):
        assert found.pop(name) == [nothing, nothing]
    assert set(found) == {"nvlinks_to_switch", "pcie", "numa_nodes", "cpus"}
    assert all(value == nothing for value in found.values())
