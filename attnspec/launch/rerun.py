"""Where a run is repeated: the images that it recorded, found again here, else what stands in for them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from attnspec.errors import EnvironmentMissingError, InputError
from attnspec.images.pinning import Choice, PinnedImage, pin_recorded
from attnspec.images.store import ImageStore
from attnspec.launch.container_place import STORES, pull_flags, quiet, scheme_of
from attnspec.launch.found import UNSEEN
from attnspec.launch.place import Place, Survey, check_place, jobs_images, submits, survey
from attnspec.launch.runner_profile import Runner
from attnspec.plan import Plan
from attnspec.plan.requests import runnable


def recorded_place(
    provenance: Mapping[str, Any],
    runner: Runner,
    plan: Plan,
    only: Collection[str] | None,
    *,
    python_in_use: str,
    choices: Collection[Choice] = (),
    tell: Callable[[str], None] = quiet,
) -> Place:
    """The place of a run that repeats another in its own images.

    choices: the runner's images as they are named now, in the place of those that were recorded; none to insist.
    tell: hears of pulls.
    Raises EnvironmentMissingError where an image or a device is not to be had.
    """
    if not runner.image or choices:
        seen = survey(runner, python_in_use=python_in_use, choices=tuple(choices), unpinned=True, tell=tell)
        return check_place(seen, plan, only)
    held = provenance["images"]
    names = jobs_images(job for job in plan.jobs if runnable(plan, job, only))
    absent = [name for name in names if name not in held]
    if absent:
        raise InputError(f"the run's provenance.json does not tell which image {', '.join(absent)} was")
    images = {name: _again(runner, name, held[name], tell) for name in names}
    named = tuple(Choice(name=name) for name in runner.image)
    found = UNSEEN if submits(runner) else None
    return check_place(
        Survey(runner=runner, python=python_in_use, found=found, choices=named, images=images), plan, only
    )


def _again(runner: Runner, name: str, facts: Mapping[str, Any], tell: Callable[[str], None]) -> PinnedImage:
    if runner.launcher in STORES:
        return pin_recorded(name, facts, ImageStore(runner.launcher, tell=tell), pull_flags=pull_flags(runner))
    digest, repository = facts["digest"], facts["repository"]
    by_id: str | None = None
    if digest is None or repository is None:  # podman on the nodes may hold it all the same
        by_id = facts["image_id"] if runner.slurm is not None and runner.slurm.container == "podman" else None
    if by_id is None and (digest is None or repository is None):
        raise EnvironmentMissingError(f"image {name}: the run recorded no digest to pull it by")
    return PinnedImage(
        name=name,
        run_as=by_id or f"{scheme_of(runner)}{repository}@{digest}",
        python=facts["python"],
        image_id=facts["image_id"],
        digest=digest,
        repository=repository,
        pinned=facts["pinned"],
        packages=facts["packages"] or {},
    )
