"""Python packages of an image: requirements.in resolved into requirements.lock with hashes, and fetched as wheels."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnspec.errors import EnvironmentMissingError, InputError
from attnspec.images.folder import ImageFolder

PIP_S = 3600.0
_GLIBC = range(28, 16, -1)
"""Minor versions of glibc 2 whose wheels an image takes, newest first."""


def resolve(folder: ImageFolder, python_version: str) -> str:
    """The text of requirements.lock: everything that requirements.in needs on Linux on x86-64, and what
    requirements.no-deps.in names, as it is. Raises EnvironmentMissingError with pip's words.
    """
    found = _resolved(folder.path / "requirements.in", python_version)
    alone = folder.path / "requirements.no-deps.in"
    if alone.is_file():
        found |= _resolved(alone, python_version, "--no-deps")
    return lock_text(found)


def _resolved(file: Path, python_version: str, *flags: str) -> dict[str, tuple[str, str]]:
    if not file.is_file():
        raise InputError(f"{file}: is missing")
    report = _pip(
        "install",
        *flags,
        "--dry-run",
        "--ignore-installed",
        "--quiet",
        "--report=-",
        "--target=/nonexistent",
        *_platform(python_version),
        f"--requirement={file}",
    )
    return packages_of(json.loads(report))


def packages_of(report: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Name -> version and SHA-256 of every file in pip's installation report. Pure.

    >>> archive = {"archive_info": {"hashes": {"sha256": "ab"}}}
    >>> packages_of({"install": [{"metadata": {"name": "Jinja_2", "version": "3"}, "download_info": archive}]})
    {'jinja-2': ('3', 'ab')}
    """
    found = {}
    for one in report["install"]:
        name = re.sub(r"[-_.]+", "-", one["metadata"]["name"]).lower()
        found[name] = (one["metadata"]["version"], one["download_info"]["archive_info"]["hashes"]["sha256"])
    return found


def lock_text(packages: Mapping[str, tuple[str, str]]) -> str:
    """requirements.lock of packages: name -> version and SHA-256. Pure.

    >>> print(lock_text({"numpy": ("2.4.6", "ab")}).splitlines()[-2])
    numpy==2.4.6 \\
    """
    head = "# Written by `attnspec image lock --requirements` from requirements.in; install with --no-deps.\n"
    return head + "".join(
        f"{name}=={version} \\\n    --hash=sha256:{checksum}\n"
        for name, (version, checksum) in sorted(packages.items())
    )


def fetch_wheels(folder: ImageFolder, python_version: str, target: Path, *, source: Path | None = None) -> None:
    """Every wheel of requirements.lock into a folder, checked against its hash. source: a folder to take them from."""
    only = [] if source is None else ["--no-index", f"--find-links={source}"]
    _pip(
        "download",
        "--quiet",
        "--no-deps",
        "--require-hashes",
        f"--dest={target}",
        *only,
        *_platform(python_version),
        f"--requirement={folder.requirements}",
    )


def _platform(python_version: str) -> list[str]:
    tags = [f"manylinux_2_{minor}_x86_64" for minor in _GLIBC] + ["manylinux2014_x86_64"]
    return [
        "--only-binary=:all:",
        "--implementation=cp",
        f"--python-version={python_version}",
        *(f"--platform={tag}" for tag in tags),
    ]


def _pip(*arguments: str) -> str:
    argv: Sequence[str] = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=PIP_S, check=False)
    except subprocess.TimeoutExpired:
        raise EnvironmentMissingError(f"pip {arguments[0]} gave no answer in {PIP_S:g} s") from None
    if done.returncode != 0:
        words = [line for line in done.stderr.decode(errors="replace").splitlines() if line.startswith("ERROR")]
        told = "\n".join(words) or done.stderr.decode(errors="replace").strip()[-2000:]
        raise EnvironmentMissingError(f"pip {arguments[0]} failed:\n{told}")
    return done.stdout.decode()
