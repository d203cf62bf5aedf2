"""Peaks of known devices (`data/devices.yaml`), for rough estimates before anything runs."""

from __future__ import annotations

from attnspec.launch.runner_profile import Runner
from attnspec.resources import shipped
from attnspec.shape import DType
from attnspec.spec.yaml_text import parse_yaml
from attnspec.support import Device

ATTENTION_SHARE = 0.5
"""Share of its peak that a device is taken to reach; good kernels measure 0.4 to 0.7 on long sequences."""


def nominal_tflops(runner: Runner, dtype: DType) -> float | None:
    """A rough attention throughput of one device of a runner; None where the device or its peak in dtype is unknown.

    The first device of the list that the profile's model and capability fit.
    """
    if runner.device.model is None or dtype not in ("bfloat16", "float16"):
        return None
    document = parse_yaml((shipped("data") / "devices.yaml").read_text(encoding="utf-8"), "devices.yaml")
    assert not document.problems, document.problems
    for known in document.value.values():
        major, minor = map(int, known["capability"].split("."))
        for name in known["driver_names"]:
            if runner.mismatch(Device(type="cuda", capability=(major, minor), model=name)) is None:
                return float(known["bf16_dense_tflops"]) * ATTENTION_SHARE
    return None
