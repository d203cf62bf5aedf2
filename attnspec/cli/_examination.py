"""Examining plug-ins in an interpreter, here or in a container, by a process that may die. Not a command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from attnspec import plugins
from attnspec.cli._answers import Answer, unusable
from attnspec.cli._variants import kernel_targets, package_of
from attnspec.launch.processes import failure_of
from attnspec.launch.provenance import PACKAGE
from attnspec.launch.runner_profile import Runner
from attnspec.wire import BEGINS, WORKER_FIX, parts_of, target_of

EXAMINED = ("kernels", "strategies")
_LAST_LINES = 3
_GRACE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Where to examine: the command line up to the interpreter's arguments, its environment, and how to end it.

    kernels, strategies, providers: what is held there; None: nobody says.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    ending: tuple[str, ...] = ()
    kernels: tuple[str, ...] | None = None
    strategies: tuple[str, ...] | None = None
    providers: tuple[str, ...] | None = None

    def holds(self, target: str) -> bool:
        """Whether a target is to be examined there."""
        kind, name, *way = parts_of(target)
        held = self.kernels if kind == "kernels" else self.strategies
        return (held is None or name in held) and (not way or self.providers is None or way[0] in self.providers)


def outside(python: str, runner: Runner) -> Where:
    """An interpreter of this machine."""
    environment = {**os.environ, **runner.env}
    path = os.pathsep.join(filter(None, (str(PACKAGE.parent), environment.get("PYTHONPATH"))))
    return Where(argv=(python,), env={**environment, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"})


def targets_here() -> Iterator[str]:
    """The target of every plug-in that can be examined; of a kernel each way to run it."""
    for name in plugins.names("kernels"):
        yield from kernel_targets(name)
    for name in plugins.names("strategies"):
        yield target_of("strategies", name)


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
        return {target: unusable(why, WORKER_FIX) for target in targets}
    answers: dict[str, Answer] = {}
    for together in _processes(targets):
        while left := [target for target in together if target not in answers]:
            num_before = len(answers)
            end = _one_process(place, left, timeout, answers, tell)
            culprit = end.started if end.started is not None and end.started not in answers else None
            if culprit is not None:
                answers[culprit] = unusable(end.words, _advice(culprit, end, timeout))
            elif len(answers) == num_before:
                # It did not get as far as the first, and every further try would end alike.
                return {target: answers.get(target, unusable(end.words, None)) for target in targets}
    return {target: answers[target] for target in targets}


def _processes(targets: Sequence[str]) -> list[list[str]]:
    """Targets that share a process; those whose package can share none with another provider's have their own."""
    alone = [target for target in targets if (package := package_of(target)) is not None and package.apart]
    return [[target for target in targets if target not in alone], *([target] for target in alone)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """How a process ended. started: the target begun last."""

    started: str | None
    words: str
    timed_out: bool


def _advice(target: str, end: _End, timeout: int) -> str | None:
    """What to do about a target that ended its process."""
    package = package_of(target)
    fix = f"install it anew: {package.fix}" if package is not None and package.fix else None
    more = f"--timeout {2 * timeout} gives it more time" if end.timed_out else None
    return "; else ".join(filter(None, (more, fix))) or None


def _one_process(
    place: Where,
    targets: Sequence[str],
    timeout: int,
    answers: dict[str, Answer],
    tell: Callable[[str, int], None],
) -> _End:
    """Examine targets in one process and fill `answers`."""
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
    started, left, timed_out = None, "", threading.Event()
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
        _let_end(process)
    finally:
        timer.cancel()
        _kill(process)
        if place.ending:
            left = " ".join(failure_of(place.ending).split())
    code = process.wait()
    reader.join()
    process.stdout.close()
    if timed_out.is_set():
        words = "; it may still run: ".join(filter(None, (f"no answer in {timeout} s", left)))
        return _End(started=started, words=words, timed_out=True)
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    words = ": ".join(filter(None, (f"its process ended with {how}", " ".join(stderr))))
    return _End(started=started, words=words, timed_out=False)


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


def _let_end(process: subprocess.Popen[str]) -> None:
    """Wait a little for a process that has closed its output, lest killing it hide how it ended. It is not reaped."""
    until = time.monotonic() + _GRACE_S
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None and time.monotonic() < until:
        time.sleep(0.01)


def _keep_last(stream: Any, lines: list[str]) -> None:
    """The last lines of standard error since the last target began."""
    with stream:
        for line in stream:
            if line.startswith(BEGINS):
                lines.clear()
            elif line.strip():
                lines.append(line.strip())
                del lines[:-_LAST_LINES]
