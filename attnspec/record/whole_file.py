"""Files of a run folder that are written beside and renamed, and what to tell when the disk refuses one."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from attnspec.errors import JournalError, UnwritableError

_KEPT = "what was measured is safe in the journal, and running again goes on from there"


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A binary stream whose content takes the place of `path` when the block ends well. Raises JournalError."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(path)
    except OSError as error:
        raise refused(path, error) from error
    finally:
        with suppress(OSError):  # a folder that may not be searched
            partial.unlink()


def refused(path: Path, error: OSError) -> JournalError:
    """What to tell when the disk refuses to write a file."""
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT | errno.EFBIG:
            return JournalError(f"{path}: no space left ({error.strerror}); {_KEPT} once there is room")
        case errno.EROFS | errno.EACCES | errno.EPERM:
            return unwritable(path, error)
        case errno.EIO | errno.ESTALE:
            return JournalError(f"{path}: cannot be written ({error.strerror}); {_KEPT}")
        case _:
            return JournalError(f"{path}: cannot be written ({error.strerror or error})")


def unwritable(path: Path, error: OSError) -> JournalError:
    """What to tell when a run cannot even begin in a folder; a full disk is told as ever."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return refused(path, error)
    return UnwritableError(f"{path}: the run folder is not writable ({error.strerror}); choose another with --out")
