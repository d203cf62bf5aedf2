"""A rank whose computation fails still sends what others wait for, and raises at the end.

So a kernel that runs out of memory or refuses on one rank never leaves the others waiting.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
T = TypeVar("T")


class Guard:
    """One forward or backward of a strategy. error: what went wrong before; then only messages are exchanged."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def run(self, compute: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """What `compute` returns; None when it, or anything before it, failed."""
        if self.error is None:
            try:
                return compute(*args, **kwargs)
            except Exception as error:  # noqa: BLE001  (raised again by `finish`, after all messages)
                self.error = error
        return None

    def finish(self) -> None:
        """Raise what went wrong."""
        if self.error is not None:
            raise self.error

    def room(self, like: Tensor, shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
        """Memory for a message. Where there is none left the computation is given up and its memory used."""
        try:
            return like.new_empty(tuple(shape), dtype=dtype or like.dtype)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            self.error = self.error or error
            error.__traceback__ = self.error.__traceback__ = None  # their frames hold tensors
        gc.collect()
        if like.is_cuda:
            torch.cuda.empty_cache()
        return like.new_empty(tuple(shape), dtype=dtype or like.dtype)
