"""podman: every worker runs in a container of its own; several ranks of a job share one, through torchrun."""

from __future__ import annotations

from dataclasses import dataclass

from attnspec.launchers import Trial, WorkerCall
from attnspec.launchers._containers import ContainerParams, ending_argv, podman_argv, worker_container
from attnspec.params import param

PROGRAMS = ("podman",)
TRIAL = Trial(
    argv=("podman", "info", "--format={{.Store.GraphRoot}}"),
    fix="docs/containers.md has settings for machines where podman's defaults fail (CONTAINERS_CONF)",
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
