"""apptainer: every worker runs in a container of its own; several ranks of a job share one, through torchrun.

All its processes live in a PID namespace of their own and end with apptainer itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from attnspec.launchers import Trial, WorkerCall
from attnspec.launchers._containers import (
    NO_CONTAINER,
    ContainerParams,
    apptainer_argv,
    apptainer_env,
    worker_container,
)

PROGRAMS = ("apptainer",)
TRIAL = Trial(
    what="apptainer --version",
    argv=("apptainer", "--version"),
    fix="install apptainer anew",
    untried=NO_CONTAINER,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Params(ContainerParams):
    """Options of apptainer."""


def command(call: WorkerCall) -> tuple[list[str], dict[str, str]]:
    """The worker in its container."""
    container, argv = worker_container(call)
    return [*apptainer_argv(container), *argv], apptainer_env(container)
