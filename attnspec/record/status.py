"""The closed set of outcomes of a case, and the reasons that each may carry. Pure."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """What became of a case. Metrics exist only beside `OK`."""

    OK = "ok"
    UNSUPPORTED = "unsupported"
    OOM = "oom"
    WRONG = "wrong"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    ERROR = "error"
    SKIPPED = "skipped"


REASON_CODES: dict[Status, tuple[str, ...]] = {
    Status.OK: (),
    Status.UNSUPPORTED: (
        "no_lowering",  # the library has no documented call for these slices
        "missing_package",
        "broken_package",  # installed, and fails to load or fails its tiny call
        "no_compiler",
        "device",  # this device or its compute capability
        "dtype",
        "head_dim",
        "heads",
        "seqlen",
        "direction",  # forward works, backward does not
        "backend",
        "mesh",  # a strategy's degrees, heads or lengths do not fit the ranks
    ),
    Status.OOM: ("device_memory", "host_memory"),
    Status.WRONG: ("mask_probe", "out", "lse", "dq", "dk", "dv", "gradient_identity", "not_finite"),
    Status.TIMEOUT: ("setup", "verify", "measure"),
    Status.CRASHED: ("signal", "exit", "lost_worker"),
    Status.ERROR: ("exception", "fallback", "invalid_time", "no_samples"),
    Status.SKIPPED: ("not_run", "interrupted"),
}

FAILED = frozenset({Status.WRONG, Status.TIMEOUT, Status.CRASHED, Status.ERROR})
"""A run that holds one of these exits with 1."""


def check_outcome(status: Status, reason_code: str | None) -> None:
    """Assert that a status and its reason belong together; `ok` has no reason, all others need one."""
    if status is Status.OK:
        assert reason_code is None, reason_code
    else:
        assert reason_code in REASON_CODES[status], (status, reason_code)
