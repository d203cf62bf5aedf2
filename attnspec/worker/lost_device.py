"""After a failed call: free what it held, and make sure that the device still answers."""

from __future__ import annotations

import traceback

import torch

from attnspec.errors import AttnspecError
from attnspec.execute.clock import Clock
from attnspec.execute.memory import release


class DeviceLostError(AttnspecError):
    """The device answers nothing any more; only a fresh process can go on."""


def let_go(error: Exception, device: torch.device, clock: Clock) -> None:
    """Free the failed call's memory. Raises DeviceLostError where the device is in an error that stays."""
    held: BaseException | None = error
    while held is not None:
        traceback.clear_frames(held.__traceback__)
        held = held.__cause__ or held.__context__
    try:
        release(device)
        clock.synchronize()
    except Exception as lost:
        raise DeviceLostError(f"the device does not answer after: {error}") from lost
