"""The kinds of device that a case may run on while nobody has looked, and what all of them refuse. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from attnspec.errors import UnsupportedError
from attnspec.plan.model import Unsupported
from attnspec.support import Device

_T = TypeVar("_T")
_WHERE = {"cuda": "with CUDA", "cpu": "without"}


def possible_devices(device: Device | None) -> tuple[Device, ...]:
    """The device, or all that a machine may turn out to have: any CUDA device, else the CPU.

    >>> [one.type for one in possible_devices(None)]
    ['cuda', 'cpu']
    """
    return (Device(type="cuda"), Device(type="cpu")) if device is None else (device,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What every device refuses: one reason, and the reason codes of each."""

    why: Unsupported
    grounds: tuple[str, ...]


def first_answer(devices: Sequence[Device], ask: Callable[[Device], _T]) -> tuple[_T | None, Refusal | None]:
    """The answer of the first device for which `ask` raises no UnsupportedError, else why all of them refuse."""
    found: list[Unsupported] = []
    for device in devices:
        try:
            return ask(device), None
        except UnsupportedError as error:
            found.append(Unsupported(reason_code=error.reason_code, reason=error.reason))
    return None, joined(devices, found)


def joined(devices: Sequence[Device], refusals: Sequence[Unsupported]) -> Refusal:
    """One refusal from that of each device: their words where these differ, and the first one's code.

    >>> told = [Unsupported(reason_code=code, reason=f"no {code}") for code in ("dtype", "heads")]
    >>> joined(possible_devices(None), told).why.reason
    'with CUDA: no dtype; without: no heads'
    >>> joined(possible_devices(None), told[:1] * 2).why.reason
    'no dtype'
    """
    reasons = list(dict.fromkeys(one.reason for one in refusals))
    if len(reasons) > 1:
        told = zip(devices, refusals, strict=True)
        reasons = ["; ".join(f"{_WHERE[device.type]}: {one.reason}" for device, one in told)]
    why = Unsupported(reason_code=refusals[0].reason_code, reason=reasons[0])
    return Refusal(why=why, grounds=tuple(one.reason_code for one in refusals))
