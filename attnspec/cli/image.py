"""`attnspec image`: build, lock and verify the container images that runners name."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path

import click

from attnspec.cli._paths import PATH
from attnspec.errors import EnvironmentMissingError, InputError
from attnspec.images.building import build, lock_of, stale_files, unresolved_lock
from attnspec.images.folder import STANDARD_PROGRAM, ImageFolder, find_image, image_folders
from attnspec.images.lock import lock_text
from attnspec.images.pinning import differences_from_lock, package_differences
from attnspec.images.reference import parse_image
from attnspec.images.requirements import resolve
from attnspec.images.store import PROGRAMS, ImageStore
from attnspec.resources import is_installed

_DIFFERS = 1
_program = click.option(
    "--program",
    type=click.Choice(PROGRAMS),
    default=STANDARD_PROGRAM,
    show_default=True,
    help="What keeps images here.",
)


@click.group("image")
def command() -> None:
    """Build, lock and verify container images. An image is a folder `containers/NAME` here, in the user's configuration
    or in the package; its image.lock says which image it is.
    """


@command.command("build")
@click.argument("name")
@_program
@click.option(
    "--base", metavar="IMAGE", help="What to build from: REGISTRY/NAME@sha256:DIGEST, or an image stored here."
)
@click.option("--wheels", type=PATH, metavar="DIR", help="Take wheels from this folder instead of downloading them.")
def build_command(name: str, program: str, base: str | None, wheels: Path | None) -> None:
    """Build NAME and store it on this machine."""
    folder = _find(name)
    found = build(folder, ImageStore(program), base=base, wheels=wheels)
    click.echo(f"built {folder.tag}\nimage ID {found.image_id}")
    click.echo(f"{folder.lock_command(program)} writes it into {folder.lock_file}", err=True)


@command.command("lock")
@click.argument("name")
@_program
@click.option("--push", metavar="REGISTRY/NAME", help="Push it there, and lock the digest that it has there.")
@click.option(
    "--no-tls-verify", is_flag=True, help="The registry speaks no TLS, or with an unknown certificate (podman)."
)
@click.option(
    "--requirements", is_flag=True, help="Resolve requirements.in into requirements.lock instead; no image yet."
)
@click.option("--unresolved", metavar="REASON", help="Lock an image that cannot be built yet; this is why.")
def lock_command(
    name: str, program: str, push: str | None, no_tls_verify: bool, requirements: bool, unresolved: str | None
) -> None:
    """Write image.lock of NAME: image ID, digests, packages, how it was built."""
    folder = _find(name)
    if is_installed(folder.path):
        raise InputError(
            f"{folder.path} belongs to the installed package, and the next installation would undo the lock; "
            f"copy it to ./containers/{name}, which comes first, and lock it there"
        )
    if requirements:
        _write(folder.requirements, resolve(folder, folder.contents().python_version))
        return
    if unresolved is not None:
        _write(folder.lock_file, lock_text(unresolved_lock(folder, unresolved)))
        return
    pushed = None
    store = ImageStore(program)
    if push is not None:
        target = parse_image(push)
        if target.repository is None or target.digest is not None or push != target.repository:
            raise InputError(f"--push: got {push!r}; allowed: REGISTRY/NAME without tag and digest")
        flags = ("--tls-verify=false",) if no_tls_verify else ()
        pushed = (target.repository, store.push(folder.tag, target.repository, flags=flags))
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    _write(folder.lock_file, lock_text(lock_of(folder, store, date=date, pushed=pushed)))


@command.command("verify")
@click.argument("name")
@_program
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def verify_command(name: str, program: str, as_json: bool) -> int:
    """Hold what is stored here against the lock of NAME. Ends with 1 when something differs, 3 when it is not here."""
    folder = _find(name)
    lock = folder.lock()
    store = ImageStore(program)
    found = (None if lock.image_id is None else store.find(lock.image_id)) or store.find(folder.tag)
    differences = stale_files(folder, lock)
    if found is None and not differences:
        pulled = "" if lock.pull_reference is None else f", `{program} pull {lock.pull_reference}` fetches it"
        raise EnvironmentMissingError(f"image {name} is not here; {folder.build_command(program)} builds it{pulled}")
    if found is not None:
        packages = store.packages(found.image_id, folder.contents().python)
        differences += differences_from_lock(lock, found, packages)
        if found.image_id == lock.image_id:
            differences += package_differences(lock.packages or {}, packages)
    if as_json:
        image_id = None if found is None else found.image_id
        click.echo(json.dumps({"image": name, "image_id": image_id, "ok": not differences, "differences": differences}))
    else:
        click.echo("\n".join(differences) or f"image {name} is the locked one: {lock.image_id}")
        for what, why in lock.unresolved.items():
            click.echo(f"unresolved: {what} ({why})")
    return _DIFFERS if differences else 0


def _find(name: str) -> ImageFolder:
    return find_image(name, image_folders(cwd=Path.cwd(), environ=os.environ))


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written: {error.strerror}; copy the image's folder to ./containers"
        ) from None
    click.echo(f"wrote {path}")
