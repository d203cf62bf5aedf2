"""What a runner profile asks of Slurm, and whether the cluster has it: seen from the host, before anything starts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from attnspec.catalog import validate_params
from attnspec.errors import EnvironmentMissingError, InputError
from attnspec.launch.container_place import mounted
from attnspec.launch.found import instead, only
from attnspec.launch.job_runner import Launch, code_path
from attnspec.launch.provenance import PACKAGE
from attnspec.launch.runner_profile import Runner
from attnspec.launch.slurm_cluster import Cluster, Node, SlurmError
from attnspec.launchers.slurm import (
    NO_PYXIS,
    PYXIS_OPTION,
    Allocation,
    Layout,
    Params,
    RankContainer,
    Step,
    lay_out,
)
from attnspec.plan import Job
from attnspec.units import counted


def launcher_params(runner: Runner) -> Params:
    """The options of a Slurm runner. Raises SpecError."""
    return Params(**validate_params("launchers", "slurm", runner.options, path="options"))


def layout_of(runner: Runner, world_size: int) -> Layout:
    """Ranks over the nodes of a runner."""
    return lay_out(world_size, runner.gpus_per_node, launcher_params(runner).cpus_per_rank)


def allocation_of(runner: Runner, world_size: int, device: Literal["cpu", "cuda"], name: str) -> Allocation:
    """What one job of so many ranks asks for."""
    layout = layout_of(runner, world_size)
    gpus = layout.tasks_per_node if device == "cuda" else 0
    asked = runner.slurm
    if asked is None:
        return Allocation(name=name, layout=layout, gpus_per_node=gpus)
    return Allocation(
        name=name,
        layout=layout,
        gpus_per_node=gpus,
        gpu_flag=asked.gpu_flag,
        partition=asked.partition,
        account=asked.account,
        qos=asked.qos,
        time=asked.time,
        extra=asked.extra,
    )


def step_of(launch: Launch, job: Job) -> Step:
    """What one srun of a job starts. Raises InputError for a mount that is not there."""
    return Step(
        layout=layout_of(launch.runner, job.world_size),
        python=launch.python_of(job),
        code_path=str(code_path(launch.folder)),
        container=_container_of(launch, job),
    )


def _container_of(launch: Launch, job: Job) -> RankContainer | None:
    image, asked = launch.image_of(job), launch.runner.slurm
    if image is None or asked is None or asked.container is None:
        return None
    return RankContainer(
        program=asked.container,
        image=image_reference(asked.container, image.run_as),
        image_id=image.image_id,
        run_dir=str(launch.folder.path.resolve()),
        package=str(PACKAGE),
        plugins=launch.plugins,
        mounts=mounted(launch.runner),
        gpus=launch.device == "cuda",
    )


def image_reference(program: str, reference: str) -> str:
    """What a program calls an image. Pure.

    >>> image_reference("pyxis", "nvcr.io/nvidia/pytorch@sha256:ab"), image_reference("apptainer", "r:5000/a@sha256:ab")
    ('docker://nvcr.io#nvidia/pytorch@sha256:ab', 'docker://r:5000/a@sha256:ab')
    >>> image_reference("podman", "sha256:ab")
    'sha256:ab'
    """
    if program == "podman":
        return reference
    host, slash, path = reference.partition("/")
    return f"docker://{host}#{path}" if program == "pyxis" and slash else f"docker://{reference}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lacking:
    """What a cluster lacks of what a runner needs, in sentences; empty where it lacks nothing.

    fits: the numbers of ranks that can run there.
    """

    nodes: str = ""
    pyxis: str = ""
    fits: tuple[int, ...] = ()


def check_cluster(runner: Runner, world_sizes: Mapping[int, str], cluster: Cluster) -> Literal["cpu", "cuda"]:
    """The device of the ranks. world_sizes: ranks -> what needs them, in words.

    Raises EnvironmentMissingError when the partition is not there or too small, with the numbers, and when srun has no
    pyxis that the runner's containers need.
    """
    device = ranks_device(runner)
    if not world_sizes:
        return device
    found = lacking(runner, world_sizes, cluster)
    if problems := [problem for problem in (found.nodes, found.pyxis) if problem]:
        raise EnvironmentMissingError("\n".join([*problems, instead_of_cluster(world_sizes, found.fits)]))
    return device


def ranks_device(runner: Runner) -> Literal["cpu", "cuda"]:
    """The device of the ranks. Raises InputError where the profile does not tell it, or how many a node has."""
    if runner.device.type == "auto":
        raise InputError(
            f"{runner.file}: device.type is auto, and launcher slurm starts on machines not seen before; "
            "allowed: cpu, cuda"
        )
    if runner.device.type == "cuda" and runner.gpus_per_node is None:
        raise InputError(f"{runner.file}: gpus_per_node is missing; launcher slurm asks for so many GPUs on every node")
    return runner.device.type


def lacking(runner: Runner, world_sizes: Mapping[int, str], cluster: Cluster) -> Lacking:
    """What the cluster lacks for jobs of these sizes, as far as this machine can tell.

    Raises InputError for a profile that does not tell what its ranks need.
    """
    device, asked = ranks_device(runner), runner.slurm
    submits = f"runner {runner.name} submits to Slurm, and "
    try:
        nodes = cluster.nodes(None if asked is None else asked.partition)
    except SlurmError as error:
        return Lacking(nodes=f"{submits}{error}")
    fits = tuple(size for size in world_sizes if shortage(runner, {size: ""}, device, nodes) is None)
    pyxis = ""
    if runner.image and asked is not None and asked.container == "pyxis":
        try:
            if not cluster.srun_takes(PYXIS_OPTION):
                pyxis = (
                    f"runner {runner.name} starts its containers through pyxis, and `srun --help` here tells of no "
                    f"{PYXIS_OPTION}; {NO_PYXIS}"
                )
        except SlurmError as error:
            pyxis = f"{submits}whether it has pyxis cannot be told: {error}"
    return Lacking(nodes=shortage(runner, world_sizes, device, nodes) or "", pyxis=pyxis, fits=() if pyxis else fits)


def instead_of_cluster(world_sizes: Collection[int], fits: Collection[int] = ()) -> str:
    """What else can be done where the jobs of a Slurm runner cannot run, as `run` and `doctor` offer it. Pure.

    fits: the numbers of ranks among world_sizes that can run there.

    >>> print(instead_of_cluster([8, 16], [8]).splitlines()[1])
      --only cp_size=8   runs what fits
    """
    chosen = only(fits, world_sizes)
    return instead(
        world_sizes,
        first=(
            *([f"{' '.join(chosen)}   runs what fits"] if chosen else []),
            "--runner NAME   takes another runner; copy this profile to ./runners and adapt it (docs/slurm.md)",
        ),
    )


def shortage(
    runner: Runner, world_sizes: Mapping[int, str], device: Literal["cpu", "cuda"], nodes: list[Node]
) -> str | None:
    """What the largest job needs that these nodes do not have, with the numbers. Pure."""
    most = max(world_sizes)
    layout = layout_of(runner, most)
    gpus = layout.tasks_per_node if device == "cuda" and (not runner.slurm or runner.slurm.gpu_flag != "none") else 0
    fit = [node for node in nodes if node.num_gpus >= gpus and node.num_cpus >= layout.cpus_per_node]
    cores = counted(layout.cpus_per_node, "core")
    each = f" with {counted(gpus, 'GPU')} and {cores}" if gpus else f" with {cores}"
    wanted = f"{counted(layout.num_nodes, 'node')}{each}"
    if runner.nodes is not None and layout.num_nodes > runner.nodes:
        return f"{world_sizes[most]} needs {wanted}; runner {runner.name} allows {runner.nodes}"
    if len(fit) < layout.num_nodes:
        have = ", ".join(sorted({f"{node.num_gpus} GPUs and {node.num_cpus} cores" for node in nodes}))
        return (
            f"{world_sizes[most]} needs {wanted}; of the {counted(len(nodes), 'node')} that Slurm has there {len(fit)} "
            f"fit (nodes have {have})"
        )
    return None
