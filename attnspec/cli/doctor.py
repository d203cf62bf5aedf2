"""`attnspec doctor`: what works here, and what to do about the rest."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape

from attnspec import plugins
from attnspec.cli._console import is_log, show
from attnspec.errors import EnvironmentMissingError, InputError
from attnspec.launch.container_place import check_driver, choices_of, enter, look_inside, mounted, pinned
from attnspec.launch.found import interpreter, look
from attnspec.launch.place import submits
from attnspec.launch.provenance import PACKAGE
from attnspec.launch.runner_profile import Runner, load_runner, search_folders
from attnspec.launch.slurm_cluster import Cluster
from attnspec.launch.slurm_place import check_cluster

Answer = dict[str, Any]
_EXAMINED = ("kernels", "strategies")
_MISSING = 3
_LAST_LINES = 3
_STYLES = (
    ("^(runner .*?:|kernels|strategies|launchers)", "head"),
    ("^  yes\\b", "good"),
    ("^  no\\b", "bad"),
    ("^ +fix: .*", "key"),
)


@click.command("doctor")
@click.option("--runner", "name", default="local", show_default=True, metavar="NAME", help="A runner: name or path.")
@click.option("--timeout", default=900, show_default=True, metavar="S", help="Seconds for one plug-in at most.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(name: str, timeout: int, as_json: bool) -> int:
    """Say which kernels, strategies and launchers are usable with a runner, else why not and what to do.

    A kernel is usable when it computes a tiny attention right, forward and backward, in the runner's interpreter on its
    device; the first such call may compile for minutes. Of a runner whose jobs go to Slurm it says what can be told
    from here: whether the cluster has the nodes and whether the images are pinned.

    Ends with 3 when no kernel is usable, and where the runner expects what is not there.
    """
    runner = load_runner(name, search_folders(cwd=Path.cwd(), environ=os.environ))
    if runner.launcher in plugins.names("launchers") and submits(runner):
        return _of_cluster(runner, as_json=as_json)
    targets = tuple(_targets())
    lines: list[str] = []
    answers: dict[str, Answer] = {}
    fits = True
    with _telling(len(targets)) as tell:
        for place, line, missing in _places(runner):
            lines.append(line)
            fits = fits and place.wrong is None
            lines += [] if place.wrong is None else [f"  no   {place.wrong}"]
            held = [target for target in targets if place.holds(*target.split(":")) and target not in answers]
            answers |= _examined(place, held, timeout, missing, tell)
    if runner.image:
        nowhere = _unusable(f"no image of runner {runner.name} holds it", None)
        answers = {target: answers.get(target, nowhere) for target in targets}
    content: dict[str, dict[str, Answer]] = {kind: {} for kind in _EXAMINED}
    for target, answer in answers.items():
        kind, _, plugin = target.partition(":")
        content[kind][plugin] = answer
    content["launchers"] = {one: _launcher(one) for one in plugins.names("launchers")}
    if as_json:
        told = {kind: {name: _told(answer) for name, answer in answers.items()} for kind, answers in content.items()}
        click.echo(json.dumps(told))
    else:
        show([*lines, *_lines(content)], _STYLES)
    return 0 if fits and any(answer["usable"] for answer in content["kernels"].values()) else _MISSING


def _of_cluster(runner: Runner, *, as_json: bool) -> int:
    """What the host can tell of a runner whose jobs go to Slurm; kernels, only its nodes can."""
    most = (runner.gpus_per_node or 1) * (runner.nodes or 1)
    told: list[tuple[str, str | None]] = []
    try:
        check_cluster(runner, {most: f"{most} ranks"}, Cluster())
        told.append((f"Slurm has nodes for {most} ranks", None))
    except EnvironmentMissingError as error:
        told.append(("nodes", str(error).splitlines()[0]))
    for choice in choices_of(runner, cwd=Path.cwd(), environ=os.environ):
        try:
            told.append((f"image {choice.name}: {pinned(runner, choice, unpinned=False).run_as}", None))
        except (EnvironmentMissingError, InputError) as error:
            told.append((f"image {choice.name}", str(error).splitlines()[0]))
    try:
        mounted(runner)
    except InputError as error:
        told.append(("mounts", str(error)))
    problems = [f"{what}: {wrong}" for what, wrong in told if wrong is not None]
    launchers = {one: _launcher(one) for one in plugins.names("launchers")}
    if as_json:
        content: dict[str, Any] = {kind: {} for kind in _EXAMINED}
        content["launchers"] = {one: _told(answer) for one, answer in launchers.items()}
        click.echo(json.dumps({**content, "problems": problems}))
    else:
        lines = [
            f"  {'yes' if wrong is None else 'no ':<3}  {': '.join(filter(None, pair))}"
            for pair in told
            for wrong in pair[1:]
        ]
        last = "kernels are examined where they run: python -m attnspec doctor, on a node and in the image"
        show([f"runner {runner.name}:", *lines, last, *_lines({"launchers": launchers})], _STYLES)
    return _MISSING if problems else 0


@contextmanager
def _telling(num_targets: int) -> Iterator[Callable[[str, int], None]]:
    """What is being tried, on a terminal while it lasts; the first call of a kernel may compile for minutes."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal or is_log():
        yield lambda target, num_done: None
        return
    with console.status("looking at the interpreter", refresh_per_second=4) as status:

        def tell(target: str, num_done: int) -> None:
            kind, _, name = target.partition(":")
            status.update(escape(f"{num_done + 1} of {num_targets}: {kind} {name}"))

        yield tell


@dataclass(frozen=True, slots=True, kw_only=True)
class _Where:
    """Where to examine: the command line up to the interpreter's arguments, its environment, and how to end it.

    kernels, strategies: what is held there; None: nobody says. wrong: why it is not what the runner expects.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    ending: tuple[str, ...] = ()
    kernels: tuple[str, ...] | None = None
    strategies: tuple[str, ...] | None = None
    wrong: str | None = None

    def holds(self, kind: str, name: str) -> bool:
        """Whether a plug-in is to be examined there."""
        held = self.kernels if kind == "kernels" else self.strategies
        return held is None or name in held


def _places(runner: Runner) -> Iterator[tuple[_Where, str, Mapping[str, str]]]:
    """Where a runner's workers start, each with what is found there in words, and which packages are missing."""
    if runner.launcher == "local":
        python = interpreter(runner, sys.executable)
        found = look(python, runner.env)
        place = dataclasses.replace(_outside(python, runner), wrong=runner.mismatch(found.device))
        yield place, f"runner {runner.name}: {found.describe()}", found.missing
        return
    if not runner.image or runner.launcher not in plugins.names("launchers"):
        raise InputError(
            f"runner {runner.name} starts its workers with {runner.launcher}; doctor looks at this machine only. "
            "Run it there: python -m attnspec doctor"
        )
    check_driver(runner)
    for choice in choices_of(runner, cwd=Path.cwd(), environ=os.environ):
        image = pinned(runner, choice, unpinned=False)
        python = runner.python or image.python
        found = look_inside(runner, image, python)
        argv, env, ending = enter(runner, image, package=str(PACKAGE), files=plugins.loaded_files())
        contents = choice.contents
        place = _Where(
            argv=(*argv, python),
            env={**os.environ, **env},
            ending=tuple(ending),
            kernels=None if contents is None else contents.kernels,
            strategies=None if contents is None else contents.strategies,
        )
        yield place, f"runner {runner.name}, image {image.name}: {found.describe()}", found.missing


def _outside(python: str, runner: Runner) -> _Where:
    """An interpreter of this machine."""
    environment = {**os.environ, **runner.env}
    path = os.pathsep.join(filter(None, (str(PACKAGE.parent), environment.get("PYTHONPATH"))))
    return _Where(argv=(python,), env={**environment, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"})


def _targets() -> Iterator[str]:
    for kind in _EXAMINED:
        for name in plugins.names(kind):
            yield f"{kind}:{name}"


def _examined(
    place: _Where,
    targets: Sequence[str],
    timeout: int,
    missing: Mapping[str, str],
    tell: Callable[[str, int], None] = lambda target, num_done: None,
) -> dict[str, Answer]:
    """The answer about every target. A process that dies or hangs costs the target that it examined, no other."""
    if missing:
        why = "; ".join(f"{package}: {reason}" for package, reason in missing.items())
        return {target: _unusable(why, "pip install 'attnspec[torch]'") for target in targets}
    answers: dict[str, Answer] = {}
    while len(answers) < len(targets):
        left = [target for target in targets if target not in answers]
        started, ending = _one_process(place, left, timeout, answers, tell)
        culprit = started if started is not None and started not in answers else None
        if culprit is None and not any(target in answers for target in left):
            # It did not get as far as the first, and every further try would end alike.
            return answers | {target: _unusable(ending, None) for target in left}
        if culprit is not None:
            answers[culprit] = _unusable(ending, None)
    return {target: answers[target] for target in targets}


def _one_process(
    place: _Where,
    targets: Sequence[str],
    timeout: int,
    answers: dict[str, Answer],
    tell: Callable[[str, int], None],
) -> tuple[str | None, str]:
    """Examine targets in one process and fill `answers`; the target begun last, and how the process ended."""
    process = subprocess.Popen(
        [*place.argv, "-m", "attnspec.worker.doctor", *plugins.loaded_files(), *targets],
        env=place.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    assert process.stdout is not None and process.stderr is not None
    stderr: list[str] = []
    reader = threading.Thread(target=_keep_last, args=(process.stderr, stderr), daemon=True)
    reader.start()
    started, timed_out = None, threading.Event()
    timer = _timer(process, timeout, timed_out)
    try:
        for line in process.stdout:
            timer.cancel()
            said: Answer = json.loads(line)
            if "starts" in said:
                started = said["starts"]
                tell(said["starts"], len(answers))
            else:
                answers[said.pop("done")] = said
            timer = _timer(process, timeout, timed_out)
    finally:
        timer.cancel()
        _kill(process)
        if place.ending:
            subprocess.run(place.ending, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=True)
    code = process.wait()
    reader.join()
    process.stdout.close()
    if timed_out.is_set():
        return started, f"no answer in {timeout} s"
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return started, f"its process ended with {how}: {' '.join(stderr)}"


def _timer(process: subprocess.Popen[str], timeout: int, timed_out: threading.Event) -> threading.Timer:
    def end() -> None:
        timed_out.set()
        _kill(process)

    timer = threading.Timer(timeout, end)
    timer.daemon = True
    timer.start()
    return timer


def _kill(process: subprocess.Popen[str]) -> None:
    """End the process with whatever it started (compilers, say). It is not reaped yet, so the number is its own."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _keep_last(stream: Any, lines: list[str]) -> None:
    with stream:
        for line in stream:
            if line.strip():
                lines.append(line.strip())
                del lines[:-_LAST_LINES]


def _launcher(name: str) -> Answer:
    """Whether the programs that a launcher plug-in names in `PROGRAMS` are here."""
    programs: Sequence[str] = getattr(plugins.load("launchers", name), "PROGRAMS", ())
    absent = [program for program in programs if shutil.which(program) is None]
    if absent:
        return _unusable(f"not found: {', '.join(absent)}", f"install {', '.join(absent)}")
    where = [str(shutil.which(program)) for program in programs]
    return {"usable": True, "provider": where[0] if where else None, "version": None, "reason": None, "fix": None}


def _unusable(reason: str, fix: str | None) -> Answer:
    return {"usable": False, "provider": None, "version": None, "reason": reason, "fix": fix}


def _told(answer: Answer) -> Answer:
    """An answer as JSON tells it, with the fix behind the reason."""
    reason = "; fix: ".join(filter(None, (answer["reason"], answer["fix"]))) or None
    return {"usable": answer["usable"], "provider": answer["provider"], "version": answer["version"], "reason": reason}


def _lines(content: Mapping[str, Mapping[str, Answer]]) -> Iterator[str]:
    width = max((len(name) for answers in content.values() for name in answers), default=0)
    for kind, answers in content.items():
        yield ""
        usable = sum(answer["usable"] for answer in answers.values())
        yield f"{kind}: {usable} of {len(answers)} usable" if answers else f"{kind}: none"
        for name, answer in answers.items():
            what = " ".join(filter(None, (answer["provider"], answer["version"])))
            told = [part for part in (what, answer["reason"]) if part]
            yield f"  {'yes' if answer['usable'] else 'no ':<3}  {name:<{width}}  {', '.join(told)}".rstrip()
            if answer["fix"]:
                yield f"       {'':<{width}}  fix: {answer['fix']}"
