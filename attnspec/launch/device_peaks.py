"""Peaks of known devices (`data/devices.yaml`), for rough estimates before anything runs."""

from __future__ import annotations

from attnspec.launch.known_devices import known_devices
from attnspec.launch.runner_profile import Runner
from attnspec.shape import DType
from attnspec.support import Device

ATTENTION_SHARE = 0.5
"""Share of its peak that a device is taken to reach; good kernels measure 0.4 to 0.7 on long sequences."""


def nominal_tflops(runner: Runner, dtype: DType) -> float | None:
    """A rough attention throughput of one device of a runner; None where the device or its peak in dtype is unknown.

    The first device of the list that the profile's model and capability fit.
    """
    if runner.device.model is None or dtype not in ("bfloat16", "float16"):
        return None
    for known in known_devices():
        for name in known.driver_names:
            if runner.mismatch(Device(type="cuda", capability=known.capability, model=name)) is None:
                return known.bf16_dense_tflops * ATTENTION_SHARE
    return None
