"""fake_launcher: starts the fake worker in place of the real one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from attnspec.launchers import WorkerCall

PLUGIN_KIND = "launchers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """No options."""


def command(call: WorkerCall) -> tuple[list[str], dict[str, str]]:
    """One process, whatever the world size."""
    worker = Path(__file__).with_name("fake_worker.py")
    return [call.python, "-S", str(worker), call.request_path], {**call.env, "PYTHONPATH": call.code_path}
