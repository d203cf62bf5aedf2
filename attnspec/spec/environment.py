"""`env`: the environment variables of an implementation, set before its process starts. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from attnspec.catalog.findings import Finding, error_of, shown

LAUNCHER_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
NAME = "[A-Za-z_][A-Za-z0-9_]*"


def parse_env(value: Any) -> dict[str, str]:
    """Environment variables by name, sorted; values are text, so that `08` stays `08`."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise error_of(Finding(message=f"got {shown(value)}; allowed: a mapping from variable to text"))
    findings = [
        Finding(message=message, loc=(name,))
        for name, text in value.items()
        if (message := _fault(name, text)) is not None
    ]
    if findings:
        raise error_of(*findings)
    return dict(sorted(value.items()))


def _fault(name: Any, text: Any) -> str | None:
    if not isinstance(name, str) or not re.fullmatch(NAME, name):
        return f"got {shown(name)}; allowed: a variable's name: letters, digits and '_', no digit first"
    if name in LAUNCHER_VARIABLES:
        return f"{name} is set by the launcher of a job; leave it out"
    if isinstance(text, Mapping | list | tuple) or text is None:
        return f"got {shown(text)}; allowed: text"
    if not isinstance(text, str):
        return f'got {shown(text)}; allowed: text; write it in quotes: "{shown(text)}"'
    return None
