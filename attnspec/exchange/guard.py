"""A rank whose computation fails still sends what others wait for, and raises at the end.

So a kernel that runs out of memory or refuses on one rank never leaves the others waiting. Whatever may allocate
between two messages goes through a `Guard`: computation by `run`, memory of messages by `room`, copies by `copied` and
`contiguous`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from attnspec.errors import AttnspecError

P = ParamSpec("P")
T = TypeVar("T")


class NoRoomError(AttnspecError):
    """A rank has no memory even for messages, so it cannot serve the others. cause: what went wrong first."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"no memory for messages: {cause}")
        self.cause = cause


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
        """Memory for a message. Where there is none left the computation is given up and its memory used.

        Raises NoRoomError where that is not enough: the one failure that messages do not outlive.
        """
        dtype = dtype or like.dtype
        made = self._new(like, shape, dtype)
        if made is None:
            gc.collect()
            if like.is_cuda:
                torch.cuda.empty_cache()
            made = self._new(like, shape, dtype)
        if made is None:
            assert self.error is not None
            raise NoRoomError(self.error)
        return made

    def copied(self, part: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """A contiguous copy; right unless an error is held."""
        room = self.room(part, part.shape, dtype)
        self.run(room.copy_, part)
        return room

    def contiguous(self, part: Tensor) -> Tensor:
        """The tensor itself where it is contiguous, else a copy."""
        return part if part.is_contiguous() else self.copied(part)

    def _new(self, like: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
        try:
            return like.new_empty(tuple(shape), dtype=dtype)
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            self.error = self.error or error
            error.__traceback__ = self.error.__traceback__ = None  # their frames hold tensors
            return None
