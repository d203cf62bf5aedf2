"""Launcher plug-ins: one file each; how a job's process is started.

A launcher turns a WorkerCall into a command line, purely: `command(call) -> (argv, env)`, where env is added to the
environment of the program that argv starts. Where ending that program may leave something running, `ending(call)` is
the command line that ends it. `PROGRAMS` names what must be on the path, `TRIAL` a cheap command that succeeds where
these work, `Params` the launcher's options.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

WORKER = "attnspec.worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mounted:
    """A folder or file of the host as a container sees it; absolute paths."""

    source: str
    target: str
    read_only: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A command that succeeds where a launcher's programs can do their work: their daemon answers, a container starts.

    what: its name in a sentence. fix: what to do where it fails. untried: what its success does not show.
    """

    what: str
    argv: tuple[str, ...]
    fix: str
    untried: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCall:
    """What it takes to start one worker. Paths are absolute.

    python: the worker's interpreter. env: of the runner and the job. package: the folder `attnspec` of the code that is
    to run; code_path: a folder that holds it and nothing else. plugins: files that the worker loads. image: what the
    launcher's program calls the container image; None outside containers. name: given to no other worker. user:
    `uid:gid` that files are to belong to. params: the launcher's own options.
    """

    request_path: str
    run_dir: str
    python: str
    world_size: int
    env: Mapping[str, str]
    package: str
    code_path: str
    name: str
    plugins: tuple[str, ...] = ()
    image: str | None = None
    mounts: tuple[Mounted, ...] = ()
    gpus: bool = False
    user: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)


def worker_argv(python: str, request_path: str, world_size: int) -> list[str]:
    """An interpreter's command line for a worker; several ranks through torchrun, on a port that is free.

    >>> worker_argv("python3", "r.json", 1)
    ['python3', '-m', 'attnspec.worker', 'r.json']
    >>> worker_argv("python3", "r.json", 2)[1:5]
    ['-m', 'torch.distributed.run', '--standalone', '--nproc-per-node=2']
    """
    ranks: tuple[str, ...] = ()
    if world_size > 1:
        ranks = ("torch.distributed.run", "--standalone", f"--nproc-per-node={world_size}", "--max-restarts=0", "-m")
    return [python, "-m", *ranks, WORKER, request_path]


def worker_env(env: Mapping[str, str], import_path: str, world_size: int) -> dict[str, str]:
    """The environment of a worker: env, with a folder put in front of its import path.

    >>> worker_env({"A": "1"}, "/src", 1)
    {'A': '1', 'PYTHONPATH': '/src', 'PYTHONSAFEPATH': '1', 'PYTHONUNBUFFERED': '1'}
    """
    held = env.get("PYTHONPATH")
    joined = f"{import_path}:{held}" if held else import_path
    threads = {} if world_size == 1 else {"OMP_NUM_THREADS": "1"}
    return {**threads, **env, "PYTHONPATH": joined, "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}
