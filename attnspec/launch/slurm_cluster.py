"""Slurm's client commands, and what their answers mean. Every call has a limit; a cluster that does not answer is told.

States come from sacct where there is accounting, else from scontrol, which forgets a job some minutes after its end.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from attnspec.errors import EnvironmentMissingError

PATIENCE_S = 60.0
OVER = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    }
)
"""States that a job does not leave by itself; all others may still lead to processes."""
_STEP = re.compile(r"\d+\.\d+")
_OWN_WORDS = re.compile(r"^[a-z]+: (?:error: |(?P<fatal>fatal: ))?")
"""What a command puts in front of each line of its own."""
_GPUS = re.compile(r"(?:^|,)gpu(?::[^:,(]+)?:(?P<number>\d+)")


class SlurmError(EnvironmentMissingError):
    """A Slurm command failed or gave no answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """What Slurm knows of a job. reason: why it waits, where it does."""

    state: str
    reason: str = ""

    @property
    def over(self) -> bool:
        """Whether no process of the job is left."""
        return self.state in OVER


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node of a partition, whatever its state: jobs wait for nodes that come back."""

    name: str
    num_gpus: int
    num_cpus: int


class Cluster:
    """The cluster that this machine's Slurm commands speak to."""

    def submit(self, argv: Sequence[str]) -> int:
        """Run an sbatch --parsable; the job's number. Raises SlurmError with sbatch's own words."""
        answer = _ask(argv)
        number = answer.strip().splitlines()[-1:] or [""]
        try:
            return int(number[0].partition(";")[0])
        except ValueError:
            raise SlurmError(f"sbatch said no job number but {answer.strip()!r}") from None

    def find(self, token: str) -> int | None:
        """The job of a name that only one job has; None where Slurm knows none."""
        for argv in (
            ["squeue", "--me", "--noheader", f"--name={token}", "--format=%A"],
            ["sacct", "--noheader", "--allocations", "--parsable2", f"--name={token}", "--format=JobIDRaw"],
        ):
            with suppress(SlurmError):
                for line in _ask([*argv, *(["--starttime=now-30days"] if argv[0] == "sacct" else [])]).splitlines():
                    if line.strip().isdigit():
                        return int(line)
        return None

    def states(self, numbers: Collection[int]) -> dict[int, JobState]:
        """number -> state, without jobs that Slurm has forgotten. Raises SlurmError when it does not answer.

        squeue tells of jobs that wait or run, at once and truly; of those that it does not hold, sacct or scontrol.
        """
        if not numbers:
            return {}
        listed = ",".join(map(str, sorted(numbers)))
        # Without --jobs: it fails when one of them is forgotten.
        found = parse_queue(_ask(["squeue", "--me", "--noheader", "--states=all", "--format=%A|%T|%r"]))
        held = {number: state for number, state in found.items() if number in numbers and not state.over}
        ended = set(numbers) - held.keys()
        if ended:
            with suppress(SlurmError):
                argv = ["sacct", "--noheader", "--allocations", "--parsable2", f"--jobs={listed}"]
                told = parse_accounting(_ask([*argv, "--format=JobIDRaw,State"]))
                # Accounting lags behind; what is no longer in the queue and not over there is asked for below.
                held |= {number: state for number, state in told.items() if number in ended and state.over}
        for number in ended - held.keys():
            if number in found:
                held[number] = found[number]
                continue
            with suppress(SlurmError):
                held |= parse_scontrol(_ask(["scontrol", "--oneliner", "show", "job", str(number)]))
        return held

    def cancel(self, numbers: Iterable[int]) -> None:
        """Cancel jobs; those that are over stay as they are. Raises SlurmError when Slurm does not answer."""
        for number in numbers:
            _ask(["scancel", str(number)], accept=("Invalid job id", "already completing or completed"))

    def steps(self, number: int) -> list[str]:
        """Steps of a job that have processes, without the batch script itself."""
        answer = _ask(
            ["squeue", "--noheader", "--steps", f"--jobs={number}", "--format=%i"], accept=("Invalid job id",)
        )
        return [line.strip() for line in answer.splitlines() if _STEP.fullmatch(line.strip())]

    def kill_steps(self, steps: Iterable[str]) -> None:
        """End steps without the chance to end by themselves."""
        for step in steps:
            _ask(["scancel", "--signal=KILL", step], accept=("Invalid job", "already completing", "not running"))

    def nodes(self, partition: str | None) -> list[Node]:
        """Nodes of a partition, of the default one for None. Raises SlurmError where there is no such partition."""
        answer = _ask(["sinfo", "--noheader", "--Node", "--format=%R|%N|%G|%c|%P"])
        chosen = parse_nodes(answer, partition)
        if not chosen:
            known = ", ".join(sorted({line.partition("|")[0] for line in answer.splitlines() if line}))
            what = f"partition {partition!r}" if partition is not None else "default partition"
            raise SlurmError(f"Slurm has no {what}; there is: {known or 'none'}")
        return chosen

    def srun_takes(self, option: str) -> bool:
        """Whether srun on this machine knows an option, also of a plug-in such as pyxis. Raises SlurmError."""
        return option in _ask(["srun", "--help"])


def parse_queue(answer: str) -> dict[int, JobState]:
    """squeue's lines `number|state|reason`. Pure.

    >>> parse_queue("7|PENDING|Resources\\n8|RUNNING|None\\n")[7]
    JobState(state='PENDING', reason='Resources')
    """
    found = {}
    for line in answer.splitlines():
        number, _, rest = line.strip().partition("|")
        state, _, reason = rest.partition("|")
        if number.isdigit():
            found[int(number)] = JobState(state=state, reason="" if reason == "None" else reason)
    return found


def parse_accounting(answer: str) -> dict[int, JobState]:
    """sacct's lines `number|state`; a job that was requeued has its last run last. Pure.

    >>> parse_accounting("7|CANCELLED by 0\\n8|COMPLETED\\n")[7].over
    True
    """
    found = {}
    for line in answer.splitlines():
        number, _, state = line.strip().partition("|")
        if number.isdigit() and state:
            found[int(number)] = JobState(state=state.split()[0].rstrip("+"))
    return found


def parse_scontrol(answer: str) -> dict[int, JobState]:
    """scontrol's `JobId=7 ... JobState=FAILED Reason=None ...`. Pure.

    >>> parse_scontrol("JobId=7 JobName=a JobState=TIMEOUT Reason=TimeLimit ExitCode=0:15")
    {7: JobState(state='TIMEOUT', reason='TimeLimit')}
    """
    words = dict(word.partition("=")[::2] for word in answer.split())
    if not words.get("JobId", "").isdigit() or "JobState" not in words:
        return {}
    reason = words.get("Reason", "None")
    return {int(words["JobId"]): JobState(state=words["JobState"], reason="" if reason == "None" else reason)}


def parse_nodes(answer: str, partition: str | None) -> list[Node]:
    """sinfo's lines `partition|node|gres|cpus|partition, starred when default`; several are one by commas. Pure.

    >>> parse_nodes("gpu|n1|gpu:h100:8(S:0-1),nvme:1|96|gpu*\\ndebug|n2|(null)|96|debug", None)
    [Node(name='n1', num_gpus=8, num_cpus=96)]
    >>> [node.name for node in parse_nodes("a|n1||8|a*\\nb|n1||8|b\\nb|n2||8|b\\nc|n3||8|c", "a,b")]
    ['n1', 'n2']
    """
    found: dict[str, Node] = {}
    wanted = () if partition is None else partition.split(",")
    for line in answer.splitlines():
        name, node, gres, cpus, starred = (line.strip().split("|") + [""] * 5)[:5]
        if name in wanted or (partition is None and starred.endswith("*")):
            gpus = sum(int(match["number"]) for match in _GPUS.finditer(gres))
            found.setdefault(node, Node(name=node, num_gpus=gpus, num_cpus=int(cpus or 0)))
    return list(found.values())


def reason_of(stderr: str) -> str:
    """Why a command failed, in one line: where it died, the end alone, since what comes before is the way there. Pure.

    >>> reason_of("sinfo: error: fetch_config: DNS SRV lookup failed\\nsinfo: fatal: Could not load a configuration\\n")
    'Could not load a configuration'
    >>> reason_of("sbatch: error: name an account\\nsbatch: error: Batch job submission failed: Unspecified error\\n")
    'name an account; Batch job submission failed: Unspecified error'
    """
    lines = [" ".join(line.split()) for line in stderr.splitlines() if line.strip()]
    own = [(match, line[match.end() if match else 0 :]) for line in lines for match in [_OWN_WORDS.match(line)]]
    fatal = [words for match, words in own if match is not None and match["fatal"]]
    return "; ".join(dict.fromkeys(fatal or [words for _, words in own]))


def first_host(nodelist: str) -> str:
    """The first of a node list, as Slurm orders ranks. Raises SlurmError."""
    return _ask(["scontrol", "show", "hostnames", nodelist]).split()[0]


def _ask(argv: Sequence[str], accept: Sequence[str] = ()) -> str:
    """Standard output of a command. accept: parts of messages with which it may fail."""
    # A user's own filters, such as SQUEUE_PARTITION, would hide jobs.
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SQUEUE_", "SACCT_", "SINFO_"))}
    try:
        answer = subprocess.run(
            argv,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE_S,
        )
    except FileNotFoundError:
        raise SlurmError(f"{argv[0]} is not on the path: this machine has no Slurm commands") from None
    except OSError as error:
        raise SlurmError(f"{argv[0]} cannot be started: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{argv[0]} gave no answer in {PATIENCE_S:g} s") from None
    if answer.returncode and not any(part in answer.stderr for part in accept):
        raise SlurmError(f"{argv[0]} failed: {reason_of(answer.stderr) or f'exit code {answer.returncode}'}")
    return answer.stdout
