"""What a kernel is asked to compute: shape, slices and device. Pure; no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from attnspec.shape import Shape
from attnspec.slices import AttnSlices


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The kind of device that runs a case. `capability` is CUDA's compute capability, None off CUDA or unknown.

    Where it is unknown, as it may be while planning, a kernel refuses only what it refuses on every one.
    """

    type: Literal["cpu", "cuda"]
    capability: tuple[int, int] | None = None
    model: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One attention call on one kind of device.

    `needs_backward`: a backward will follow this forward (passes bwd and fwd_bwd).
    """

    shape: Shape
    slices: AttnSlices
    needs_backward: bool
    device: Device
