"""The device that a runner expects: in words, and whether a device is it. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from attnspec.support import Device


class Expectation(Protocol):
    """What a profile says of its device, wherever that was read."""

    @property
    def type(self) -> str:
        """One of auto, cpu, cuda."""

    @property
    def model(self) -> str | None:
        """Regular expression for whole words of the device's name."""

    @property
    def capability(self) -> Sequence[int] | None:
        """Major number of the compute capability, and the least minor one."""


def described(expected: Expectation) -> str:
    """The expected device in words."""
    if expected.type != "cuda":
        return {"auto": "a CUDA device or the CPU", "cpu": "the CPU"}[expected.type]
    model = "" if expected.model is None else f" named {expected.model}"
    least = "" if expected.capability is None else f" with compute capability {'.'.join(map(str, expected.capability))}"
    return f"a CUDA device{model}{least}"


def mismatch(expected: Expectation, runner_name: str, found: Device) -> str | None:
    """Why `found` is not what a runner expects, in words; None when it is."""
    if expected.type == "auto":
        return None
    name = f"{found.model or 'a device without a name'} ({found.type})"
    same = expected.type == found.type
    if same and expected.model is not None:
        words = rf"(?<![A-Za-z0-9])(?:{expected.model})(?![A-Za-z0-9])"
        same = re.search(words, found.model, re.IGNORECASE) is not None
    if same and expected.capability is not None and found.capability is not None:
        major, minor = expected.capability
        same = found.capability[0] == major and found.capability[1] >= minor
        name = f"{name} with compute capability {found.capability[0]}.{found.capability[1]}"
    return None if same else f"runner {runner_name} expects {described(expected)}; found {name}"
