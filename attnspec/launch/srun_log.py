"""What srun leaves in a log: which rank failed first and how, and why none was started. Pure.

srun ends with the highest code of all its tasks, those that it ended itself included, and says the rest in words only
(Slurm 22.05): one line for tasks that ended alike, in the order in which they ended. Of tasks that it never started it
names none.
"""

from __future__ import annotations

import re
import signal

from attnspec.launch.torchrun_log import RankFailure

LAST_LINES = 12

_TASK = re.compile(
    r"^srun: error: \S+: tasks? (?P<rank>\d+)[\d,-]*: "
    r"(?:Exited with exit code (?P<code>\d+)|(?P<signal>[A-Z][A-Za-z0-9 /]+?)(?: \(core dumped\))?)$",
    re.MULTILINE,
)
_OWN_LINE = re.compile(r"^(?:srun|slurmstepd(?:-\S+)?): ")
_ANY_TASK = re.compile(r"^(?:srun: error: \S+: tasks? \d|slurmstepd)", re.MULTILINE)
_NOT_EXECUTED = re.compile(
    r"^slurmstepd(?:-\S+)?: error: (?:execve\(\): |Failed to invoke spank plugin stack|"
    r"spank: required plugin \S+: (?:init|init_post_opt|user_init|task_init_privileged|task_init)\(\) failed)",
    re.MULTILINE,
)
"""What a node's daemon says in a task's place: no such program, or a plugin such as pyxis that has no container."""
_OOM = re.compile(r"^slurmstepd(?:-\S+)?: error: Detected \d+ oom.kill", re.MULTILINE)
_SIGNALS = {signal.strsignal(number): number.value for number in signal.Signals}


def first_failure(log: str) -> RankFailure | None:
    """The first rank that srun tells of; None where it tells of none.

    >>> first_failure("srun: error: n2: task 1: Exited with exit code 3\\nsrun: error: n1: task 0: Killed")
    RankFailure(rank=1, returncode=3)
    >>> first_failure("srun: error: n1: tasks 0-3: Segmentation fault (core dumped)")
    RankFailure(rank=0, returncode=-11)
    """
    for found in _TASK.finditer(log):
        if found["code"] is not None:
            return RankFailure(rank=int(found["rank"]), returncode=int(found["code"]))
        if (number := _SIGNALS.get(found["signal"])) is not None:
            return RankFailure(rank=int(found["rank"]), returncode=-number)
    return None


def not_started(log: str) -> str:
    """Why the command ran nowhere, in the words of srun and its daemons; empty where tasks of it ran.

    >>> not_started("srun: unrecognized option '--container-image=a'\\nTry \\"srun --help\\" for more information")
    "srun: unrecognized option '--container-image=a'"
    >>> not_started("srun: error: n1: task 0: Segmentation fault"), not_started("Killed")
    ('', '')
    """
    if _ANY_TASK.search(log) and not _NOT_EXECUTED.search(log):
        return ""
    own = [line for line in log.splitlines() if _OWN_LINE.match(line)]
    return "\n".join(own[-LAST_LINES:])


def out_of_memory(log: str) -> bool:
    """Whether Slurm tells that the kernel ended a task for memory.

    >>> out_of_memory("slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0.")
    True
    """
    return _OOM.search(log) is not None


def without_srun(log: str) -> str:
    """The log without the lines of srun and its daemons."""
    return "\n".join(line for line in log.splitlines() if not _OWN_LINE.match(line))
