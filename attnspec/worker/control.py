"""The worker's ends: events out on what was standard output, end of the control pipe in, nothing left behind.

Standard output is the event stream, so everything else that prints goes to standard error. When standard input closes,
the host is gone or wants an end: the worker gets a moment to finish its last write, then its whole process tree goes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

from attnspec.wire import Event, dumps

GRACE_S = 3.0


class Stopped(BaseException):
    """The worker was told to stop. Raised in the main thread, never inside `Stop.deferred`."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number = number


class Stop:
    """Turns SIGTERM and SIGINT into Stopped, once, and not in the middle of a write."""

    def __init__(self) -> None:
        self._deferring = False
        self._pending: int | None = None
        self._raised = False

    def install(self) -> None:
        """Take the signals over."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Signals wait until the end of the block."""
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False
        if self._pending is not None:
            self._stop(self._pending)

    def over(self) -> None:
        """What is left to do is to tell how it ended: signals are ignored from now on."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._deferring:
            self._pending = number
        else:
            self._stop(number)

    def _stop(self, number: int) -> None:
        if not self._raised:
            self._raised = True
            raise Stopped(number)


class EventStream:
    """Events as JSON lines on the standard output that the process was started with."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._lock = threading.Lock()

    @classmethod
    def take_stdout(cls) -> EventStream:
        """Keep standard output for events and send everything else that is printed to standard error."""
        sys.stdout.flush()
        handle = os.dup(1)
        os.set_inheritable(handle, False)
        os.dup2(2, 1)
        return cls(handle)

    def send(self, event: Event) -> None:
        """One line, whole. A host that does not listen any more is no error: its control pipe tells."""
        rest = memoryview(f"{dumps(event)}\n".encode())
        with self._lock, contextlib.suppress(BrokenPipeError):
            while rest:
                rest = rest[os.write(self._handle, rest) :]


def watch_control_pipe() -> None:
    """End this process and all that it started when standard input closes."""
    threading.Thread(target=_watch, name="control-pipe", daemon=True).start()


def _watch() -> None:
    try:
        while os.read(0, 4096):
            pass
    except OSError:
        return  # started without a standard input: nobody holds a control pipe
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    leave(128 + signal.SIGTERM)


def leave(code: int) -> NoReturn:
    """End everything that this process started, then this process, without the slow farewell of libraries."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    for pid in descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    os._exit(code)


def descendants(root: int) -> list[int]:
    """Processes started by `root` and by those, also in sessions of their own (compile workers); [] off Linux."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(folder.name))
    found, left = [], [root]
    while left:
        children = parents.get(left.pop(), [])
        found += children
        left += children
    return found
