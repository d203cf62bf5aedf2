"""Building and locking an image: the command, its context, and the lock of what came out.

A build is repeatable as far as its program lets it be: the base is given by digest, packages by hash, nothing is
fetched while an offline image builds, and every file gets one time stamp (podman; docker keeps its own).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from attnspec.errors import EnvironmentMissingError, InputError
from attnspec.images.folder import Contents, ImageFolder
from attnspec.images.lock import Base, Build, Lock
from attnspec.images.reference import by_digest, parse_image
from attnspec.images.requirements import fetch_wheels
from attnspec.images.store import ImageStore, StoredImage

BUILD_S = 4 * 3600.0
SOURCE_DATE_EPOCH = 1764547200
"""Time stamp of what is built: 2025-12-01, the same for every build."""
_LABEL = "attnspec."
_BASE_ID = f"{_LABEL}base.image_id"
_BASE_NAME, _BASE_DIGEST = "org.opencontainers.image.base.name", "org.opencontainers.image.base.digest"


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenBase:
    """What a build begins from. argument: as the Containerfile gets it.

    digest: of its manifest in its registry; None for an image of this machine, which image_id tells then.
    """

    argument: str
    name: str
    digest: str | None = None
    image_id: str | None = None


def find_base(folder: ImageFolder, contents: Contents, given: str | None, store: ImageStore) -> GivenBase:
    """The base of a build: the given one, else the locked one.

    given: REGISTRY/NAME@sha256:..., or an image that is stored here. Raises InputError where no digest is known.
    """
    if given is None:
        locked = folder.lock().base if folder.lock_file.is_file() else None
        if locked is not None and locked.image_id is not None:
            held = store.find(locked.reference)
            if held is None or held.image_id != locked.image_id:
                raise InputError(
                    f"image {folder.name} was built from {locked.reference} with image ID {locked.image_id}, which is "
                    "not stored here under that name; give a base: --base REGISTRY/NAME@sha256:DIGEST, or an image "
                    "that is stored here"
                )
            return GivenBase(argument=locked.reference, name=locked.reference, image_id=locked.image_id)
        if locked is None or locked.digest is None:
            raise InputError(
                f"the digest of image {folder.name}'s base {contents.base} is unresolved; give it: "
                f"--base {by_digest(contents.base, 'sha256:DIGEST')}, or an image that is stored here"
            )
        return GivenBase(
            argument=by_digest(locked.reference, locked.digest), name=locked.reference, digest=locked.digest
        )
    if "@" in given:
        name = parse_image(given)
        assert name.repository is not None and name.digest is not None
        return GivenBase(argument=given, name=name.repository, digest=name.digest)
    held = store.find(given)
    if held is None:
        raise InputError(f"--base: {given} is not stored here; allowed: such an image, or REGISTRY/NAME@sha256:DIGEST")
    return GivenBase(argument=given, name=given, image_id=held.image_id)


def build_argv(
    program: str, folder: ImageFolder, base: GivenBase, labels: Mapping[str, str], *, offline: bool
) -> list[str]:
    """The build's command; its context is the current folder. Pure."""
    stamp = {
        "podman": [f"--timestamp={SOURCE_DATE_EPOCH}"],
        "docker": [f"--build-arg=SOURCE_DATE_EPOCH={SOURCE_DATE_EPOCH}"],
    }
    return [
        program,
        "build",
        "--no-cache",
        *stamp[program],
        f"--network={'none' if offline else 'host'}",
        f"--build-arg=BASE={base.argument}",
        *(f"--label={name}={value}" for name, value in labels.items()),
        f"--tag={folder.tag}",
        "--file=Containerfile",
        ".",
    ]


def labels_of(folder: ImageFolder, base: GivenBase) -> dict[str, str]:
    """What a built image says about itself."""
    return {
        f"{_LABEL}image": folder.name,
        f"{_LABEL}containerfile": folder.checksum(folder.containerfile),
        f"{_LABEL}requirements": folder.checksum(folder.requirements),
        _BASE_NAME: base.name,
        _BASE_DIGEST: base.digest or "",  # said even where there is none: labels are inherited from the base
        _BASE_ID: base.image_id or "",
    }


def build(folder: ImageFolder, store: ImageStore, *, base: str | None, wheels: Path | None) -> StoredImage:
    """Build an image and store it here under its folder's tag. wheels: a folder to take them from."""
    contents = folder.contents()
    given = find_base(folder, contents, base, store)
    argv = build_argv(store.program, folder, given, labels_of(folder, given), offline=contents.offline)
    with tempfile.TemporaryDirectory(prefix="attnspec-build-") as name:
        context = Path(name)
        shutil.copytree(folder.path, context, dirs_exist_ok=True, ignore=shutil.ignore_patterns("wheels"))
        if contents.offline:
            (context / "wheels").mkdir()
            fetch_wheels(folder, contents.python_version, context / "wheels", source=wheels)
        store.run(argv[1:], BUILD_S, cwd=context)
    found = store.find(folder.tag)
    if found is None:
        raise EnvironmentMissingError(f"{store.program} built {folder.tag} and does not find it")
    return found


def lock_of(folder: ImageFolder, store: ImageStore, *, date: str, pushed: tuple[str, str] | None = None) -> Lock:
    """The lock of the image that is stored here under its folder's tag.

    date: ISO, UTC. pushed: repository and manifest digest; without it those of the lock that is there stay, if it is of
    the same image. Raises InputError when the folder's files have changed since it was built.
    """
    found = store.find(folder.tag)
    if found is None:
        raise EnvironmentMissingError(
            f"image {folder.name} is not here; {folder.build_command(store.program)} builds it"
        )
    sums = {
        "containerfile": folder.checksum(folder.containerfile),
        "requirements": folder.checksum(folder.requirements),
    }
    stale = [name for name, checksum in sums.items() if found.labels.get(f"{_LABEL}{name}") != checksum]
    if stale:
        raise InputError(
            f"image {folder.name} was built from another {' and '.join(stale)} than lie in {folder.path} now; "
            f"build it again: {folder.build_command(store.program)}"
        )
    contents = folder.contents()
    name, digest, base_id = (found.labels.get(label) or None for label in (_BASE_NAME, _BASE_DIGEST, _BASE_ID))
    assert name is not None
    argument = name if digest is None else by_digest(name, digest)
    base = GivenBase(argument=argument, name=name, digest=digest, image_id=base_id)
    pushed = pushed or _pushed_before(folder, found.image_id)
    unresolved = {} if pushed else {"manifest_digest": "it has been pushed to no registry"}
    if base.digest is None:
        unresolved["base.digest"] = "the base was an image of the building machine; base.image_id tells which"
    return Lock(
        attnspec_image=1,
        image=folder.name,
        reference=None if pushed is None else pushed[0],
        manifest_digest=None if pushed is None else pushed[1],
        image_id=found.image_id,
        base=Base(reference=base.name, digest=base.digest, image_id=base.image_id),
        containerfile_sha256=sums["containerfile"],
        requirements_sha256=sums["requirements"],
        packages=store.packages(found.image_id, contents.python),
        build=Build(
            command=tuple(build_argv(store.program, folder, base, labels_of(folder, base), offline=contents.offline)),
            program=store.version(),
            source_date_epoch=SOURCE_DATE_EPOCH,
        ),
        date=date,
        unresolved=unresolved,
    )


def _pushed_before(folder: ImageFolder, image_id: str) -> tuple[str, str] | None:
    """Repository and manifest digest of the same image in the lock that is there."""
    try:
        held = folder.lock()
    except InputError:  # none, or a damaged one, which is replaced
        return None
    if held.image_id != image_id or held.reference is None or held.manifest_digest is None:
        return None
    return held.reference, held.manifest_digest


def unresolved_lock(folder: ImageFolder, reason: str) -> Lock:
    """The lock of an image that nobody could build yet: everything that only a build tells is unresolved."""
    return Lock(
        attnspec_image=1,
        image=folder.name,
        base=Base(reference=folder.contents().base),
        containerfile_sha256=folder.checksum(folder.containerfile),
        requirements_sha256=folder.checksum(folder.requirements),
        unresolved=dict.fromkeys(("manifest_digest", "image_id", "base.digest", "packages"), reason),
    )


def stale_files(folder: ImageFolder, lock: Lock) -> list[str]:
    """Files of the folder that are not what was locked, one line each."""
    held = (
        ("Containerfile", folder.containerfile, lock.containerfile_sha256),
        ("requirements.lock", folder.requirements, lock.requirements_sha256),
    )
    return [
        f"{name}: has changed since it was locked" for name, file, locked in held if folder.checksum(file) != locked
    ]
