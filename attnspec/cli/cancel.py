"""`attnspec cancel`: stop the run that works in a folder, and wait until it is gone."""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path

import click

from attnspec.cli._paths import PATH
from attnspec.errors import EnvironmentMissingError
from attnspec.launch.container_place import STORES, end_orphans
from attnspec.launch.run_lock import Holder, RunLock, holder, is_held, mark_cancelled
from attnspec.launch.slurm_submissions import cancel_run, forbid_submissions
from attnspec.report.run import open_run

_PATIENCE_S = 60.0
_KILL_PATIENCE_S = 10.0


@click.command("cancel")
@click.argument("run", type=PATH)
def command(run: Path) -> int:
    """Stop the process that works in RUN, with its workers, and cancel its jobs in Slurm.

    It is asked to stop and writes its tables; if it does not within a minute, it is killed. Jobs in Slurm are cancelled
    and containers ended also when the process that started them is gone; jobs when it is on another machine, too. What
    was measured is kept, and `attnspec run` goes on from there.
    """
    launcher = open_run(run).provenance.get("runner", {}).get("launcher", "")
    queued = forbid_submissions(run)
    works = holder(run)
    if works is None and is_held(run):
        raise EnvironmentMissingError(f"{run}: a process works here and left no name; stop it where it was started")
    here = works is not None and works.host == socket.gethostname()
    if works is not None and not here and not queued:
        raise EnvironmentMissingError(f"{run}: {works} works here; cancel it on that machine")
    if works is not None:
        mark_cancelled(run, works)
    cancelled = cancel_run(run) if queued else []
    if works is not None and here:
        if not _ends(run, works, signal.SIGTERM, _PATIENCE_S) and not _ends(
            run, works, signal.SIGKILL, _KILL_PATIENCE_S
        ):
            click.echo(f"{run}: {works} does not end", err=True)
            return 1
        click.echo(f"{run}: {works} has ended; what it measured is kept")
        cancelled += cancel_run(run) if queued else []
    elif works is not None:
        click.echo(f"{run}: {works} sees that its jobs were cancelled, and ends")
    if launcher in STORES and (works is None or here):
        with RunLock(run):
            end_orphans(launcher, run)
    if cancelled:
        click.echo(f"{run}: cancelled Slurm job {', '.join(map(str, cancelled))}; what was measured is kept")
    elif works is None:
        click.echo(f"{run}: nothing runs here")
    return 0


def _ends(run: Path, works: Holder, number: int, patience_s: float) -> bool:
    """Send a signal and wait for the lock to fall free."""
    with suppress(ProcessLookupError):
        os.kill(works.pid, number)
    until = time.monotonic() + patience_s
    while holder(run) == works:
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True
