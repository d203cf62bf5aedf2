"""From what a case raised to its outcome: status, reason_code and words."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from attnspec.errors import UnsupportedError
from attnspec.execute.clock import InvalidTimeError, NoSamplesError
from attnspec.execute.device_kernels import FallbackError
from attnspec.execute.joint import JointFailure
from attnspec.execute.memory import out_of_memory
from attnspec.record.status import Status

MAX_TEXT = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An outcome that is not ok."""

    status: Status
    reason_code: str
    reason: str


def failure_of(error: Exception) -> Failure:
    """What an exception means for its case.

    >>> failure_of(MemoryError()).status, failure_of(ValueError("no")).reason
    (<Status.OOM: 'oom'>, 'ValueError: no')
    """
    memory = out_of_memory(error)
    if memory is not None:
        return Failure(status=Status.OOM, reason_code=memory, reason=_text(error))
    match error:
        case JointFailure():
            return _told(error)
        case UnsupportedError():
            return Failure(status=Status.UNSUPPORTED, reason_code=error.reason_code, reason=error.reason)
        case FallbackError():
            return Failure(status=Status.ERROR, reason_code="fallback", reason=str(error))
        case InvalidTimeError():
            return Failure(status=Status.ERROR, reason_code="invalid_time", reason=str(error))
        case NoSamplesError():
            return Failure(status=Status.ERROR, reason_code="no_samples", reason=str(error))
    return Failure(status=Status.ERROR, reason_code="exception", reason=_text(error))


def _told(error: JointFailure) -> Failure:
    """What a rank told; who it was matters where ranks may differ."""
    told: Failure = error.failure
    if told.status is Status.UNSUPPORTED:
        return told
    return dataclasses.replace(told, reason=f"rank {error.rank}: {told.reason}")


def _text(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}".strip()
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}..."
