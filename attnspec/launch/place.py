"""Where a plan runs: a runner, what stands behind it on this machine, and the images that its jobs run in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from attnspec import plugins
from attnspec.catalog import validate_params
from attnspec.errors import EnvironmentMissingError
from attnspec.images.pinning import Choice, PinnedImage
from attnspec.launch.container_place import check_driver, look_inside, mounted, pinned, quiet
from attnspec.launch.found import UNSEEN, Found, device_type, instead, interpreter, look
from attnspec.launch.runner_profile import Runner, submits_jobs
from attnspec.launch.slurm_cluster import Cluster
from attnspec.launch.slurm_place import check_cluster, instead_of_cluster
from attnspec.plan import Job, Plan
from attnspec.plan.requests import runnable
from attnspec.support import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """A runner as it was looked at before planning. found: None where only the images that a plan needs will tell.

    tell: hears what takes long, such as the pull of an image.
    """

    runner: Runner
    python: str
    found: Found | None
    choices: tuple[Choice, ...] = ()
    images: Mapping[str, PinnedImage] = field(default_factory=dict)
    unpinned: bool = False
    tell: Callable[[str], None] = quiet

    @property
    def device(self) -> Device | None:
        """What planning assumes: the device that the runner expects, else the one that was found."""
        expected = self.runner.expected_device()
        return expected if expected is not None or self.found is None else self.found.device


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A runner and what stands behind it on this machine: the answer to "may this run here?".

    images: those that jobs run in, by the name that the runner gives them.
    """

    runner: Runner
    python: str
    found: Found
    device: Literal["cpu", "cuda"]
    images: Mapping[str, PinnedImage] = field(default_factory=dict)


def survey(
    runner: Runner,
    *,
    python_in_use: str,
    choices: Sequence[Choice] = (),
    unpinned: bool = False,
    tell: Callable[[str], None] = quiet,
) -> Survey:
    """The runner's interpreter and what it finds on this machine, as far as planning needs to know.

    Raises EnvironmentMissingError when the runner's launcher or interpreter is not there, SpecError for options that
    the launcher does not take.
    """
    if runner.launcher not in plugins.names("launchers"):
        here = ", ".join(plugins.names("launchers"))
        raise EnvironmentMissingError(
            f"runner {runner.name} needs the launcher {runner.launcher}, which is not there; there is: {here}.\n"
            "Instead: --runner local runs on this machine, --rehearse runs the whole pipeline, shrunk, on the CPU; "
            "attnspec plan, mask, sample and report work anywhere"
        )
    validate_params("launchers", runner.launcher, runner.options, path="options")
    python = interpreter(runner, python_in_use)
    if submits(runner):
        return Survey(runner=runner, python=python, found=UNSEEN, choices=tuple(choices), unpinned=unpinned, tell=tell)
    if not choices:
        return Survey(runner=runner, python=python, found=look(python, runner.env))
    images: dict[str, PinnedImage] = {}
    found = None
    if runner.device.type == "auto":
        first = choices[0]
        image = images[str(first.name)] = pinned(runner, first, unpinned=unpinned, tell=tell)
        found = look_inside(runner, image, runner.python or image.python)
    return Survey(
        runner=runner,
        python=python,
        found=found,
        choices=tuple(choices),
        images=images,
        unpinned=unpinned,
        tell=tell,
    )


def submits(runner: Runner) -> bool:
    """Whether a runner's jobs go to a queue, and so to machines that nobody has seen when they are planned."""
    return submits_jobs(runner.launcher)


def check_place(seen: Survey, plan: Plan, only: Collection[str] | None) -> Place:
    """Where the chosen cases of a plan run. Raises EnvironmentMissingError when what is there does not suffice."""
    runner = seen.runner
    jobs = [job for job in plan.jobs if runnable(plan, job, only)]
    world_sizes = {job.world_size: f"cp_size {job.world_size}" for job in jobs}
    mounted(runner)  # refuses a source that is not there
    if submits(runner):
        device = check_cluster(runner, world_sizes, Cluster())
        try:
            images = _images(seen, jobs_images(jobs))
        except EnvironmentMissingError as error:
            raise EnvironmentMissingError(f"{error}\n{instead_of_cluster(world_sizes)}") from None
        return Place(runner=runner, python=seen.python, found=UNSEEN, device=device, images=images)
    if not seen.choices:
        assert seen.found is not None
        device = device_type(runner, seen.found, world_sizes=world_sizes)
        return Place(runner=runner, python=seen.python, found=seen.found, device=device)
    names = jobs_images(jobs) or [str(seen.choices[0].name)]
    try:
        check_driver(runner)
        images = _images(seen, names)
        founds = [look_inside(runner, image, runner.python or image.python) for image in images.values()]
        images = {
            name: dataclasses.replace(image, packages=found.packages)
            for (name, image), found in zip(images.items(), founds, strict=True)
        }
    except EnvironmentMissingError as error:
        raise EnvironmentMissingError(f"{error}\n{instead(world_sizes)}") from None
    (device,) = {device_type(runner, found, world_sizes=world_sizes) for found in founds}
    return Place(runner=runner, python=seen.python, found=founds[0], device=device, images=images)


def jobs_images(jobs: Iterable[Job]) -> list[str]:
    """The images that jobs run in, each once."""
    return list(dict.fromkeys(job.image for job in jobs if job.image is not None))


def _images(seen: Survey, names: Iterable[str]) -> dict[str, PinnedImage]:
    choices = {str(choice.name): choice for choice in seen.choices}
    return {
        name: seen.images.get(name) or pinned(seen.runner, choices[name], unpinned=seen.unpinned, tell=seen.tell)
        for name in names
    }
