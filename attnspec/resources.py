"""Where shipped files (specs, runners, data, containers) lie: in the source tree, or inside the installed wheel."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
KINDS = ("specs", "runners", "data", "containers")


def shipped(kind: str) -> Path:
    """The folder of shipped files of one kind: one of KINDS."""
    assert kind in KINDS, kind
    inside = _PACKAGE / "shipped" / kind
    return inside if inside.is_dir() else _PACKAGE.parent / kind
