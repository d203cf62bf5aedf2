"""fake_launcher: starts the fake worker in place of the real one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PLUGIN_KIND = "launchers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """No options."""


def command(
    request_path: str | Path, *, python: str, world_size: int, env: Mapping[str, str], code_path: str | Path
) -> tuple[list[str], dict[str, str]]:
    """One process, whatever the world size."""
    worker = Path(__file__).with_name("fake_worker.py")
    return [python, "-S", str(worker), str(request_path)], {**env, "PYTHONPATH": str(code_path)}
