"""local: workers are processes of this machine; several ranks through torchrun, on a port that is free."""

from __future__ import annotations

from dataclasses import dataclass

from attnspec.launchers import WorkerCall, worker_argv, worker_env


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """No options."""


def command(call: WorkerCall) -> tuple[list[str], dict[str, str]]:
    """The interpreter itself; `code_path` comes first on its import path, so that it runs this code and no other."""
    return worker_argv(call.python, call.request_path, call.world_size), worker_env(
        call.env, call.code_path, call.world_size
    )
