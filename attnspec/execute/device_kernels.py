"""Which device kernels an iteration really ran: the witness against silent fallbacks."""

from __future__ import annotations

import re

import torch
from torch.profiler import ProfilerActivity, profile

from attnspec.errors import AttnspecError
from attnspec.execute.prepared import Step
from attnspec.shape import Pass
from attnspec.support import ExpectedKernels
from attnspec.support.kernel_names import patterns


class FallbackError(AttnspecError):
    """Another kernel than the intended one ran."""


def device_kernels(step: Step, device: torch.device) -> tuple[str, ...] | None:
    """Names of the device kernels of one iteration, in the order of their first launch; None where there is no device.

    Empty where the profiler saw nothing (it may not be allowed to): then nothing shows which kernels ran.
    """
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
    return tuple(names)


def check_kernels(names: tuple[str, ...] | None, expected: ExpectedKernels, pass_: Pass) -> None:
    """Raise FallbackError unless kernels with the names that the adapter expects of this pass are among those that ran.

    Without a profile there is no verdict.

    >>> from attnspec.support.kernel_names import FLASH_ATTENTION_2
    >>> check_kernels(("flash_fwd_kernel", "elementwise"), FLASH_ATTENTION_2, "fwd")
    >>> check_kernels(
    ...     ("flash_fwd_kernel", "softmax_warp_backward"), FLASH_ATTENTION_2, "fwd_bwd"
    ... )  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    attnspec.execute.device_kernels.FallbackError: no device kernel of fwd_bwd matched 'flash_bwd_dq_dk_dv'; ran: ...
    """
    if not names:
        return
    for pattern in patterns(expected, pass_):
        if not any(re.search(pattern, name) for name in names):
            raise FallbackError(f"no device kernel of {pass_} matched {pattern!r}; ran: {', '.join(names)}")
