"""The parts of a runner profile that are more than one value: its device, images, mounts, and how Slurm is asked."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from attnspec.catalog.findings import Finding, Section, error_of, not_among, shown
from attnspec.errors import InputError
from attnspec.images.reference import ImageName, parse_image

_TYPES = ("auto", "cpu", "cuda")
SLURM_CONTAINERS = ("pyxis", "apptainer", "podman")
_TIME = re.compile(r"(?:[0-9]+-)?[0-9]+(?::[0-9]{1,2}){0,2}", re.ASCII)
_FLAG = re.compile(r"--[a-z][a-z0-9-]*(?:=[^\n\0]*)?", re.ASCII)
_RENDERED_FLAGS = frozenset(
    {
        "account",
        "array",
        "chdir",
        "clusters",
        "container-env",
        "container-image",
        "container-mounts",
        "cpus-per-task",
        "dependency",
        "error",
        "export",
        "gpus",
        "gpus-per-node",
        "gpus-per-task",
        "gres",
        "help",
        "het-group",
        "input",
        "job-name",
        "kill-on-invalid-dep",
        "no-requeue",
        "nodes",
        "ntasks",
        "ntasks-per-node",
        "open-mode",
        "output",
        "parsable",
        "partition",
        "qos",
        "requeue",
        "signal",
        "test-only",
        "time",
        "usage",
        "version",
        "wait",
        "wrap",
    }
)
_CAPABILITY = re.compile(r"(?P<major>[0-9]+)\.(?P<minor>[0-9])")


def _capability(value: Any) -> tuple[int, int] | None:
    if value is None:
        return None
    match = _CAPABILITY.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise error_of(Finding(message=f'got {shown(value)}; allowed: text such as "9.0"'))
    return int(match["major"]), int(match["minor"])


def _pattern(value: Any) -> Any:
    if isinstance(value, str):
        try:
            re.compile(value)
        except re.error as error:
            raise error_of(Finding(message=f"got {shown(value)}, no regular expression: {error}")) from None
    return value


def _type(value: Any) -> Any:
    if value not in _TYPES:
        raise error_of(Finding(message=not_among(value, _TYPES)))
    return value


class ExpectedDevice(Section):
    """The device that a runner's ranks run on. `auto`: CUDA where there is one, else the CPU."""

    type: Annotated[Literal["auto", "cpu", "cuda"], BeforeValidator(_type)] = "auto"
    model: Annotated[str | None, BeforeValidator(_pattern)] = None
    """Regular expression for whole words of the driver's name of the device, such as `H100`; case does not matter."""
    capability: Annotated[tuple[int, int] | None, BeforeValidator(_capability)] = None
    """CUDA compute capability: the same major number, and at least this minor."""


def parse_images(value: Any) -> Any:
    """One image or several, in the order in which they are asked for a kernel."""
    if value is None:
        return ()
    found: list[Finding] = []
    names = []
    several = isinstance(value, list | tuple)
    for index, one in enumerate(value if several else [value]):
        loc = (index,) if several else ()
        if isinstance(one, ImageName):
            names.append(one)
            continue
        if not isinstance(one, str):
            found.append(Finding(message=f"got {shown(one)}; allowed: text", loc=loc))
            continue
        try:
            names.append(parse_image(one))
        except InputError as error:
            found.append(Finding(message=str(error), loc=loc))
    twice = next((name.text for index, name in enumerate(names) if name in names[:index]), None)
    if twice is not None:
        found.append(Finding(message=f"names {twice!r} twice"))
    if found:
        raise error_of(*found)
    return tuple(names)


def _absolute(value: Any) -> Any:
    if isinstance(value, str) and not (value.startswith("/") and "\0" not in value and "\n" not in value):
        raise error_of(Finding(message=f"got {shown(value)}; allowed: an absolute path without line breaks"))
    return value


def _source(value: Any) -> Any:
    return value if isinstance(value, str) and value.startswith("~/") else _absolute(value)


def as_tuple(value: Any) -> Any:
    """A list of a file as the tuple that a frozen model holds."""
    return tuple(value) if isinstance(value, list) else value


class Mount(Section):
    """A folder or file of the host that a container sees."""

    source: Annotated[str, BeforeValidator(_source)]
    """Absolute path on the host, or one that begins with `~/`; it must be there when a job starts."""
    target: Annotated[str | None, BeforeValidator(_absolute)] = None
    """Absolute path in the container; null: the same as on the host."""
    read_only: bool = True
    """Whether the container may only read it."""


def _time(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        raise error_of(Finding(message=f'got {value}; allowed: text; write it in quotes: "{value}" (minutes)'))
    if isinstance(value, str) and not _TIME.fullmatch(value):
        raise error_of(
            Finding(message=f'got {shown(value)}; allowed: "minutes", "hours:minutes:seconds" or "days-hours:..."')
        )
    return value


def _container(value: Any) -> Any:
    if value is not None and value not in SLURM_CONTAINERS:
        raise error_of(Finding(message=not_among(value, SLURM_CONTAINERS)))
    return value


def _flags(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        raise error_of(Finding(message=f"got {shown(value)}; allowed: a list of flags such as --exclusive"))
    found = []
    for index, flag in enumerate(value):
        if not (isinstance(flag, str) and _FLAG.fullmatch(flag)):
            message = f"got {shown(flag)}; allowed: a long flag, with its value behind `=`: --constraint=h100"
            found.append(Finding(message=message, loc=(index,)))
        elif any(one.startswith(name := flag.partition("=")[0].removeprefix("--")) for one in _RENDERED_FLAGS):
            # A beginning of a flag is that flag to sbatch.
            message = f"--{name} is set by attnspec or ends what it does; allowed: flags that it does not set itself"
            found.append(Finding(message=message, loc=(index,)))
    if found:
        raise error_of(*found)
    return tuple(value)


class SlurmSettings(Section):
    """How jobs are asked of Slurm."""

    partition: Annotated[str, Field(min_length=1)] | None = None
    """Partition; null: the cluster's own default, and so for the next two."""
    account: Annotated[str, Field(min_length=1)] | None = None
    """Account that is charged."""
    qos: Annotated[str, Field(min_length=1)] | None = None
    """Quality of service."""
    time: Annotated[str | None, BeforeValidator(_time)] = None
    """Time limit of one job as sbatch reads it."""
    container: Annotated[Literal["pyxis", "apptainer", "podman"] | None, BeforeValidator(_container)] = None
    """What brings every rank into the image; null where the runner has no image."""
    gpu_flag: Literal["gres", "gpus-per-node", "none"] = "gres"
    """How GPUs are asked for: --gres=gpu:N, --gpus-per-node=N, or not at all."""
    extra: Annotated[tuple[str, ...], BeforeValidator(_flags)] = ()
    """Further flags of sbatch."""
