"""slurm: one allocation per job, in it one srun per launch; a supervisor in the allocation starts and watches them.

Everything here is pure: from what a job needs to sbatch's arguments, the batch script and srun's arguments. Nothing
of a user's goes through a shell unquoted, and options travel as arguments, not as #SBATCH lines, whose quoting differs.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from attnspec.errors import InputError
from attnspec.launchers import WORKER, Mounted, Trial, worker_env
from attnspec.launchers._containers import (
    Container,
    apptainer_argv,
    apptainer_env,
    container_env,
    podman_argv,
    worker_mounts,
)
from attnspec.params import param

SUBMITS = True
"""Jobs outlive the command that submits them: see attnspec.launch.slurm_run."""
PROGRAMS = ("sbatch", "squeue", "scontrol", "scancel", "sinfo")
TRIAL = Trial(
    what="sinfo",
    argv=("sinfo", "--noheader", "--format=%P"),
    fix="SLURM_CONF names the cluster's configuration; whoever runs the cluster knows whether its slurmctld is up",
)
SUPERVISOR = "attnspec.launch.slurm_job"
RANKS_FROM = "ATTNSPEC_RANKS"
"""Tells a worker whose variables say which rank it is: `slurm` means SLURM_PROCID, SLURM_NTASKS and SLURM_LOCALID."""
WARNING_S = 30
"""So long before its time limit a job is told that it comes; up to a minute earlier, since Slurm counts in minutes."""
PYXIS_OPTION = "--container-image"
"""srun knows it where it has pyxis."""
NO_PYXIS = (
    "this Slurm's srun has no pyxis: have it installed on the nodes and where jobs are submitted, or set "
    "slurm.container of the runner to apptainer or podman"
)
INHERITED = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_JOB_ID", "SLURM_STEP_ID")
"""What srun tells each rank, to be handed on into its container."""
_ILLEGAL_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]")
_PODMAN_RANK = """\
marks=$(mktemp -d "$1/attnspec.XXXXXX") || exit 125
cid="$marks/cid"
name="$2-$SLURM_JOB_ID.$SLURM_STEP_ID-rank$SLURM_PROCID"
shift 2
podman rm --force --time 0 --ignore "$name" < /dev/null > /dev/null 2>&1
exec 3<&0
podman run --cidfile="$cid" --name="$name" "$@" <&3 3<&- &
rank=$!
exec 3<&-
end() {
    trap '' TERM INT HUP
    kill -TERM "$rank" 2> /dev/null
    for _ in 1 2 3 4 5 6 7 8 9 10; do kill -0 "$rank" 2> /dev/null || break; sleep 0.2; done
    [ ! -s "$cid" ] || podman rm --force --time 0 "$(cat "$cid")" > /dev/null 2>&1
    rm -rf "$marks"
    exit 143
}
trap end TERM INT HUP
wait "$rank"
code=$?
rm -rf "$marks"
exit "$code"
"""
"""One rank in a container. podman's containers leave the process tree of the step, so the step's end must end them.

$1: where it makes a folder for its mark. $2: what the container's name begins with; job, step and rank make it one that
no other has, save an earlier start of a requeued job, whose steps are counted anew: what that left is removed.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """How a run uses the cluster."""

    jobs_at_once: int = param(
        default=1, ge=1, doc="Jobs that may run at the same time; they share the network, so more than one may disturb."
    )
    cpus_per_rank: int | None = param(
        default=None, ge=1, doc="Cores of each rank; null: what the cluster gives, all with --exclusive."
    )
    retry_after_s: int = param(
        default=300, ge=0, doc="How long a job whose nodes do not answer waits before it is tried on others."
    )
    host_python: str | None = param(
        default=None, doc="Interpreter of the supervisor on the compute nodes; null: the one that runs attnspec."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Ranks over nodes. num_tasks: all ranks. tasks_per_node: at most, on one. cpus_per_task: None asks for none."""

    num_nodes: int
    num_tasks: int
    tasks_per_node: int
    cpus_per_task: int | None = None

    @property
    def cpus_per_node(self) -> int:
        """Cores that one node must have."""
        return self.tasks_per_node * (self.cpus_per_task or 1)

    def options(self) -> list[str]:
        """The same for sbatch and for srun, which takes the cores of a rank from nowhere else (Slurm 22.05)."""
        cores = [] if self.cpus_per_task is None else [f"--cpus-per-task={self.cpus_per_task}"]
        counts = [f"--nodes={self.num_nodes}", f"--ntasks={self.num_tasks}", f"--ntasks-per-node={self.tasks_per_node}"]
        return [*counts, *cores]


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
class RankContainer:
    """The container of every rank. program: pyxis, apptainer or podman. image: what the program calls it.

    image_id: what `podman image inspect` must say; None where only the reference says which image it is. package: the
    folder `attnspec` of the code that is to run. scratch: a folder on every node's own disk, for podman's marks.
    """

    program: Literal["pyxis", "apptainer", "podman"]
    image: str
    image_id: str | None
    run_dir: str
    package: str
    plugins: tuple[str, ...] = ()
    mounts: tuple[Mounted, ...] = ()
    gpus: bool = False
    scratch: str = "/tmp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one srun starts on every rank. code_path: the folder that holds the package attnspec, outside containers."""

    layout: Layout
    python: str
    code_path: str
    container: RankContainer | None = None


def lay_out(world_size: int, ranks_per_node: int | None, cpus_per_task: int | None = None) -> Layout:
    """As few nodes as hold all ranks, evenly filled.

    >>> lay_out(64, 8)
    Layout(num_nodes=8, num_tasks=64, tasks_per_node=8, cpus_per_task=None)
    >>> lay_out(12, 8).tasks_per_node, lay_out(2, 8).num_nodes, lay_out(4, None).num_nodes
    (6, 1, 1)
    """
    num_nodes = 1 if ranks_per_node is None else -(-world_size // ranks_per_node)
    return Layout(
        num_nodes=num_nodes,
        num_tasks=world_size,
        tasks_per_node=-(-world_size // num_nodes),
        cpus_per_task=cpus_per_task,
    )


def sbatch_argv(
    allocation: Allocation, *, output: str, script: str, after: Sequence[int] = (), begin_in_s: int = 0
) -> list[str]:
    """The command that submits a batch script.

    output: file for what the batch script prints. after: numbers of jobs that must have ended, however they did.
    begin_in_s: seconds before it may start. Raises InputError for a log that Slurm would look for elsewhere.

    >>> held = Allocation(name="a", layout=lay_out(2, 1), partition="main")
    >>> sbatch_argv(held, output="/r/out", script="/r/job.sh", after=[7])[2:7]
    ['--job-name=a', '--nodes=2', '--ntasks=2', '--ntasks-per-node=1', '--partition=main']
    """
    if "\\" in output:
        raise InputError(f"{output}: Slurm drops backslashes from the name of a log; choose another folder with --out")
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
        *layout.options(),
        *(f"--{name}={value}" for name, value in asked.items() if value is not None),
        *_gpus(allocation),
        *(["--dependency=afterany:" + ":".join(map(str, after)), "--kill-on-invalid-dep=yes"] if after else []),
        *([f"--begin=now+{begin_in_s}"] if begin_in_s else []),
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


def step_command(step: Step, request_path: str, env: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """The srun that starts one worker per rank, and what it adds to the environment.

    env: the request's, with `meeting`. Raises InputError for a path that pyxis cannot mount.

    >>> argv, env = step_command(Step(layout=lay_out(2, 1), python="python3", code_path="/src"), "/r/q.json", {})
    >>> " ".join(argv[-5:]), env["PYTHONPATH"], env["OMP_NUM_THREADS"]
    ('--input=all python3 -m attnspec.worker /r/q.json', '/src', '1')
    """
    layout, container = step.layout, step.container
    srun = [
        "srun",
        "--mpi=none",
        "--kill-on-bad-exit=1",
        *layout.options(),
        "--export=ALL",
        "--input=all",
    ]
    worker = [step.python, "-m", WORKER, request_path]
    if container is None:
        return [*srun, *worker], worker_env(env, step.code_path, layout.num_tasks)
    held = _container(container, env, layout.num_tasks)
    if container.program == "pyxis":
        return [*srun, *_pyxis_options(held), *worker], dict(held.env)
    if container.program == "apptainer":
        return [*srun, *apptainer_argv(held), *worker], apptainer_env(held)
    return [*srun, *_podman_rank(held, container.scratch, _container_name(request_path)), *worker], {}


def prepare_argv(step: Step) -> list[str] | None:
    """An srun that brings the image to every node and refuses another than the locked one; None where none is needed.

    pyxis and apptainer fetch by digest when a rank starts.
    """
    container = step.container
    if container is None or container.program != "podman":
        return None
    script = (
        'podman image exists "$1" || podman pull --quiet "$1" > /dev/null || exit 3\n'
        'found=$(podman image inspect --format "{{.Id}}" "$1") || exit 3\n'
        "found=sha256:${found#sha256:}\n"
        '[ "$found" = "${2:-$found}" ] ||'
        ' { echo "image $1 on $(hostname) has the ID $found; locked is $2" >&2; exit 3; }\n'
    )
    return [*_one_per_node(step), "sh", "-c", script, "attnspec-image", container.image, container.image_id or ""]


def roll_call_argv(step: Step) -> list[str]:
    """An srun that succeeds when every node of the allocation can start a process.

    >>> roll_call_argv(Step(layout=lay_out(16, 8), python="p", code_path="/c"))[2:]
    ['--nodes=2', '--ntasks=2', '--ntasks-per-node=1', '--export=ALL', 'true']
    """
    return [*_one_per_node(step), "true"]


def _one_per_node(step: Step) -> list[str]:
    nodes = step.layout.num_nodes
    return ["srun", "--mpi=none", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--export=ALL"]


def not_started_fix(step: Step, words: str) -> str:
    """What can be done where srun starts no rank. words: why, in srun's own.

    >>> step = Step(layout=lay_out(2, 1), python="/opt/python", code_path="/c")
    >>> not_started_fix(step, "slurmstepd: error: execve(): /opt/python: No such file or directory")
    "the runner's python /opt/python must be there on every node"
    """
    if step.container is None:
        return f"the runner's python {step.python} must be there on every node"
    if step.container.program == "pyxis" and "--container-" in words:
        return NO_PYXIS
    return f"{step.container.program} must be able to start {step.python} in {step.container.image} on every node"


def meeting(*, master_addr: str, master_port: int) -> dict[str, str]:
    """What tells the ranks where rank 0 listens, and that srun says who they are."""
    return {"MASTER_ADDR": master_addr, "MASTER_PORT": str(master_port), RANKS_FROM: "slurm"}


def _container(container: RankContainer, env: Mapping[str, str], num_tasks: int) -> Container:
    inherited = (*INHERITED, "CUDA_VISIBLE_DEVICES") if container.gpus else INHERITED
    return Container(
        image=container.image,
        env=container_env(env, num_tasks),
        inherited=tuple(name for name in inherited if name not in env),  # what a case sets wins
        mounts=worker_mounts(
            run_dir=container.run_dir, package=container.package, plugins=container.plugins, mounts=container.mounts
        ),
        gpus=container.gpus,
        run_dir=container.run_dir,
    )


def _pyxis_options(container: Container) -> list[str]:
    """pyxis hands srun's environment into the container; of variables that the image sets too, only those named win."""
    return [
        f"{PYXIS_OPTION}={container.image}",
        f"--container-mounts={','.join(map(_pyxis_mount, container.mounts))}",
        f"--container-env={','.join(container.env)}",
        "--container-workdir=/",
        "--no-container-mount-home",
        "--no-container-entrypoint",
    ]


def _pyxis_mount(mounted: Mounted) -> str:
    for path in (mounted.source, mounted.target):
        if set(path) & set(",:"):
            raise InputError(f"{path}: pyxis cannot mount a path with a comma or colon; choose another with --out")
    return f"{mounted.source}:{mounted.target}{':ro' if mounted.read_only else ''}"


def _container_name(request_path: str) -> str:
    """What the names of a launch's containers begin with: the request's file is named after its job and attempt.

    >>> _container_name("/runs/a b/artifacts/jobs/0f9c-2.json")
    'attnspec-0f9c-2'
    """
    return f"attnspec-{_ILLEGAL_IN_NAMES.sub('-', PurePosixPath(request_path).stem)}"


def _podman_rank(container: Container, scratch: str, name: str) -> list[str]:
    program, verb, *flags = podman_argv(container)
    assert (program, verb) == ("podman", "run")
    return ["sh", "-c", _PODMAN_RANK, "attnspec-rank", scratch, name, *flags]
