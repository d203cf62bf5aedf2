"""podman: every worker runs in a container of its own; several ranks of a job share one, through torchrun."""

from __future__ import annotations

from dataclasses import dataclass

from attnspec.launchers import Trial, WorkerCall
from attnspec.launchers._containers import (
    PODMAN_FIX,
    Container,
    ContainerParams,
    ending_argv,
    podman_argv,
    worker_container,
)
from attnspec.params import param

PROGRAMS = ("podman",)
_IN_AN_EMPTY_ROOT = """\
root=$(mktemp -d) || exit 1
trap 'rm -rf "$root"' EXIT
"$@" --rootfs "$root" /run/podman-init --version
"""
"""A container needs no image: podman itself brings the init process that every worker's container has."""
TRIAL = Trial(
    what="podman run",
    argv=("sh", "-c", _IN_AN_EMPTY_ROOT, "sh", *podman_argv(Container(image=""))[:-1]),
    fix=PODMAN_FIX,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Params(ContainerParams):
    """Options of podman."""

    tls_verify: bool = param(default=True, doc="Whether the registry must speak TLS with a certificate that is known.")


def command(call: WorkerCall) -> tuple[list[str], dict[str, str]]:
    """The worker in its container."""
    container, argv = worker_container(call)
    return [*podman_argv(container), *argv], {}


def ending(call: WorkerCall) -> list[str]:
    """The container outlives a killed `podman run`, so it is ended by its name."""
    return ending_argv("podman", call.name)
