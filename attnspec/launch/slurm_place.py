"""What a runner profile asks of Slurm, and whether the cluster has it: seen from the host, before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from attnspec.catalog import validate_params
from attnspec.errors import EnvironmentMissingError, InputError
from attnspec.launch.container_place import mounted
from attnspec.launch.found import only
from attnspec.launch.job_runner import Launch, code_path
from attnspec.launch.provenance import PACKAGE
from attnspec.launch.runner_profile import Runner
from attnspec.launch.slurm_cluster import Cluster, Node, SlurmError
from attnspec.launchers.slurm import Allocation, Layout, Params, RankContainer, Step, lay_out
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


def check_cluster(runner: Runner, world_sizes: Mapping[int, str], cluster: Cluster) -> Literal["cpu", "cuda"]:
    """The device of the ranks. world_sizes: ranks -> what needs them, in words.

    Raises EnvironmentMissingError when the partition is not there or too small, with the numbers.
    """
    if runner.device.type == "auto":
        raise InputError(
            f"{runner.file}: device.type is auto, and launcher slurm starts on machines not seen before; "
            "allowed: cpu, cuda"
        )
    if runner.device.type == "cuda" and runner.gpus_per_node is None:
        raise InputError(f"{runner.file}: gpus_per_node is missing; launcher slurm asks for so many GPUs on every node")
    device = runner.device.type
    if not world_sizes:
        return device
    partition = None if runner.slurm is None else runner.slurm.partition
    fits: list[int] = []
    try:
        nodes = cluster.nodes(partition)
    except SlurmError as error:
        problem: str | None = f"runner {runner.name} submits to Slurm, and {error}"
    else:
        problem = shortage(runner, world_sizes, device, nodes)
        fits = [size for size in world_sizes if shortage(runner, {size: ""}, device, nodes) is None]
    if problem:
        chosen = only(fits, world_sizes) or ()
        raise EnvironmentMissingError(
            f"{problem}\nInstead:\n"
            + (f"  {' '.join(chosen)}   runs what fits\n" if chosen else "")
            + "  --runner NAME   takes another runner; copy this profile to ./runners and adapt it (docs/slurm.md)\n"
            "  --rehearse   runs the whole pipeline, shrunk, on the CPU"
        )
    return device


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
