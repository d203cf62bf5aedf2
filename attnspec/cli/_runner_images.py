"""The images of a runner as doctor looks for them: each is there, or why not and what to do. Not a command."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from attnspec.cli._console import say
from attnspec.errors import EnvironmentMissingError, InputError
from attnspec.images.pinning import Choice, ImageProblem, PinnedImage
from attnspec.launch.container_place import choices_of, pinned
from attnspec.launch.runner_profile import Runner


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerImage:
    """One image. image: None where it cannot be run; then why follows `image NAME`, and fix says what to do."""

    choice: Choice
    image: PinnedImage | None = None
    why: str = ""
    fix: str = ""

    @property
    def problem(self) -> str | None:
        """What is wrong with it, in one line; None where nothing is."""
        return (
            None
            if self.image is not None
            else "; ".join(filter(None, (f"image {self.choice.name} {self.why}", self.fix)))
        )


def runner_images(runner: Runner, *, unpinned: bool) -> list[RunnerImage]:
    """Every image that a runner names. Raises InputError for a name that no folder has."""
    return [_looked_up(runner, one, unpinned) for one in choices_of(runner, cwd=Path.cwd(), environ=os.environ)]


def _looked_up(runner: Runner, choice: Choice, unpinned: bool) -> RunnerImage:
    try:
        return RunnerImage(choice=choice, image=pinned(runner, choice, unpinned=unpinned, tell=say))
    except (EnvironmentMissingError, InputError) as error:
        return unusable_image(choice, error)


def unusable_image(choice: Choice, error: EnvironmentMissingError | InputError) -> RunnerImage:
    """An image that an error speaks of."""
    told = error.args[0]
    if isinstance(told, ImageProblem):
        details = f": {', '.join(line.strip() for line in told.details)}" if told.details else ""
        return RunnerImage(choice=choice, why=f"{told.why}{details}", fix=told.fix)
    return RunnerImage(choice=choice, why=f"cannot be used: {' '.join(str(error).split())}")


def image_lines(images: Sequence[RunnerImage]) -> Iterator[str]:
    """Images in lines; those that lack the same as one before are listed with it, and what to do told once."""
    alike: dict[str, list[RunnerImage]] = {}
    for one in images:
        if one.image is not None:
            yield f"  yes  image {one.choice.name}: {one.image.run_as}"
        else:
            alike.setdefault(one.why, []).append(one)
    for first, *others in alike.values():
        yield f"  no   image {first.choice.name} {first.why}"
        if first.fix:
            yield f"       fix: {first.fix}"
        if others:
            yield f"  no   image {', '.join(str(one.choice.name) for one in others)}: the same"
