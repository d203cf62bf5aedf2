"""Two CUDA streams that a strategy's calls take in turn: one call's last blocks and its merge hide behind the next.

For kernels that gain by it (`overlaps` in attnspec.support.bound): on two H200 FlashAttention 2 gained up to 19 percent
and cuDNN up to 6, the persistent kernels of FlashAttention 3 and 4 lost up to 4, so those stay on one stream.

Lane 0 is the caller's current stream. What a lane allocates and frees is its own. Memory of one lane that the other
uses, and that is dropped before the lanes are joined, is kept from reuse by `use`; so is what the caller's stream uses
of the side lane's, where they are joined in the middle of a block and a call on the side lane follows. After the last
call there memory of the side lane needs none: it is handed out again only inside a later block, which begins by waiting
for the caller's stream. On the CPU there are no lanes and nothing to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any, Self

import torch
from torch import Tensor

from attnspec.shape import Pass
from attnspec.support import BoundKernel

_new_stream: Any = torch.cuda.Stream


class Lanes:
    """The lanes of one pass; at the end of the block the caller's stream waits for both.

    like: a tensor on its device. overlapped: whether there are two.
    """

    def __init__(self, like: Tensor, *, overlapped: bool) -> None:
        self._streams: tuple[torch.cuda.Stream, ...] = ()
        self._in_turn: Any = None
        if like.is_cuda and overlapped:
            self._streams = (torch.cuda.current_stream(like.device), _side_stream(like.device))
            self._streams[1].wait_stream(self._streams[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.join()

    def join(self) -> None:
        """The caller's stream waits for what both lanes have been given."""
        if self._streams:
            self._streams[0].wait_stream(self._streams[1])

    def on(self, step: int) -> AbstractContextManager[Any]:
        """What is enqueued inside goes to the lane of a step or call."""
        return torch.cuda.stream(self._streams[step % 2]) if self._streams else nullcontext()

    @contextmanager
    def in_turn(self, step: int) -> Iterator[None]:
        """The same, after everything that was enqueued in turn before."""
        with self.on(step):
            if self._in_turn is not None:
                self._in_turn.wait()
            yield
            if self._streams:
                self._in_turn = torch.cuda.current_stream().record_event()


def overlap(kernels: Iterable[BoundKernel], pass_: Pass) -> bool:
    """Whether there are any, of which two calls at once of that pass take less time than one after the other."""
    found = list(kernels)
    return bool(found) and all(pass_ in getattr(one, "overlaps", ()) for one in found)


def use(tensor: Tensor) -> None:
    """Its memory, from whichever lane it is, is not used again before what the current stream does with it is done."""
    if tensor.is_cuda:
        tensor.record_stream(torch.cuda.current_stream(tensor.device))


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    stream: torch.cuda.Stream = _new_stream(device)
    return stream
