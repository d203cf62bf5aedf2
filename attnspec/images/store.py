"""The images of this machine, as docker or podman keeps them: look one up, pull, run something short in it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnspec.errors import EnvironmentMissingError
from attnspec.launchers._containers import Container, docker_argv, podman_argv, starting_fix
from attnspec.units import format_bytes

PROGRAMS = ("podman", "docker")
PULL_S = 3600.0
LOOK_S = 120.0
_TLS = re.compile(r"server gave HTTP response to HTTPS client|x509: |tls: ")
_RENDERERS = {"docker": docker_argv, "podman": podman_argv}

# Runs in the image's interpreter. A package counts once, as the one that an import finds first.
_LIST_PACKAGES = """
import importlib.metadata, json, re
found = {}
for one in importlib.metadata.distributions():
    name = one.metadata["Name"]
    if name:
        found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), one.version)
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredImage:
    """An image that is here. image_id: digest of its configuration. digests: manifest digests that it is known by."""

    image_id: str
    digests: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    size_bytes: int | None = None


class ImageStore:
    """One program and its images. Raises EnvironmentMissingError where the program is not here or fails."""

    def __init__(self, program: str, *, tell: Callable[[str], None] = lambda text: None) -> None:
        """tell: hears what takes long, before and after it."""
        if shutil.which(program) is None:
            raise EnvironmentMissingError(f"{program} is not on the path; install it, or choose another runner")
        self.program = program
        self._tell = tell

    def version(self) -> str:
        """The program and its version."""
        words = self._run(["--version"], LOOK_S).stdout.decode(errors="replace").split()
        number = next((word.rstrip(",") for word in words if word[:1].isdigit()), "of unknown version")
        return f"{self.program} {number}"

    def find(self, reference: str) -> StoredImage | None:
        """The image of an ID or reference; None when it is not here."""
        done = self._run(["image", "inspect", reference], LOOK_S, check=False)
        if done.returncode != 0:
            self._check_alive(done)
            return None
        found: dict[str, Any] = json.loads(done.stdout)[0]
        digests = [*(found.get("RepoDigests") or []), *filter(None, [found.get("Digest")])]
        return StoredImage(
            image_id=_prefixed(found["Id"]),
            digests=tuple(dict.fromkeys(one.rpartition("@")[2] for one in digests)),
            labels=(found.get("Config") or {}).get("Labels") or {},
            size_bytes=found.get("Size"),
        )

    def pull(self, reference: str, *, flags: Sequence[str] = ()) -> StoredImage:
        """Fetch an image from its registry."""
        self._tell(f"{self.program} pulls {reference}; this may take minutes")
        began_s = time.monotonic()
        done = self._run(["pull", "--quiet", *flags, reference], PULL_S, check=False)
        if done.returncode != 0:
            words = self._last_words(done)
            fix = pulling_fix(self.program, words)
            raise EnvironmentMissingError(f"{self.program} cannot pull {reference}: {words}{fix and f'; {fix}'}")
        found = self.find(reference)
        if found is None:
            raise EnvironmentMissingError(f"{self.program} pulled {reference} and does not find it")
        size = "" if found.size_bytes is None else f", {format_bytes(found.size_bytes)}"
        self._tell(f"{self.program} pulled {reference} in {time.monotonic() - began_s:.0f} s{size}")
        return found

    def output(self, container: Container, argv: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[bytes]:
        """Run a short command in a container."""
        return self._run([*_RENDERERS[self.program](container)[1:], *argv], timeout_s, check=False)

    def packages(self, image_id: str, python: str) -> dict[str, str]:
        """The Python packages in an image, by normalised name."""
        container = Container(image=image_id, network="none")
        done = self.output(container, [python, "-c", _LIST_PACKAGES], LOOK_S)
        try:
            return dict(sorted(json.loads(done.stdout.splitlines()[-1]).items()))
        except (IndexError, ValueError):
            raise EnvironmentMissingError(
                f"{python} in image {image_id} does not list its packages: {self._last_words(done)}"
            ) from None

    def push(self, reference: str, target: str, *, flags: Sequence[str] = ()) -> str:
        """Send an image to a repository; the digest of its manifest there."""
        tagged = f"{target}:latest"
        self._run(["tag", reference, tagged], LOOK_S)
        if self.program == "podman":  # its store knows the image by other digests than the registry's, too
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "digest"
                self._run(["push", "--quiet", f"--digestfile={file}", *flags, tagged], PULL_S)
                return file.read_text(encoding="ascii").strip()
        self._run(["push", "--quiet", tagged], PULL_S)
        held = json.loads(self._run(["image", "inspect", tagged], LOOK_S).stdout)[0]
        digests = [one.partition("@")[2] for one in held.get("RepoDigests") or [] if one.startswith(f"{target}@")]
        if len(digests) != 1:
            raise EnvironmentMissingError(f"{self.program} does not tell the digest that {target} was pushed under")
        return str(digests[0])

    def run(self, arguments: Sequence[str], timeout_s: float, *, cwd: Path | None = None) -> str:
        """Any other command of the program; what it prints."""
        return self._run(arguments, timeout_s, cwd=cwd).stdout.decode(errors="replace")

    def _run(
        self, arguments: Sequence[str], timeout_s: float, *, check: bool = True, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        try:
            done = subprocess.run(
                [self.program, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=timeout_s,
                check=False,
                cwd=cwd,
            )
        except OSError as error:
            raise EnvironmentMissingError(f"{self.program} cannot be started: {error.strerror}") from None
        except subprocess.TimeoutExpired:
            raise EnvironmentMissingError(f"{self.program} {arguments[0]} gave no answer in {timeout_s:g} s") from None
        if check and done.returncode != 0:
            raise EnvironmentMissingError(f"{self.program} {arguments[0]} failed: {self._last_words(done)}")
        return done

    def _check_alive(self, failed: subprocess.CompletedProcess[bytes]) -> None:
        """An image that is not here and a program that does not work both end with a failure; tell them apart."""
        alive = self._run(["image", "ls", "--quiet"], LOOK_S, check=False)
        if alive.returncode != 0:
            raise EnvironmentMissingError(f"{self.program} does not work here: {self._last_words(alive)}")

    def _last_words(self, done: subprocess.CompletedProcess[bytes]) -> str:
        """Why a command failed, and what to do where that is known."""
        lines = [line for line in (done.stderr or done.stdout).decode(errors="replace").splitlines() if line.strip()]
        words = " ".join(lines[-3:]) or f"exit code {done.returncode}"
        return "; ".join(filter(None, (words, starting_fix(self.program, words))))


def pulling_fix(program: str, words: str) -> str:
    """What to do where a registry does not speak TLS as it should, as far as a program's words tell; else empty. Pure.

    >>> pulling_fix("podman", "http: server gave HTTP response to HTTPS client").partition(";")[0]
    "where that is as it should be, the runner's `options: {tls_verify: false}` pulls all the same"
    >>> pulling_fix("podman", "manifest unknown")
    ''
    """
    if not _TLS.search(words):
        return ""
    if program == "podman":
        return (
            "where that is as it should be, the runner's `options: {tls_verify: false}` pulls all the same; "
            "so does `insecure = true` for the registry in registries.conf"
        )
    return "where that is as it should be, name the registry in `insecure-registries` of docker's daemon.json"


def _prefixed(image_id: str) -> str:
    return image_id if image_id.startswith("sha256:") else f"sha256:{image_id}"
