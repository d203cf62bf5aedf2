"""docker: every worker runs in a container of its own; several ranks of a job share one, through torchrun."""

from __future__ import annotations

from dataclasses import dataclass

from attnspec.launchers import Trial, WorkerCall
from attnspec.launchers._containers import NO_CONTAINER, ContainerParams, docker_argv, ending_argv, worker_container

PROGRAMS = ("docker",)
TRIAL = Trial(
    what="docker version",
    argv=("docker", "version", "--format={{.Server.Version}}"),
    fix="start its daemon (systemctl start docker), let this user speak to it (group docker), or set DOCKER_HOST",
    untried=NO_CONTAINER,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Params(ContainerParams):
    """Options of docker."""


def command(call: WorkerCall) -> tuple[list[str], dict[str, str]]:
    """The worker in its container."""
    container, argv = worker_container(call)
    return [*docker_argv(container), *argv], {}


def ending(call: WorkerCall) -> list[str]:
    """The container outlives a killed `docker run`, so it is ended by its name."""
    return ending_argv("docker", call.name)
