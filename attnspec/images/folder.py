"""Image folders, `containers/<image>/`: Containerfile, requirements and their lock, contents, image.lock."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from attnspec.catalog.findings import Finding, Section, error_of, shown
from attnspec.errors import InputError, nearest
from attnspec.images.lock import FILE, Lock, read_lock
from attnspec.images.reference import by_digest
from attnspec.images.yaml_file import read_section
from attnspec.resources import shipped

STANDARD_PROGRAM = "podman"
"""What keeps images here where nobody says so."""


def program_flag(program: str) -> str:
    """What a command of `attnspec image` needs beside a name, to mean this program's images.

    >>> program_flag("podman"), program_flag("docker")
    ('', ' --program docker')
    """
    return "" if program == STANDARD_PROGRAM else f" --program {program}"


def _names(value: Any) -> Any:
    if not (isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)):
        raise error_of(Finding(message=f"got {shown(value)}; allowed: a list of names"))
    return tuple(value)


def _names_or_none(value: Any) -> Any:
    return None if value is None else _names(value)


class Contents(Section):
    """What image.yaml says: which kernels and strategies an image holds, and what it is built from."""

    description: str
    """What it is for, in a line."""
    base: Annotated[str, Field(min_length=1)]
    """Image that it is built from, by name; its digest is given when it is built, and locked."""
    python: str = "python3"
    """The interpreter in it."""
    python_version: Annotated[str, Field(pattern=r"3\.[0-9]+")]
    """The interpreter's version, which requirements are locked for."""
    offline: bool = False
    """Whether it is built from wheels that are fetched before, without a network."""
    kernels: Annotated[tuple[str, ...], BeforeValidator(_names)]
    """Kernels whose libraries it holds."""
    providers: Annotated[tuple[str, ...] | None, BeforeValidator(_names_or_none)] = None
    """Packages that its kernels come from, for cases that ask for one; null: not said."""
    strategies: Annotated[tuple[str, ...], BeforeValidator(_names)] = ()
    """Strategies whose libraries it holds, or that need none."""


@dataclass(frozen=True, slots=True)
class ImageFolder:
    """One folder that describes an image. Raises SpecError where its files are damaged or missing."""

    path: Path

    @property
    def name(self) -> str:
        """The image's name."""
        return self.path.name

    @property
    def containerfile(self) -> Path:
        """How it is built."""
        return self.path / "Containerfile"

    @property
    def requirements(self) -> Path:
        """Its Python packages with hashes."""
        return self.path / "requirements.lock"

    @property
    def lock_file(self) -> Path:
        """Which image it is."""
        return self.path / FILE

    @property
    def tag(self) -> str:
        """What a build on this machine is called here."""
        return f"localhost/attnspec/{self.name.lower()}:latest"

    def contents(self) -> Contents:
        """What is in the image."""
        return read_section(Contents, self.path / "image.yaml")

    def build_command(self, program: str = STANDARD_PROGRAM) -> str:
        """The command that builds it; with the base where no lock tells its digest, which is the user's to fill in."""
        base = self.contents().base
        locked = None
        with suppress(InputError):  # no lock, or a damaged one
            locked = self.lock().base
        known = locked is not None and (locked.digest is not None or locked.image_id is not None)
        given = "" if known else f" --base {by_digest(base, 'sha256:DIGEST')}"
        return f"`attnspec image build {self.name}{program_flag(program)}{given}`"

    def lock_command(self, program: str = STANDARD_PROGRAM) -> str:
        """The command that locks what was built."""
        return f"`attnspec image lock {self.name}{program_flag(program)}`"

    def lock(self) -> Lock:
        """Which image it is. Raises InputError when there is no lock."""
        if not self.lock_file.is_file():
            raise InputError(
                f"image {self.name} has no lock: {self.lock_file} is missing; "
                f"`attnspec image build {self.name} --base {by_digest(self.contents().base, 'sha256:DIGEST')}` and "
                f"{self.lock_command()} make it"
            )
        return read_lock(self.lock_file)

    def checksum(self, file: Path) -> str:
        """SHA-256 of one of its files. Raises InputError when it is missing."""
        try:
            return hashlib.sha256(file.read_bytes()).hexdigest()
        except OSError as error:
            raise InputError(f"{file}: cannot be read: {error.strerror}") from None


def image_folders(*, cwd: Path, environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Folders that hold image folders, first one first; not all need exist."""
    config = environ.get("XDG_CONFIG_HOME") or str(Path(environ.get("HOME", "~")).expanduser() / ".config")
    return (cwd / "containers", Path(config) / "attnspec" / "containers", shipped("containers"))


def find_image(name: str, folders: Sequence[Path]) -> ImageFolder:
    """The image folder of a name. Raises InputError for an unknown one, with the nearest."""
    for folder in folders:
        if (folder / name / "image.yaml").is_file():
            return ImageFolder(folder / name)
    known = image_names(folders)
    looked = ", ".join(dict.fromkeys(map(str, folders)))
    raise InputError(
        f"unknown image {name!r}{nearest(name, known)}; allowed: {', '.join(known)}, "
        f"or REGISTRY/NAME@sha256:DIGEST; looked in {looked}"
    )


def image_names(folders: Sequence[Path]) -> tuple[str, ...]:
    """Sorted names of the images in these folders."""
    return tuple(sorted({file.parent.name for folder in folders for file in folder.glob("*/image.yaml")}))
