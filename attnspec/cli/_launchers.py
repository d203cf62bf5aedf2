"""Whether a launcher's programs are on this machine and work. Not a command."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

from attnspec import plugins
from attnspec.cli._answers import Answer, unusable
from attnspec.launchers import Trial

TRIAL_S = 20.0


def launcher_answers() -> dict[str, Answer]:
    """The answer about every launcher."""
    return {name: launcher_answer(name) for name in plugins.names("launchers")}


def launcher_answer(name: str) -> Answer:
    """Whether the programs that a launcher plug-in names in `PROGRAMS` are here, and its `TRIAL` succeeds."""
    launcher = plugins.load("launchers", name)
    programs: Sequence[str] = getattr(launcher, "PROGRAMS", ())
    absent = [program for program in programs if shutil.which(program) is None]
    if absent:
        return unusable(f"not found: {', '.join(absent)}", f"install {', '.join(absent)}")
    trial: Trial | None = getattr(launcher, "TRIAL", None)
    if trial is not None and (wrong := _failure(trial)):
        return unusable(wrong, trial.fix)
    where = [str(shutil.which(program)) for program in programs]
    return {"usable": True, "provider": where[0] if where else None, "version": None, "reason": None, "fix": None}


def _failure(trial: Trial) -> str:
    """Why a trial failed, in the program's own words; empty when it did not."""
    command = " ".join(trial.argv[:2])
    try:
        done = subprocess.run(
            trial.argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TRIAL_S,
            check=False,
        )
    except OSError as error:
        return f"{command} cannot be started: {error.strerror}"
    except subprocess.TimeoutExpired:
        return f"{command} gave no answer in {TRIAL_S:g} s"
    if done.returncode == 0:
        return ""
    words = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return f"{command} fails: {words[-1] if words else f'exit code {done.returncode}'}"
