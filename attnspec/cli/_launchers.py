"""Whether a launcher's programs are on this machine and work. Not a command."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence

from attnspec import plugins
from attnspec.cli._answers import Answer, unusable
from attnspec.launchers import Trial

TRIAL_S = 20.0


def launcher_answers(proven: str | None = None) -> dict[str, Answer]:
    """The answer about every launcher. proven: one that has just done its work, so that nothing of it is untried."""
    return {name: launcher_answer(name, proven=name == proven) for name in plugins.names("launchers")}


def launcher_answer(name: str, *, proven: bool = False) -> Answer:
    """Whether the programs that a launcher plug-in names in `PROGRAMS` are here, and its `TRIAL` succeeds.

    What the trial does not show is told in the reason of a usable one.
    """
    launcher = plugins.load("launchers", name)
    programs: Sequence[str] = getattr(launcher, "PROGRAMS", ())
    absent = [program for program in programs if shutil.which(program) is None]
    if absent:
        return unusable(f"not found: {', '.join(absent)}", f"install {', '.join(absent)}")
    trial: Trial | None = getattr(launcher, "TRIAL", None)
    if trial is not None and (wrong := _failure(trial)):
        return unusable(wrong, trial.fix)
    where = [str(shutil.which(program)) for program in programs]
    untried = None if proven or trial is None else trial.untried or None
    return {"usable": True, "provider": where[0] if where else None, "version": None, "reason": untried, "fix": None}


def _failure(trial: Trial) -> str:
    """Why a trial failed, in the program's own words; empty when it did not."""
    try:
        process = subprocess.Popen(
            trial.argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return f"{trial.what} cannot be started: {error.strerror}"
    with process:
        try:
            out, err = process.communicate(timeout=TRIAL_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return f"{trial.what} gave no answer in {TRIAL_S:g} s"
    if process.returncode == 0:
        return ""
    words = [line.strip() for line in (err or out).splitlines() if line.strip()]
    return f"{trial.what} fails: {words[-1] if words else f'exit code {process.returncode}'}"
