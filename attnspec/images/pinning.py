"""Which image a job is to run in: what its lock or digest says against what is here.

A pinned image is run by its ID, so that what runs is what was checked. Anything else is refused with what differs, or,
where the user wants it so (`--unpinned`), run and labelled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnspec.errors import EnvironmentMissingError, InputError
from attnspec.images.folder import Contents, ImageFolder, find_image
from attnspec.images.lock import Lock
from attnspec.images.reference import ImageName
from attnspec.images.store import ImageStore, StoredImage


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedImage:
    """An image that jobs run in.

    name: as the runner names it. run_as: what the launcher's program calls it. image_id: None where the program tells
    none (apptainer, pyxis). digest, repository: of its manifest, and where to pull it, where known. pinned: whether it
    is the one that a lock or digest names. packages: the Python packages in it, once somebody has looked.
    """

    name: str
    run_as: str
    python: str = "python3"
    image_id: str | None = None
    digest: str | None = None
    repository: str | None = None
    pinned: bool = True
    packages: Mapping[str, str] = field(default_factory=dict)

    @property
    def identity(self) -> str | None:
        """What records are kept under: the image ID, else the manifest's digest; None for a tag that nobody checked."""
        return self.image_id or self.digest

    def facts(self) -> dict[str, Any]:
        """What provenance keeps of it."""
        return {
            "image_id": self.image_id,
            "digest": self.digest,
            "repository": self.repository,
            "python": self.python,
            "pinned": self.pinned,
            "packages": dict(self.packages) or None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """An image as a runner names it, with its folder's files where it has one."""

    name: ImageName
    folder: ImageFolder | None = None
    contents: Contents | None = None

    @property
    def python(self) -> str:
        """The interpreter in the image."""
        return "python3" if self.contents is None else self.contents.python


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageProblem:
    """Why an image cannot be run: what errors about images carry as their one argument, so that it can be told apart.

    why: what follows `image NAME`. fix: what to do about it. details: lines between the two.
    """

    name: str
    why: str
    fix: str
    details: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The message.

        >>> print(ImageProblem(name="cpu", why="is not here", fix="build it"))
        image cpu is not here; build it
        """
        first = f"image {self.name} {self.why}"
        return "\n".join([f"{first}:", *self.details, self.fix]) if self.details else f"{first}; {self.fix}"


def choose(names: Sequence[ImageName], folders: Sequence[Path]) -> tuple[Choice, ...]:
    """The images of a runner with their folders. Raises InputError for an unknown name."""
    choices = []
    for name in names:
        if name.folder is None:
            choices.append(Choice(name=name))
        else:
            folder = find_image(name.folder, folders)
            choices.append(Choice(name=name, folder=folder, contents=folder.contents()))
    return tuple(choices)


def pin(choice: Choice, store: ImageStore, *, unpinned: bool = False, pull_flags: Sequence[str] = ()) -> PinnedImage:
    """The image to run, pulled by digest where it is not here yet.

    Raises InputError for what is not pinned, EnvironmentMissingError with what differs from the lock, and for an image
    that is nowhere.
    """
    if choice.folder is not None:
        return _pin_folder(choice, choice.folder, store, unpinned=unpinned, pull_flags=pull_flags)
    name = choice.name
    if not name.pinned and not unpinned:
        raise _by_tag(name)
    found = store.find(name.text) or store.pull(name.text, flags=pull_flags)
    return PinnedImage(
        name=name.text,
        run_as=found.image_id,
        image_id=found.image_id,
        digest=name.digest or next(iter(found.digests), None),
        repository=name.repository,
        pinned=name.pinned,
    )


def pin_recorded(
    name: str, facts: Mapping[str, Any], store: ImageStore, *, pull_flags: Sequence[str] = ()
) -> PinnedImage:
    """The very image that a run recorded (PinnedImage.facts), pulled by digest where it is not here any more.

    Raises EnvironmentMissingError where it cannot be had.
    """
    image_id, digest, repository = facts["image_id"], facts["digest"], facts["repository"]
    found = store.find(image_id)
    if found is None and digest is not None and repository is not None:
        found = store.pull(f"{repository}@{digest}", flags=pull_flags)
        if found.image_id != image_id:
            raise EnvironmentMissingError(
                f"image {name}: {repository}@{digest} has image ID {found.image_id}; the run used {image_id}"
            )
    if found is None:
        raise EnvironmentMissingError(
            f"image {name}: the run used image ID {image_id}, which is not here and was in no registry"
        )
    return PinnedImage(
        name=name,
        run_as=found.image_id,
        python=facts["python"],
        image_id=found.image_id,
        digest=digest,
        repository=repository,
        pinned=facts["pinned"],
    )


def declared(choice: Choice, *, scheme: str = "", unpinned: bool = False, by_id: bool = False) -> PinnedImage:
    """The image as a lock or digest names it, for programs that fetch it themselves on other machines or convert it.

    scheme: what the program wants in front of a reference. by_id: whether an image that is in no registry may be called
    by its ID, for machines that hold it already. Raises InputError for a name by tag and for a folder without a right
    lock, EnvironmentMissingError where a folder's image is in no registry.
    """
    name, folder = choice.name, choice.folder
    lock = None if folder is None or (unpinned and not folder.lock_file.is_file()) else folder.lock()
    reference: str | None = name.text
    if folder is not None:
        reference = None if lock is None else lock.pull_reference or (lock.image_id if by_id else None)
    if reference is None:
        assert folder is not None
        raise EnvironmentMissingError(_in_no_registry(folder, lock, unpinned=unpinned))
    if not name.pinned and not unpinned:
        raise _by_tag(name)
    return PinnedImage(
        name=name.text,
        run_as=f"{scheme}{reference}",
        python=choice.python,
        image_id=None if lock is None else lock.image_id,
        digest=name.digest if lock is None else lock.manifest_digest,
        repository=name.repository if lock is None else lock.reference,
        pinned=name.pinned,
        packages={} if lock is None else lock.packages or {},
    )


def _in_no_registry(folder: ImageFolder, lock: Lock | None, *, unpinned: bool) -> ImageProblem:
    known = "it has no lock" if lock is None else lock.unresolved_words() or "it is in no registry"
    built = "" if lock is not None and lock.image_id else f"{folder.build_command()} builds it; "
    useless = "; --unpinned changes nothing here: the machines that run an image fetch it, and no registry has this one"
    return ImageProblem(
        name=folder.name,
        why=f"has no reference by digest to pull ({known})",
        fix=f"{built}push it to a registry that the machines reach: "
        f"`attnspec image lock {folder.name} --push REGISTRY/NAME`" + (useless if unpinned else ""),
    )


def _by_tag(name: ImageName) -> InputError:
    return InputError(
        ImageProblem(
            name=name.text,
            why="is given by a tag, which may name another image tomorrow",
            fix=f"allowed: {name.repository}@sha256:DIGEST, the name of an image folder, or --unpinned, which runs and "
            "labels it",
        )
    )


def _pin_folder(
    choice: Choice, folder: ImageFolder, store: ImageStore, *, unpinned: bool, pull_flags: Sequence[str]
) -> PinnedImage:
    lock = None if unpinned and not folder.lock_file.is_file() else folder.lock()
    found = None if lock is None or lock.image_id is None else store.find(lock.image_id)
    reference = None if lock is None else lock.pull_reference
    if found is None and reference is not None:
        found = store.find(reference) or store.pull(reference, flags=pull_flags)
    here = found or store.find(folder.tag)
    if here is None:
        raise EnvironmentMissingError(
            ImageProblem(
                name=folder.name,
                why="is not here, and its lock names no registry to pull it from",
                fix=f"{folder.build_command(store.program)} builds it",
            )
        )
    if lock is None:
        wrong = ["it has no lock"]
    elif lock.image_id == here.image_id:
        wrong = []
    else:
        wrong = differences_from_lock(lock, here, store.packages(here.image_id, choice.python))
    if wrong and not unpinned:
        raise EnvironmentMissingError(
            ImageProblem(
                name=folder.name,
                why=f"is not the locked one ({folder.lock_file})",
                details=tuple(f"  {line}" for line in wrong),
                fix=f"{folder.lock_command(store.program)} locks the one that is here; --unpinned runs it and labels "
                "the run",
            )
        )
    return PinnedImage(
        name=folder.name,
        run_as=here.image_id,
        python=choice.python,
        image_id=here.image_id,
        digest=None if wrong or lock is None else lock.manifest_digest,
        repository=None if wrong or lock is None else lock.reference,
        pinned=not wrong,
    )


def differences_from_lock(lock: Lock, found: StoredImage, packages: Mapping[str, str]) -> list[str]:
    """What differs between a lock and an image, one line each; empty when it is the locked one. Pure.

    The image ID decides; packages are told to say what an ID cannot.

    >>> from attnspec.images.lock import Base
    >>> lock = Lock(attnspec_image=1, image="x", base=Base(reference="b"), containerfile_sha256="1",
    ...     requirements_sha256="2", image_id="sha256:" + "0" * 64, packages={"torch": "2.13.0", "numpy": "2.4.6"},
    ...     unresolved={"manifest_digest": "in no registry", "base.digest": "unknown"})
    >>> here = StoredImage(image_id="sha256:" + "f" * 64)
    >>> differences_from_lock(lock, here, {"torch": "2.12.0", "numpy": "2.4.6"})[1:]
    ['package torch: locked 2.13.0, found 2.12.0']
    """
    if lock.image_id is None:
        return [f"image ID: unresolved in the lock ({lock.unresolved['image_id']}), found {found.image_id}"]
    if lock.image_id == found.image_id:
        return []
    return [
        f"image ID: locked {lock.image_id}, found {found.image_id}",
        *package_differences(lock.packages or {}, packages),
    ]


def package_differences(locked: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Packages that differ, one line each. Pure.

    >>> package_differences({"a": "1", "b": "2"}, {"a": "1", "c": "3"})
    ['package b: locked 2, found none', 'package c: locked none, found 3']
    """
    return [
        f"package {name}: locked {locked.get(name, 'none')}, found {found.get(name, 'none')}"
        for name in sorted(locked.keys() | found.keys())
        if locked.get(name) != found.get(name)
    ]
