"""Runner profiles: where and how jobs run, as YAML files (`runners/<name>.yaml`).

A runner is found by path, or by name in `./runners`, the user's own folder (`~/.config/attnspec/runners`), and the
shipped profiles, in this order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError

from attnspec.catalog.findings import Finding, Section, dotted, error_of, findings_of, not_among, shown
from attnspec.errors import InputError, Problem, SpecError, nearest
from attnspec.resources import shipped
from attnspec.spec.environment import parse_env
from attnspec.spec.yaml_text import parse_yaml
from attnspec.support import Device

_SUFFIX = ".yaml"
_TYPES = ("auto", "cpu", "cuda")
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


class Profile(Section):
    """What a profile's file says, checked."""

    description: str = ""
    launcher: Annotated[str, Field(min_length=1)]
    python: str | None = None
    """Interpreter of the worker; None: the one in use."""
    image: str | None = None
    """Container image, by digest."""
    gpus_per_node: Annotated[int, Field(ge=1)] | None = None
    """Ranks on one machine at most; None: as many as there are devices (on the CPU, as many as asked)."""
    device: ExpectedDevice = ExpectedDevice()
    env: Annotated[dict[str, str], BeforeValidator(parse_env)] = Field(default_factory=dict)
    """Environment of every worker; a case's own environment wins."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Parameters of the launcher plug-in, checked when a job is launched."""


class Runner(Profile):
    """A profile with its name (the file's stem) and the file it was read from."""

    name: str
    file: str

    def expected_device(self) -> Device | None:
        """What planning assumes about the device; None for `auto`."""
        if self.device.type == "auto":
            return None
        return Device(type=self.device.type, capability=self.device.capability)

    def expectation(self) -> str:
        """The expected device in words."""
        if self.device.type != "cuda":
            return {"auto": "a CUDA device or the CPU", "cpu": "the CPU"}[self.device.type]
        model = "" if self.device.model is None else f" named {self.device.model}"
        capability = "" if self.device.capability is None else f" with compute capability {_dotted(self.device)}"
        return f"a CUDA device{model}{capability}"

    def mismatch(self, found: Device) -> str | None:
        """Why `found` is not what this runner expects, in words; None when it is."""
        expected = self.device
        if expected.type == "auto":
            return None
        name = f"{found.model or 'a device without a name'} ({found.type})"
        same = expected.type == found.type
        if same and expected.model is not None:
            words = rf"(?<![A-Za-z0-9])(?:{expected.model})(?![A-Za-z0-9])"
            same = re.search(words, found.model, re.IGNORECASE) is not None
        if same and expected.capability is not None and found.capability is not None:
            major, minor = expected.capability
            same = found.capability[0] == major and found.capability[1] >= minor
            name = f"{name} with compute capability {found.capability[0]}.{found.capability[1]}"
        return None if same else f"runner {self.name} expects {self.expectation()}; found {name}"


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
    looked = ", ".join(map(str, folders))
    raise InputError(
        f"unknown runner {name!r}{nearest(name, known)}; allowed: {', '.join(known)}, or a path; looked in {looked}"
    )


def read_runner(path: Path) -> Runner:
    """The profile in one file."""
    file = str(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SpecError([Problem(message=f"cannot be read: {reason}", file=file)]) from None
    document = parse_yaml(text, file)
    problems = list(document.problems)
    if not problems:
        try:
            return Runner(**dict(Profile.model_validate(document.value)), name=path.stem, file=file)
        except ValidationError as error:
            for finding in findings_of(error):
                place = document.place(finding.loc)
                problems.append(
                    Problem(
                        message=finding.message,
                        file=file,
                        line=place.line if place else None,
                        column=place.column if place else None,
                        path=dotted(finding.loc),
                    )
                )
    raise SpecError(problems)


def _dotted(device: ExpectedDevice) -> str:
    assert device.capability is not None
    return ".".join(map(str, device.capability))
