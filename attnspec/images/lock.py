"""`image.lock`: which image a folder stands for, and what it was made of. YAML, written by `attnspec image lock`.

What could not be found out is null and named in `unresolved` with the reason; nothing is made up.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BeforeValidator, Field, model_validator

from attnspec.catalog.findings import Finding, Section, error_of, shown
from attnspec.errors import InputError
from attnspec.images.reference import is_digest, parse_image
from attnspec.images.yaml_file import read_section

FILE = "image.lock"
_RESOLVABLE = ("manifest_digest", "image_id", "base.digest", "packages")


def _digest(value: Any) -> Any:
    if isinstance(value, str) and not is_digest(value):
        raise error_of(
            Finding(message=f"got {shown(value)}; allowed: sha256: and 64 hexadecimal digits in small letters")
        )
    return value


def _repository(value: Any) -> Any:
    """A repository, as a program is told to pull it: nothing that it could read as a flag or as a tag."""
    if isinstance(value, str):
        try:
            right = parse_image(value).repository == value
        except InputError:
            right = False
        if not right:
            raise error_of(Finding(message=f"got {shown(value)}; allowed: REGISTRY/NAME without tag and digest"))
    return value


Digest = Annotated[str | None, BeforeValidator(_digest)]


class Base(Section):
    """The image that the build began from."""

    reference: str
    """Its name, without a digest."""
    digest: Digest = None
    """Digest of its manifest in its registry; null for an image that was taken from the machine that built."""
    image_id: Digest = None
    """Digest of its configuration, for such an image; no registry knows an image by it."""


class Build(Section):
    """How the image was made."""

    command: Annotated[
        tuple[str, ...], BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)
    ]
    """The command, with the build's context as `.`."""
    program: str
    """Program and version."""
    source_date_epoch: int
    """Time stamp of everything in it (Unix time)."""


class Lock(Section):
    """What an image.lock says, checked."""

    attnspec_image: Literal[1]
    """Version of this format."""
    image: Annotated[str, Field(min_length=1)]
    """Name of the image's folder."""
    platform: str = "linux/amd64"
    """Operating system and machine."""
    reference: Annotated[str | None, BeforeValidator(_repository)] = None
    """Registry and repository to pull it from; null: it is in none."""
    manifest_digest: Digest = None
    """Its manifest's digest in that registry: what to pull."""
    image_id: Digest = None
    """Digest of its configuration, the same in every registry and program: what to check."""
    base: Base
    """What it was built from."""
    containerfile_sha256: str
    """Checksum of the Containerfile."""
    requirements_sha256: str
    """Checksum of requirements.lock."""
    packages: dict[str, str] | None = None
    """Python packages in it and their versions."""
    build: Build | None = None
    """How it was built; null: not built yet."""
    date: str | None = None
    """When it was locked (UTC)."""
    unresolved: dict[str, str] = Field(default_factory=dict)
    """Facts that are null because they could not be found out, each with the reason."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        known = {
            "manifest_digest": self.manifest_digest,
            "image_id": self.image_id,
            "base.digest": self.base.digest,
            "packages": self.packages,
        }
        findings = []
        for name in _RESOLVABLE:
            if known[name] is None and name not in self.unresolved:
                findings.append(Finding(message="is null and not in `unresolved`", loc=tuple(name.split("."))))
            if known[name] is not None and name in self.unresolved:
                findings.append(Finding(message="is resolved", loc=("unresolved", name)))
        findings += [
            Finding(message=f"allowed: {', '.join(_RESOLVABLE)}", loc=("unresolved", name))
            for name in self.unresolved
            if name not in _RESOLVABLE
        ]
        if findings:
            raise error_of(*findings)
        return self

    @property
    def pull_reference(self) -> str | None:
        """What to pull; None where it is in no registry or its digest there is not known."""
        if self.reference is None or self.manifest_digest is None:
            return None
        return f"{self.reference}@{self.manifest_digest}"

    def unresolved_words(self) -> str:
        """What is unresolved and why, each reason once; empty where nothing is."""
        facts: dict[str, list[str]] = {}
        for name, why in self.unresolved.items():
            facts.setdefault(why, []).append(name)
        return "; ".join(f"{', '.join(names)}: {why}" for why, names in facts.items())


def read_lock(path: Path) -> Lock:
    """The lock in a file. Raises SpecError with everything wrong in it."""
    return read_section(Lock, path)


def lock_text(lock: Lock) -> str:
    """A lock as its file's text.

    >>> lock = Lock(attnspec_image=1, image="x", base=Base(reference="b"), containerfile_sha256="1",
    ...     requirements_sha256="2", unresolved={name: "not built yet" for name in _RESOLVABLE})
    >>> lock_text(lock).splitlines()[1:4]
    ['attnspec_image: 1', 'image: x', 'platform: linux/amd64']
    """
    content: Mapping[str, Any] = lock.model_dump(mode="json")
    head = "# Written by `attnspec image lock`; docs/containers.md says what each line means.\n"
    return head + str(yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120))
