"""What torchrun leaves in a log: which rank failed first and how, and which lines are its own. Pure.

torchrun ends with code 1 however its ranks ended, and says the rest in words only (torch.distributed.elastic, 2.11 to
2.13): a summary of failures, after a traceback through torch/distributed/run.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_ROOT_CAUSE = re.compile(
    r"^Root Cause \(first observed failure\):\n(?:.*\n)*?\s*rank\s*: (?P<rank>\d+).*\n\s*exitcode\s*: (?P<code>-?\d+)",
    re.MULTILINE,
)
_OWN_LINE = re.compile(r"^[WEI]\d{4} [\d:.]+ \d+ torch/distributed/")
_OWN_TRACEBACK = re.compile(
    r'^Traceback \(most recent call last\):\n(?:[ ].*\n){0,8}?[ ]+File ".*torch/distributed/run\.py"', re.MULTILINE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFailure:
    """The rank that failed first; returncode as of subprocess, negative for a signal."""

    rank: int
    returncode: int


def first_failure(log: str) -> RankFailure | None:
    """What torchrun names as the root cause; None where it says nothing of the kind.

    >>> summary = "Root Cause (first observed failure):\\n[0]:\\n  rank : 1 (local_rank: 1)\\n  exitcode : -9 (pid: 7)"
    >>> first_failure(summary)
    RankFailure(rank=1, returncode=-9)
    """
    found = _ROOT_CAUSE.search(log)
    return None if found is None else RankFailure(rank=int(found["rank"]), returncode=int(found["code"]))


def without_torchrun(log: str) -> str:
    """The log without torchrun's own lines and what it says at its end."""
    end = _OWN_TRACEBACK.search(log)
    kept = log if end is None else log[: end.start()]
    return "\n".join(line for line in kept.splitlines() if not _OWN_LINE.match(line))
