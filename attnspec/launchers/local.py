"""local: workers are processes of this machine; several ranks through torchrun, on a port that is free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

WORKER = "attnspec.worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """No options."""


def command(
    request_path: str | Path, *, python: str, world_size: int, env: Mapping[str, str], code_path: str | Path
) -> tuple[list[str], dict[str, str]]:
    """The command that runs one job request, and what it adds to the environment.

    python: the worker's interpreter. code_path: the folder that holds the package attnspec, so that the worker runs
    this code even where another version is installed.

    >>> argv, env = command("r.json", python="python3", world_size=1, env={"A": "1"}, code_path="/src")
    >>> argv
    ['python3', '-m', 'attnspec.worker', 'r.json']
    >>> env
    {'A': '1', 'PYTHONPATH': '/src', 'PYTHONSAFEPATH': '1', 'PYTHONUNBUFFERED': '1'}
    >>> command("r.json", python="python3", world_size=2, env={}, code_path="/src")[0][1:5]
    ['-m', 'torch.distributed.run', '--standalone', '--nproc-per-node=2']
    """
    added = {**env, "PYTHONPATH": _joined(code_path, env), "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}
    if world_size == 1:
        ranks: Sequence[str] = ()
    else:
        added.setdefault("OMP_NUM_THREADS", "1")
        ranks = ("torch.distributed.run", "--standalone", f"--nproc-per-node={world_size}", "--max-restarts=0", "-m")
    return [python, "-m", *ranks, WORKER, str(request_path)], added


def _joined(code_path: str | Path, env: Mapping[str, str]) -> str:
    held = env.get("PYTHONPATH")
    return f"{code_path}:{held}" if held else str(code_path)
