"""Runner profiles: where and how jobs run, as YAML files (`runners/<name>.yaml`).

A runner is found by path, or by name in `./runners`, the user's own folder (`~/.config/attnspec/runners`), and the
shipped profiles, in this order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from attnspec import plugins
from attnspec.catalog.findings import Finding, Section, collect, error_of, not_among
from attnspec.catalog.params import checked
from attnspec.errors import InputError, nearest
from attnspec.images.reference import ImageName
from attnspec.images.yaml_file import read_section
from attnspec.launch.expected_device import described, mismatch
from attnspec.launch.runner_sections import (
    SLURM_CONTAINERS,
    ExpectedDevice,
    Mount,
    SlurmSettings,
    as_tuple,
    parse_images,
)
from attnspec.resources import shipped
from attnspec.spec.environment import parse_env
from attnspec.support import Device

_SUFFIX = ".yaml"
_CONTAINERS = ("docker", "podman", "apptainer")
_TAKE_IMAGES = (*_CONTAINERS, "slurm")


class Profile(Section):
    """What a profile's file says, checked."""

    description: str = ""
    launcher: Annotated[str, Field(min_length=1)]
    python: str | None = None
    """Interpreter of the worker; None: the one in use."""
    image: Annotated[
        tuple[ImageName, ...],
        BeforeValidator(parse_images),
        PlainSerializer(lambda names: list(map(str, names)), list[str]),
    ] = ()
    """Container image, or several that hold different kernels: image folders, or references by digest."""
    gpus_per_node: Annotated[int, Field(ge=1)] | None = None
    """Ranks on one machine at most; None: as many as there are devices (on the CPU, as many as asked)."""
    device: ExpectedDevice = ExpectedDevice()
    nodes: Annotated[int, Field(ge=1)] | None = None
    """Machines that one job may span at most; null: no bound where the launcher reaches several, else one."""
    env: Annotated[dict[str, str], BeforeValidator(parse_env)] = Field(default_factory=dict)
    """Environment of every worker; a case's own environment wins."""
    mounts: Annotated[tuple[Mount, ...], BeforeValidator(as_tuple)] = ()
    """What containers see of the host beside the run folder, attnspec's code and plug-in files."""
    slurm: SlurmSettings | None = None
    """How jobs are asked of Slurm, for the launcher slurm."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Parameters of the launcher plug-in."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        found = []
        if self.launcher in _CONTAINERS and not self.image:
            found.append(
                Finding(message=f"is missing; launcher {self.launcher} runs workers in a container", loc=("image",))
            )
        if self.launcher == "local":
            found += [
                Finding(message=f"launcher local uses no container; allowed with {', '.join(_TAKE_IMAGES)}", loc=(key,))
                for key, given in (("image", self.image), ("mounts", self.mounts))
                if given
            ]
        if self.device.type == "cpu":
            found += [
                Finding(message="is for a CUDA device; device.type is cpu", loc=("device", key))
                for key, given in (("model", self.device.model), ("capability", self.device.capability))
                if given is not None
            ]
        if self.nodes is not None and self.nodes > 1 and not reaches_others(self.launcher):
            message = f"got {self.nodes}; launcher {self.launcher} starts jobs on one machine; allowed: 1"
            found.append(Finding(message=message, loc=("nodes",)))
        if self.slurm is not None and self.launcher != "slurm":
            found.append(Finding(message=f"is for launcher slurm; this one is {self.launcher}", loc=("slurm",)))
        if self.launcher == "slurm":
            container = None if self.slurm is None else self.slurm.container
            if self.image and container is None:
                message = f"is missing; one of {', '.join(SLURM_CONTAINERS)} brings ranks into the image"
                found.append(Finding(message=message, loc=("slurm", "container")))
            if container is not None and not self.image:
                found.append(Finding(message=f"is missing; slurm.container is {container}", loc=("image",)))
        if found:
            raise error_of(*found)
        return self


class Runner(Profile):
    """A profile with its name (the file's stem) and the file it was read from."""

    name: str
    file: str

    def beyond(self, world_size: int, what: str) -> str:
        """Why a job of so many ranks is more than this profile allows, in words; empty where it is not.

        what: who needs them, such as `cp_size 16`.
        """
        if self.gpus_per_node is None:
            return ""
        machines = (self.nodes or None) if reaches_others(self.launcher) else 1
        if machines is None or world_size <= self.gpus_per_node * machines:
            return ""
        ranks = "devices" if self.device.type == "cuda" else "ranks"
        per = f"{self.gpus_per_node} on a machine and {machines} machines" if machines > 1 else str(self.gpus_per_node)
        there = "" if reaches_others(self.launcher) else f", and its launcher {self.launcher} does not reach others"
        return f"{what} needs {world_size} {ranks}; runner {self.name} has {per}{there}"

    def expected_device(self) -> Device | None:
        """What planning assumes about the device; None for `auto`."""
        if self.device.type == "auto":
            return None
        return Device(type=self.device.type, capability=self.device.capability)

    def expectation(self) -> str:
        """The expected device in words."""
        return described(self.device)

    def mismatch(self, found: Device) -> str | None:
        """Why `found` is not what this runner expects, in words; None when it is."""
        return mismatch(self.device, self.name, found)


def reaches_others(launcher: str) -> bool:
    """Whether a launcher starts ranks on other machines; one that nobody knows may."""
    return launcher not in plugins.names("launchers") or submits_jobs(launcher)


def submits_jobs(launcher: str) -> bool:
    """Whether jobs go to a queue, and so to machines that nobody has seen when they are planned."""
    return getattr(plugins.load("launchers", launcher), "SUBMITS", False) is True


def search_folders(*, cwd: Path, environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Folders that hold runner profiles, first one first; not all need exist."""
    config = environ.get("XDG_CONFIG_HOME") or str(Path(environ.get("HOME", "~")).expanduser() / ".config")
    return (cwd / "runners", Path(config) / "attnspec" / "runners", shipped("runners"))


def runner_names(folders: Sequence[Path]) -> tuple[str, ...]:
    """Sorted names of the profiles in these folders."""
    return tuple(sorted({file.stem for folder in folders for file in folder.glob(f"*{_SUFFIX}")}))


def load_runner(name: str, folders: Sequence[Path]) -> Runner:
    """The profile of a name, or of a path (anything with a slash or ending in `.yaml`).

    Raises InputError for an unknown name, with the nearest one, and SpecError with everything wrong in the file.
    """
    if "/" in name or name.endswith(_SUFFIX):
        return read_runner(Path(name))
    for folder in folders:
        if (folder / f"{name}{_SUFFIX}").is_file():
            return read_runner(folder / f"{name}{_SUFFIX}")
    known = runner_names(folders)
    looked = ", ".join(dict.fromkeys(map(str, folders)))
    raise InputError(
        f"unknown runner {name!r}{nearest(name, known)}; allowed: {', '.join(known)}, or a path; looked in {looked}"
    )


def read_runner(path: Path) -> Runner:
    """The profile in one file. Raises SpecError with everything wrong in it."""
    return Runner(**dict(read_section(Profile, path, _launcher_findings)), name=path.stem, file=str(path))


def _launcher_findings(profile: Profile) -> list[Finding]:
    """What the launcher says of its options, or that there is no such launcher."""
    known = plugins.names("launchers")
    if profile.launcher not in known:
        hint = "; a launcher of your own is loaded by --plugin FILE"
        return [Finding(message=f"{not_among(profile.launcher, known)}{hint}", loc=("launcher",))]
    found: list[Finding] = []
    collect(found, ("options",), checked, plugins.load("launchers", profile.launcher), profile.options)
    return found
