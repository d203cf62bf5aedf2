"""The one error tree. A message says what, where, what was given, what is allowed, and the nearest name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


class AttnspecError(Exception):
    """Base of every error that attnspec raises on purpose; `exit_code` is what a command returns for it."""

    exit_code = 1


class InputError(AttnspecError, ValueError):
    """The user's input is wrong: a spec, an option, a mask, a length file."""

    exit_code = 2


class LockedError(AttnspecError):
    """Another process works in this run folder."""

    exit_code = 2


class EnvironmentMissingError(AttnspecError):
    """This machine lacks what the runner expects: a device, a launcher, a package."""

    exit_code = 3


class WireError(AttnspecError):
    """Host and worker do not speak the same wire version, or a request is damaged."""


class JournalError(AttnspecError):
    """A run folder's journal cannot be read or written (full disk, read-only folder, damaged file)."""


class UnwritableError(JournalError):
    """The folder that a run was given cannot be written at all; another one can (`--out`)."""

    exit_code = 2


class UnsupportedError(AttnspecError):
    """A library cannot do what a case asks. Becomes status `unsupported`, never a crash.

    `reason_code` is one of `attnspec.record.status.REASON_CODES["unsupported"]`; `reason` is a sentence for people.
    """

    def __init__(self, reason_code: str, reason: str) -> None:
        super().__init__(reason)
        self.reason_code = reason_code
        self.reason = reason


class StrandedError(BaseException):
    """A rank can neither send what the others wait for nor tell them why: its process must end, which they notice.

    No Exception, so that nothing takes it for the outcome of a case and goes on.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing wrong with an input file, with its place."""

    message: str
    file: str = ""
    line: int | None = None
    column: int | None = None
    path: str = ""

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return ": ".join(part for part in (place, self.path, self.message) if part)


class SpecError(InputError):
    """Everything wrong with one or more spec files, all at once."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


_FLASH_ATTENTION = ("flashattn", "flashattention", "fa")
_OTHER_NAMES = {
    **{f"{name}{version}": f"fa{version}" for name in _FLASH_ATTENTION for version in (2, 3, 4)},
    **dict.fromkeys(("flashattn", "flashattention"), "fa2"),
    "flexattention": "flex",
    "bf16": "bfloat16",
    **dict.fromkeys(("fp16", "f16", "half"), "float16"),
    **dict.fromkeys(("fp32", "f32", "float", "single"), "float32"),
    **dict.fromkeys(("fp64", "f64", "double"), "float64"),
}
"""What people also call things, in small letters and digits alone, and the name here."""


def nearest(name: str, allowed: Iterable[str]) -> str:
    """A hint ` (did you mean 'x'?)` when `name` is close to one of `allowed` or another name of it, else empty text.

    >>> nearest("widnow", ["window", "block"])
    " (did you mean 'window'?)"
    >>> nearest("flash-attn-3", ["fa2", "fa3", "flash_mask"])
    " (did you mean 'fa3'?)"
    >>> nearest("zzz", ["window", "block"])
    ''
    """
    names = list(allowed)
    plain = "".join(sign for sign in name.lower() if sign.isalnum())
    other = _OTHER_NAMES.get(plain)
    close = [other] if other in names else difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f" (did you mean '{close[0]}'?)" if close else ""


def worded(error: BaseException) -> str:
    """Type and message of an exception in one line, then those of what it came from, where they say more.

    >>> try:
    ...     try:
    ...         raise OSError("libcudart.so.12: cannot open shared object file")
    ...     except OSError as missing:
    ...         raise OSError("Could not load this library: _C.so") from missing
    ... except OSError as error:
    ...     worded(error)
    'OSError: Could not load this library: _C.so, from OSError: libcudart.so.12: cannot open shared object file'
    """
    words, held = "", error
    joint = ""
    while True:
        message = " ".join(str(held).split())
        if not words or (message and message not in words):
            words += f"{joint}{type(held).__name__}: {message}"
        if held.__cause__ is not None:
            held, joint = held.__cause__, ", from "
        elif held.__context__ is not None and not held.__suppress_context__:
            held, joint = held.__context__, ", after "
        else:
            return words
