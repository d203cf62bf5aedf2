"""Examining plug-ins in an interpreter, here or in a container, by a process that may die. Not a command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from attnspec import plugins
from attnspec.cli._answers import Answer, unusable
from attnspec.launch.provenance import PACKAGE
from attnspec.launch.runner_profile import Runner

EXAMINED = ("kernels", "strategies")
_LAST_LINES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Where to examine: the command line up to the interpreter's arguments, its environment, and how to end it.

    kernels, strategies: what is held there; None: nobody says.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    ending: tuple[str, ...] = ()
    kernels: tuple[str, ...] | None = None
    strategies: tuple[str, ...] | None = None

    def holds(self, kind: str, name: str) -> bool:
        """Whether a plug-in is to be examined there."""
        held = self.kernels if kind == "kernels" else self.strategies
        return held is None or name in held


def outside(python: str, runner: Runner) -> Where:
    """An interpreter of this machine."""
    environment = {**os.environ, **runner.env}
    path = os.pathsep.join(filter(None, (str(PACKAGE.parent), environment.get("PYTHONPATH"))))
    return Where(argv=(python,), env={**environment, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"})


def targets_here() -> Iterator[str]:
    """`kind:name` of every plug-in that can be examined."""
    for kind in EXAMINED:
        for name in plugins.names(kind):
            yield f"{kind}:{name}"


def examined(
    place: Where,
    targets: Sequence[str],
    timeout: int,
    missing: Mapping[str, str],
    tell: Callable[[str, int], None] = lambda target, num_done: None,
) -> dict[str, Answer]:
    """The answer about every target. A process that dies or hangs costs the target that it examined, no other."""
    if missing:
        why = "; ".join(f"{package}: {reason}" for package, reason in missing.items())
        return {target: unusable(why, "pip install 'attnspec[torch]'") for target in targets}
    answers: dict[str, Answer] = {}
    while len(answers) < len(targets):
        left = [target for target in targets if target not in answers]
        started, ending = _one_process(place, left, timeout, answers, tell)
        culprit = started if started is not None and started not in answers else None
        if culprit is None and not any(target in answers for target in left):
            # It did not get as far as the first, and every further try would end alike.
            return answers | {target: unusable(ending, None) for target in left}
        if culprit is not None:
            answers[culprit] = unusable(ending, None)
    return {target: answers[target] for target in targets}


def _one_process(
    place: Where,
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
