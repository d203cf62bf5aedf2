"""Which device kernels an iteration really ran: the witness against silent fallbacks."""

from __future__ import annotations

import re

import torch
from torch.profiler import ProfilerActivity, profile

from attnspec.errors import AttnspecError
from attnspec.execute.prepared import Step


class FallbackError(AttnspecError):
    """Another kernel than the intended one ran."""


def device_kernels(step: Step, device: torch.device) -> tuple[str, ...] | None:
    """Names of the device kernels of one iteration, in the order of their first launch; None where there is no device
    or the profiler saw nothing (it may not be allowed to)."""
    if device.type != "cuda":
        return None
    if step.before is not None:
        step.before()
    torch.cuda.synchronize(device)
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        step.run()
        torch.cuda.synchronize(device)
    events = [event for event in profiler.events() or () if event.device_type.name == "CUDA"]
    events.sort(key=lambda event: event.time_range.start)
    names = dict.fromkeys(event.name for event in events if not event.name.startswith(("Memcpy", "Memset")))
    return tuple(names) or None


def check_kernels(names: tuple[str, ...] | None, expected: str) -> None:
    """Raise FallbackError unless one of the kernels matches the regular expression that the adapter expects.

    >>> check_kernels(("flash_fwd_kernel", "elementwise"), "flash_fwd")
    >>> check_kernels(("softmax_warp_forward",), "flash_fwd")
    Traceback (most recent call last):
    attnspec.execute.device_kernels.FallbackError: no device kernel matched 'flash_fwd'; ran: softmax_warp_forward
    """
    if names and expected and not any(re.search(expected, name) for name in names):
        raise FallbackError(f"no device kernel matched {expected!r}; ran: {', '.join(names)}")
