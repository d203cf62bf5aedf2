"""`attnspec doctor`: what works here, and what to do about the rest."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape

from attnspec import plugins
from attnspec.cli._answers import Answer, answer_lines, told, unusable
from attnspec.cli._console import is_log, show
from attnspec.cli._examination import EXAMINED, Where, examined, outside, targets_here
from attnspec.cli._launchers import launcher_answers
from attnspec.cli._runner_images import RunnerImage, image_lines, runner_images, unusable_image
from attnspec.cli._variants import kernel_answers
from attnspec.cli._whole_number import whole_number
from attnspec.errors import EnvironmentMissingError, InputError
from attnspec.launch.container_place import check_driver, enter, look_inside, mounted
from attnspec.launch.found import instead, interpreter, look
from attnspec.launch.place import submits
from attnspec.launch.provenance import PACKAGE
from attnspec.launch.runner_profile import Runner, load_runner, search_folders
from attnspec.launch.slurm_cluster import Cluster
from attnspec.launch.slurm_place import instead_of_cluster, lacking
from attnspec.units import counted
from attnspec.wire import parts_of

_MISSING = 3
_STYLES = (
    ("^(runner .*?:|kernels|strategies|launchers|Instead:)", "head"),
    ("^ +yes\\b", "good"),
    ("^ +no\\b", "bad"),
    ("^ +fix: .*", "key"),
)


@click.command("doctor")
@click.option("--runner", "name", default="local", show_default=True, metavar="NAME", help="A runner: name or path.")
@click.option(
    "--timeout",
    default=900,
    show_default=True,
    type=whole_number(1),
    metavar="S",
    help="Seconds for one answer at most.",
)
@click.option("--unpinned", is_flag=True, help="Take images that are not pinned by digest as they are, as run does.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(name: str, timeout: int, unpinned: bool, as_json: bool) -> int:
    """Say which kernels, strategies and launchers are usable with a runner, else why not and what to do.

    A kernel is usable when it computes a tiny attention right, forward and backward, in the runner's interpreter on its
    device; the first such call may compile for minutes. Each of its providers and backends is tried by itself. Of a
    runner whose jobs go to Slurm it says what can be told from here: whether the cluster has the nodes and whether the
    images are pinned.

    Ends with 3 when no kernel is usable, and where the runner expects what is not there.
    """
    runner = load_runner(name, search_folders(cwd=Path.cwd(), environ=os.environ))
    known = runner.launcher in plugins.names("launchers")
    on_cluster = known and submits(runner)
    targets = tuple(targets_here())
    with _telling(len(targets)) as tell:
        if on_cluster:
            seen = _on_cluster(runner, unpinned)
        elif runner.launcher == "local":
            seen = _outside_containers(runner)
        elif runner.image and known:
            seen = _in_images(runner, unpinned)
        else:
            raise InputError(
                f"runner {runner.name} starts its workers with {runner.launcher}; doctor looks at this machine only. "
                "Run it there: python -m attnspec doctor"
            )
        answers: dict[str, Answer] = {}
        for place, missing in seen.places:
            held = [target for target in targets if place.holds(target) and target not in answers]
            answers |= examined(place, held, timeout, missing, tell)
    if runner.image and not on_cluster:
        usable_one = " that can be used" if seen.problems else ""
        nowhere = unusable(f"no image of runner {runner.name}{usable_one} holds it", None)
        answers = {target: answers.get(target, nowhere) for target in targets}
    of_kind = {kind: {key: one for key, one in answers.items() if key.startswith(f"{kind}:")} for kind in EXAMINED}
    content: dict[str, dict[str, Answer]] = {
        "kernels": kernel_answers(of_kind["kernels"]),
        "strategies": {parts_of(key)[1]: one for key, one in of_kind["strategies"].items()},
    }
    content["launchers"] = launcher_answers(proven=runner.launcher if runner.image and seen.places else None)
    if as_json:
        object_: dict[str, Any] = {
            kind: {name: told(answer) for name, answer in answers.items()} for kind, answers in content.items()
        }
        told_too = runner.image or on_cluster or seen.problems
        click.echo(json.dumps({**object_, "problems": seen.problems} if told_too else object_))
        for problem in seen.problems:
            click.echo(f"attnspec: {problem}", err=True)
    else:
        shown = content if seen.places else {"launchers": content["launchers"]}
        show([*seen.lines, *answer_lines(shown)], _STYLES)
    usable = on_cluster or any(answer["usable"] for answer in content["kernels"].values())
    return 0 if usable and not seen.problems else _MISSING


@dataclass(slots=True, kw_only=True)
class _Seen:
    """What was seen of a runner. places: where its workers start, with the packages that are missing there and why."""

    lines: list[str]
    problems: list[str] = field(default_factory=list)
    places: list[tuple[Where, Mapping[str, str]]] = field(default_factory=list)

    def lacks(self, problem: str) -> None:
        """Tell of something that the runner expects and that is not there."""
        self.problems.append(problem)
        self.lines.append(f"  no   {problem}")

    def has_images(self, images: list[RunnerImage]) -> None:
        """Tell of images that can and cannot be used."""
        self.lines += image_lines(images)
        self.problems += [one.problem for one in images if one.problem is not None]


def _outside_containers(runner: Runner) -> _Seen:
    python = interpreter(runner, sys.executable)
    found = look(python, runner.env)
    seen = _Seen(lines=[f"runner {runner.name}: {found.describe()}"], places=[(outside(python, runner), found.missing)])
    if (wrong := runner.mismatch(found.device)) is not None:
        seen.lacks(wrong)
    return seen


def _in_images(runner: Runner, unpinned: bool) -> _Seen:
    """The images of a runner as they are found on this machine, pulled where they are not here."""
    seen = _Seen(lines=[])
    try:
        check_driver(runner)
    except EnvironmentMissingError as error:
        seen.lacks(str(error))
    images = runner_images(runner, unpinned=unpinned)
    for index, held in enumerate(images if not seen.problems else ()):
        if held.image is None:
            continue
        python = runner.python or held.image.python
        try:
            found = look_inside(runner, held.image, python)
        except EnvironmentMissingError as error:
            images[index] = unusable_image(held.choice, error)
            continue
        seen.lines.append(f"runner {runner.name}, image {held.image.name}: {found.describe()}")
        if (wrong := runner.mismatch(found.device)) is not None:
            seen.lacks(wrong)
        argv, env, ending = enter(runner, held.image, package=str(PACKAGE), files=plugins.loaded_files())
        contents = held.choice.contents
        place = Where(
            argv=(*argv, python),
            env={**os.environ, **env},
            ending=tuple(ending),
            kernels=None if contents is None else contents.kernels,
            strategies=None if contents is None else contents.strategies,
            providers=None if contents is None else contents.providers,
        )
        seen.places.append((place, found.missing))
    seen.has_images([one for one in images if one.image is None])
    if seen.problems:
        seen.lines.insert(0, f"runner {runner.name}:")
        seen.lines += instead(()).splitlines()
    return seen


def _on_cluster(runner: Runner, unpinned: bool) -> _Seen:
    """What the host can tell of a runner whose jobs go to Slurm; kernels, only its nodes can."""
    most = (runner.gpus_per_node or 1) * (runner.nodes or 1)
    seen = _Seen(lines=[f"runner {runner.name}:"])
    found = lacking(runner, {most: f"a job of {most} ranks"}, Cluster())
    if found.nodes:
        seen.lacks(f"nodes: {found.nodes}")
    else:
        seen.lines.append(f"  yes  Slurm has nodes for {counted(most, 'rank')}")
    if found.pyxis:
        seen.lacks(f"pyxis: {found.pyxis}")
    seen.has_images(runner_images(runner, unpinned=unpinned))
    try:
        mounted(runner)
    except InputError as error:
        seen.lacks(f"mounts: {error}")
    if seen.problems:
        seen.lines += instead_of_cluster(()).splitlines()
    seen.lines.append("kernels are examined where they run: python -m attnspec doctor, on a node and in the image")
    return seen


@contextmanager
def _telling(num_targets: int) -> Iterator[Callable[[str, int], None]]:
    """What is being tried, on a terminal while it lasts; the first call of a kernel may compile for minutes."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal or is_log():
        yield lambda target, num_done: None
        return
    with console.status("looking at the interpreter", refresh_per_second=4) as status:

        def tell(target: str, num_done: int) -> None:
            status.update(escape(f"{num_done + 1} of {num_targets}: {' '.join(parts_of(target))}"))

        yield tell
