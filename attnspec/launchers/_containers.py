"""One process in a container, as a command line of docker, podman or apptainer. Pure.

The three share `Container`. Values travel as one argument each, behind a `=`, and never through a shell, so that
spaces, quotes and leading dashes in them mean nothing; mounts are records of comma-separated values, quoted as such.
"""

from __future__ import annotations

import csv
import hashlib
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from attnspec.launchers import Mounted, WorkerCall, worker_argv, worker_env
from attnspec.params import param

CODE = "/opt/attnspec"
"""Where a container finds the package attnspec."""
APPTAINER_VARIABLE = "APPTAINERENV_"
NO_CONTAINER = "no container was started to try it"
PODMAN_FIX = (
    "point CONTAINERS_CONF at a file with the settings that docs/containers.md has for machines where podman's "
    "defaults fail (default_ulimits, runtime, cgroup_manager)"
)
_PODMAN_DEFAULTS = re.compile(r"rlimit|cgroup", re.IGNORECASE)
"""What runc and crun name where the machine does not allow podman's defaults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A container around one process.

    image: an image ID, a reference by digest, or (apptainer) a URI or file. env: variables with their values.
    inherited: variables that take the value that they have where the command line runs. name: None lets the program
    choose one. run_dir: the run folder that it works for, by which what a killed host left is found. user: `uid:gid`,
    None for the image's own. extra: further flags of the program.
    """

    image: str
    env: Mapping[str, str] = field(default_factory=dict)
    inherited: tuple[str, ...] = ()
    mounts: tuple[Mounted, ...] = ()
    gpus: bool = False
    name: str | None = None
    run_dir: str | None = None
    network: str = "host"
    user: str | None = None
    extra: tuple[str, ...] = ()


_FLAG = re.compile(r"--[a-z][a-z0-9-]*(?:=[^\n\0]*)?", re.ASCII)
_RENDERED_FLAGS = frozenset(
    {
        "attach",
        "cidfile",
        "detach",
        "entrypoint",
        "help",
        "interactive",
        "ipc",
        "log-driver",
        "name",
        "network",
        "pull",
        "rm",
        "tty",
        "user",
    }
)


def refused_flag(flag: str) -> str | None:
    """What is wrong with a further flag: one without dashes would take the image's place.

    >>> refused_flag("--cpuset-cpus=0-31")
    >>> refused_flag("--name=x")
    '--name is set by attnspec; allowed: flags that it does not set itself'
    """
    if not _FLAG.fullmatch(flag):
        return f"got {flag!r}; allowed: a long flag, with its value behind `=`: --cpuset-cpus=0-31"
    name = flag.partition("=")[0].removeprefix("--")
    return (
        f"--{name} is set by attnspec; allowed: flags that it does not set itself" if name in _RENDERED_FLAGS else None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerParams:
    """Options of every launcher that uses containers."""

    network: str = param(
        default="host",
        choices=("host", "none"),
        doc="The container's network; none suffices for ranks of one machine on the CPU.",
    )
    extra: tuple[str, ...] = param(
        default=(), refusal=refused_flag, doc="Further flags of the program that runs containers."
    )


def docker_argv(container: Container) -> list[str]:
    """`docker run` up to the image; the process's own command line follows.

    >>> docker_argv(Container(image="sha256:ab", network="none"))[-4:]
    ['--network=none', '--ipc=host', '--entrypoint=', 'sha256:ab']
    """
    gpus = ["--gpus=all", "--ulimit=memlock=-1"] if container.gpus else []
    return ["docker", "run", *_run_flags(container, gpus)]


def podman_argv(container: Container) -> list[str]:
    """`podman run` up to the image; GPUs come as the host's CDI devices."""
    gpus = ["--device=nvidia.com/gpu=all"] if container.gpus else []
    return ["podman", "run", *_run_flags(container, gpus)]


def _run_flags(container: Container, gpus: list[str]) -> list[str]:
    return [
        "--rm",
        "--interactive",  # standard input is the worker's control pipe
        "--init",  # signals reach the worker, and its orphans are reaped
        "--pull=never",  # what runs is what was checked
        "--log-driver=none",
        "--security-opt=label=disable",
        *([] if container.name is None else [f"--name={container.name}"]),
        *([] if container.run_dir is None else [f"--label={run_label(container.run_dir)}"]),
        *([] if container.user is None else [f"--user={container.user}"]),
        *gpus,
        *(f"--mount={_mount(one)}" for one in container.mounts),
        *(f"--env={name}={value}" for name, value in container.env.items()),
        *(f"--env={name}" for name in container.inherited),
        *container.extra,
        f"--network={container.network}",
        "--ipc=host",  # ranks share memory through /dev/shm, of which a container has 64 MiB by itself
        "--entrypoint=",
        container.image,
    ]


def run_label(run_dir: str) -> str:
    """The label of all containers that work for one run folder."""
    return f"attnspec.run={_run_key(run_dir)}"


def _run_key(run_dir: str) -> str:
    return hashlib.sha256(run_dir.encode()).hexdigest()[:32]


def starting_fix(program: str, words: str) -> str:
    """What to do where a program started no container, as far as its words tell; empty where they do not. Pure.

    >>> bool(starting_fix("podman", "Error: crun: setrlimit `RLIMIT_NOFILE`: Operation not permitted"))
    True
    >>> starting_fix("podman", "Error: no such image"), starting_fix("docker", "error setting rlimit type 7")
    ('', '')
    """
    return PODMAN_FIX if program == "podman" and _PODMAN_DEFAULTS.search(words) else ""


def ending_argv(program: str, name: str) -> list[str]:
    """The command that ends a container of docker or podman, and finds none to end without complaint."""
    if program == "podman":
        return ["podman", "rm", "--force", "--ignore", "--time=0", name]
    listed = 'docker ps --all --quiet --filter "name=^$1$" | xargs -r docker rm --force'
    return ["/bin/sh", "-c", listed, "sh", name]


def sweeping_argv(program: str, run_dir: str) -> list[str]:
    """The command that ends every container of docker or podman that works for a run folder."""
    listed = '"$1" ps --all --quiet --filter "label=$2" | xargs -r "$1" rm --force'
    return ["/bin/sh", "-c", listed, "sh", program, run_label(run_dir)]


def apptainer_argv(container: Container) -> list[str]:
    """`apptainer exec` up to the image. Variables do not travel in it: see apptainer_env.

    >>> apptainer_argv(Container(image="/i.sif", gpus=True))[4:]
    ['--no-home', '--pid', '--writable-tmpfs', '--pwd=/', '--nv', '/i.sif']
    """
    argv = [
        "apptainer",
        "exec",
        "--cleanenv",
        "--no-eval",  # values are text, not shell
        "--no-home",
        "--pid",  # all processes go with the first
        "--writable-tmpfs",
        "--pwd=/",
        *(["--nv"] if container.gpus else []),
        *(["--net", "--network=none"] if container.network == "none" else []),
        *(f"--mount={_mount(one, read_only='ro')}" for one in container.mounts),
        *container.extra,
        container.image,
    ]
    if not container.inherited:
        return argv
    handed = "; ".join(  # a variable that is not set must stay so: an empty CUDA_VISIBLE_DEVICES hides all devices
        f'[ -z "${{{name}+x}}" ] || export {APPTAINER_VARIABLE}{name}="${name}"' for name in container.inherited
    )
    return ["/bin/sh", "-c", f'{handed}; exec "$@"', "sh", *argv]


def apptainer_env(container: Container) -> dict[str, str]:
    """How apptainer takes variables, since a value on its command line may hold no comma. It lets none set HOME.

    Its containers share the node's /tmp, so that what compilers keep there gets a folder of the run's own.

    >>> apptainer_env(Container(image="i", env={"A": "1,2"}))
    {'APPTAINERENV_A': '1,2'}
    """
    caches = {} if container.run_dir is None else cache_env(f"attnspec-{_run_key(container.run_dir)}")
    env = {**caches, **container.env}
    return {f"{APPTAINER_VARIABLE}{name}": value for name, value in env.items() if name != "HOME"}


def cache_env(folder: str) -> dict[str, str]:
    """Where compilers keep what they made, under a folder of /tmp: else it is one for every user called the same.

    >>> cache_env("attnspec-7")["TRITON_CACHE_DIR"]
    '/tmp/attnspec-7/triton'
    """
    return {"TORCHINDUCTOR_CACHE_DIR": f"/tmp/{folder}/inductor", "TRITON_CACHE_DIR": f"/tmp/{folder}/triton"}


def worker_container(call: WorkerCall) -> tuple[Container, list[str]]:
    """The container of a worker, and the worker's own command line in it.

    The run folder and plug-in files have the path that they have on the host, the code is read-only at CODE.
    """
    assert call.image is not None
    params: Mapping[str, Any] = call.params
    container = Container(
        image=call.image,
        env=container_env(call.env, call.world_size),
        mounts=worker_mounts(run_dir=call.run_dir, package=call.package, plugins=call.plugins, mounts=call.mounts),
        gpus=call.gpus,
        name=call.name,
        run_dir=call.run_dir,
        network=params.get("network", "host"),
        user=call.user,
        extra=tuple(params.get("extra", ())),
    )
    return container, worker_argv(call.python, call.request_path, call.world_size)


def container_env(env: Mapping[str, str], world_size: int) -> dict[str, str]:
    """The environment of a worker in a container, whose user may have neither a name nor a home there."""
    return worker_env({"HOME": "/tmp", "USER": "attnspec", **env}, CODE, world_size)


def worker_mounts(
    *, run_dir: str, package: str, plugins: tuple[str, ...] = (), mounts: tuple[Mounted, ...] = ()
) -> tuple[Mounted, ...]:
    """What a worker's container sees of the host."""
    return (
        Mounted(source=run_dir, target=run_dir, read_only=False),
        Mounted(source=package, target=f"{CODE}/attnspec"),
        *(Mounted(source=file, target=file) for file in plugins),
        *mounts,
    )


def _mount(mounted: Mounted, read_only: str = "readonly") -> str:
    """One record of comma-separated values; a value with a comma or quote is quoted, its quotes doubled."""
    fields = ["type=bind", f"source={mounted.source}", f"destination={mounted.target}"]
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow([*fields, *([read_only] if mounted.read_only else [])])
    return text.getvalue()
