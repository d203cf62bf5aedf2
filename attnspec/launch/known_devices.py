"""The devices of `data/devices.yaml`: bf16 peak, memory and bandwidth of each, with its source."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from attnspec.resources import shipped
from attnspec.spec.yaml_text import parse_yaml


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownDevice:
    """One entry of `data/devices.yaml`; the file's head says what each amount is."""

    key: str
    title: str
    driver_names: tuple[str, ...]
    capability: tuple[int, int]
    bf16_dense_tflops: float
    memory_gb: float
    bandwidth_gb_s: float
    source: str


@cache
def known_devices() -> tuple[KnownDevice, ...]:
    """All entries, in the file's order.

    >>> next(device.bf16_dense_tflops for device in known_devices() if device.key == "h100")
    989.4
    """
    document = parse_yaml((shipped("data") / "devices.yaml").read_text(encoding="utf-8"), "devices.yaml")
    assert not document.problems, document.problems
    return tuple(_device(key, entry) for key, entry in document.value.items())


def _device(key: str, entry: dict[str, Any]) -> KnownDevice:
    major, minor = map(int, entry["capability"].split("."))
    return KnownDevice(
        key=key,
        title=str(entry["title"]),
        driver_names=tuple(map(str, entry["driver_names"])),
        capability=(major, minor),
        bf16_dense_tflops=float(entry["bf16_dense_tflops"]),
        memory_gb=float(entry["memory_gb"]),
        bandwidth_gb_s=float(entry["bandwidth_gb_s"]),
        source=str(entry["source"]),
    )


def known_device(name: str | None) -> KnownDevice | None:
    """The entry of what a driver calls `name`, or None.

    >>> known_device("NVIDIA H200").key, known_device("Some CPU")
    ('h200', None)
    """
    return next((device for device in known_devices() if name in device.driver_names), None)


def same_class(one: KnownDevice, other: KnownDevice) -> bool:
    """Whether two devices have the same compute capability and bf16 peak; memory and bandwidth may differ.

    >>> h100, h200, b200 = (known_device(f"NVIDIA {name}") for name in ("H100 80GB HBM3", "H200", "B200"))
    >>> same_class(h100, h200), same_class(h200, b200)
    (True, False)
    """
    return one.capability == other.capability and one.bf16_dense_tflops == other.bf16_dense_tflops
