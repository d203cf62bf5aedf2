"""The lock of a run folder: one run at a time, released by the kernel when its holder dies, whatever killed it.

Who cancels a run names its holder in a file beside the lock first, so that the run can tell that from other signals.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from attnspec.errors import LockedError, UnwritableError
from attnspec.record.whole_file import unwritable

NAME = ".lock"
CANCELLED = ".cancelled"
_PATIENCE_S = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who holds a lock. `started_ns`: Unix time."""

    pid: int
    host: str
    started_ns: int

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class RunLock:
    """Holds the lock of a run folder while entered. Raises LockedError when another process has it.

    A lock is an flock, so a file left by a dead process locks nothing.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._handle: int | None = None
        self._holder: Holder | None = None

    @property
    def cancelled(self) -> bool:
        """Whether somebody cancelled the run that entered here."""
        return self._holder is not None and _read(self._path.with_name(CANCELLED)) == self._holder

    def __enter__(self) -> Self:
        try:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise unwritable(self._path.parent, error) from error
        until = time.monotonic() + _PATIENCE_S  # `status` holds the lock for an instant
        while not _locked(handle, fcntl.LOCK_EX):
            if time.monotonic() > until:
                os.close(handle)
                holder = _read(self._path)
                raise LockedError(
                    f"{self._path.parent}: {holder or 'another process'} works in this run folder; "
                    "wait for it, `attnspec cancel` it, or choose another folder with --out"
                )
            time.sleep(0.02)
        self._handle = handle
        self._holder = Holder(pid=os.getpid(), host=socket.gethostname(), started_ns=time.time_ns())
        os.ftruncate(handle, 0)
        try:
            os.pwrite(handle, _text(self._holder), 0)
        except OSError:
            os.ftruncate(handle, 0)  # a full disk: locked all the same, only without a name
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._handle is not None
        if self.cancelled:
            with suppress(OSError):  # it names this run and no other, so it may stay
                self._path.with_name(CANCELLED).unlink()
        os.ftruncate(self._handle, 0)
        os.close(self._handle)
        self._handle = None


def is_held(folder: Path) -> bool:
    """Whether a process works in this run folder now."""
    try:
        handle = os.open(folder / NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _locked(handle, fcntl.LOCK_SH)
    finally:
        os.close(handle)


def holder(folder: Path) -> Holder | None:
    """The process that works in this run folder now; None when there is none or it left no name."""
    if not is_held(folder):
        return None
    return _read(folder / NAME)


def mark_cancelled(folder: Path, works: Holder) -> None:
    """Let the process that works in a run folder know, before it is stopped, that it is cancelled."""
    with suppress(OSError):  # a full disk: it is stopped all the same, and does not know by whom
        (folder / CANCELLED).write_bytes(_text(works))


def _locked(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK):
            raise
        raise UnwritableError(
            f"the run folder's file system keeps no locks ({error.strerror}; Lustre needs the mount option flock), so "
            "two runs could work there at once; choose another with --out"
        ) from None
    return True


def _text(holder: Holder) -> bytes:
    return json.dumps(asdict(holder)).encode()


def _read(file: Path) -> Holder | None:
    try:
        return Holder(**json.loads(file.read_bytes()))
    except (ValueError, TypeError, OSError):
        return None
