"""Signals that ask a run to stop: heard, not obeyed on the spot, so that it can end its worker and write its tables."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """While entered: `number` is the first signal that came. `on_stop`, when set, is called for every one.

    A second signal while nobody listens raises KeyboardInterrupt. What was ignored before stays ignored (nohup). Off
    the main thread nothing is installed.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self.on_stop: Callable[[], None] | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in STOPPING:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._heard)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    @contextmanager
    def obeyed(self) -> Iterator[None]:
        """A signal ends the block at once, for work that is lost without harm; what follows the block goes on."""
        self.on_stop = _interrupt
        try:
            yield
        except KeyboardInterrupt:
            if self.number is None:
                raise
        finally:
            self.on_stop = None

    def _heard(self, number: int, frame: FrameType | None) -> None:
        again = self.number is not None
        self.number = self.number or number
        if self.on_stop is not None:
            self.on_stop()
        elif again:
            raise KeyboardInterrupt


def _interrupt() -> None:
    raise KeyboardInterrupt
