"""slurm: one allocation per job, in it one srun per launch; a supervisor in the allocation starts and watches them.

Everything here is pure: from what a job needs to sbatch's arguments, the batch script and srun's arguments. Nothing
of a user's goes through a shell unquoted, and options travel as arguments, not as #SBATCH lines, whose quoting differs.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attnspec.errors import InputError
from attnspec.params import param

SUBMITS = True
"""Jobs outlive the command that submits them: see attnspec.launch.slurm_run."""
PROGRAMS = ("sbatch", "squeue", "scontrol", "scancel", "sinfo")
WORKER = "attnspec.worker"
SUPERVISOR = "attnspec.launch.slurm_job"
RANKS_FROM = "ATTNSPEC_RANKS"
"""Tells a worker whose variables say which rank it is: `slurm` means SLURM_PROCID, SLURM_NTASKS and SLURM_LOCALID."""
WARNING_S = 60
"""So long before its time limit (Slurm counts in minutes) a job is told that it comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """How a run uses the cluster."""

    jobs_at_once: int = param(
        default=1, ge=1, doc="Jobs that may run at the same time; they share the network, so more than one may disturb."
    )
    host_python: str | None = param(
        default=None, doc="Interpreter of the supervisor on the compute nodes; null: the one that runs attnspec."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Ranks over nodes. num_tasks: all ranks. tasks_per_node: at most, on one node."""

    num_nodes: int
    num_tasks: int
    tasks_per_node: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """What is asked of Slurm for one job; None leaves it to the cluster. gpus_per_node: 0 on the CPU."""

    name: str
    layout: Layout
    gpus_per_node: int = 0
    gpu_flag: str = "gres"
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time: str | None = None
    extra: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one srun starts on every rank. before: srun's own further arguments. rank: in front of the interpreter."""

    layout: Layout
    python: str
    srun_options: tuple[str, ...] = ()
    rank_argv: tuple[str, ...] = ()


def lay_out(world_size: int, ranks_per_node: int | None) -> Layout:
    """As few nodes as hold all ranks, evenly filled.

    >>> lay_out(64, 8)
    Layout(num_nodes=8, num_tasks=64, tasks_per_node=8)
    >>> lay_out(12, 8).tasks_per_node, lay_out(2, 8).num_nodes, lay_out(4, None).num_nodes
    (6, 1, 1)
    """
    num_nodes = 1 if ranks_per_node is None else -(-world_size // ranks_per_node)
    return Layout(num_nodes=num_nodes, num_tasks=world_size, tasks_per_node=-(-world_size // num_nodes))


def sbatch_argv(allocation: Allocation, *, output: str, script: str, after: Sequence[int] = ()) -> list[str]:
    """The command that submits a batch script.

    output: file for what the batch script prints. after: numbers of jobs that must have ended, however they did.

    >>> held = Allocation(name="a", layout=lay_out(2, 1), partition="main")
    >>> sbatch_argv(held, output="/r/out", script="/r/job.sh", after=[7])[2:7]
    ['--job-name=a', '--nodes=2', '--ntasks=2', '--ntasks-per-node=1', '--partition=main']
    """
    layout = allocation.layout
    asked = {
        "partition": allocation.partition,
        "account": allocation.account,
        "qos": allocation.qos,
        "time": allocation.time,
    }
    return [
        "sbatch",
        "--parsable",
        f"--job-name={allocation.name}",
        f"--nodes={layout.num_nodes}",
        f"--ntasks={layout.num_tasks}",
        f"--ntasks-per-node={layout.tasks_per_node}",
        *(f"--{name}={value}" for name, value in asked.items() if value is not None),
        *_gpus(allocation),
        *(["--dependency=afterany:" + ":".join(map(str, after)), "--kill-on-invalid-dep=yes"] if after else []),
        f"--signal=B:USR1@{WARNING_S}",
        "--requeue",
        "--open-mode=append",
        f"--output={output.replace('%', '%%')}",
        "--chdir=/",
        *allocation.extra,
        script,
    ]


def _gpus(allocation: Allocation) -> list[str]:
    number = allocation.gpus_per_node
    if not number or allocation.gpu_flag == "none":
        return []
    return [f"--gres=gpu:{number}" if allocation.gpu_flag == "gres" else f"--gpus-per-node={number}"]


def batch_script(*, python: str, order: str, import_path: str, title: str) -> str:
    """The batch script: the supervisor in the place of the shell, so that Slurm's signals reach it.

    title: what the job is, in one line.

    >>> print(batch_script(python="/opt/my python", order="/r/it's.json", import_path="/src", title="job a"), end="")
    #!/bin/sh
    # job a
    PYTHONPATH=/src PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1
    export PYTHONPATH PYTHONSAFEPATH PYTHONUNBUFFERED
    exec '/opt/my python' -m attnspec.launch.slurm_job '/r/it'"'"'s.json'
    """
    words = " ".join(title.split())
    return (
        f"#!/bin/sh\n# {words}\n"
        f"PYTHONPATH={_quoted(import_path)} PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1\n"
        "export PYTHONPATH PYTHONSAFEPATH PYTHONUNBUFFERED\n"
        f"exec {_quoted(python)} -m {SUPERVISOR} {_quoted(order)}\n"
    )


def _quoted(word: str) -> str:
    if "\0" in word:
        raise InputError(f"{word!r}: holds a zero byte, which no command line can hold")
    return shlex.quote(word)


def step_argv(step: Step, request_path: str) -> list[str]:
    """The srun that starts one worker per rank.

    >>> " ".join(step_argv(Step(layout=lay_out(2, 1), python="python3"), "/r/q.json")[-5:])
    '--input=all python3 -m attnspec.worker /r/q.json'
    """
    layout = step.layout
    return [
        "srun",
        "--mpi=none",
        "--kill-on-bad-exit=1",
        f"--nodes={layout.num_nodes}",
        f"--ntasks={layout.num_tasks}",
        f"--ntasks-per-node={layout.tasks_per_node}",
        "--export=ALL",
        "--input=all",
        *step.srun_options,
        *step.rank_argv,
        step.python,
        "-m",
        WORKER,
        request_path,
    ]


def step_env(env: Mapping[str, str], *, code_path: str, master_addr: str, master_port: int) -> dict[str, str]:
    """What srun adds to the environment of every rank. env: the request's. master: where rank 0 listens."""
    held = env.get("PYTHONPATH")
    return {
        "OMP_NUM_THREADS": "1",
        **env,
        "PYTHONPATH": f"{code_path}:{held}" if held else code_path,
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        "MASTER_ADDR": master_addr,
        "MASTER_PORT": str(master_port),
        RANKS_FROM: "slurm",
    }
