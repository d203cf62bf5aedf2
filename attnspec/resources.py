"""Where shipped files (specs, runners, data, containers) lie: in the source tree, or inside the installed wheel."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
KINDS = ("specs", "runners", "data", "containers")


def is_installed(path: Path) -> bool:
    """Whether a path lies in an installed package, where files are not the user's; not so in a checkout."""
    return path.resolve().is_relative_to((_PACKAGE / "shipped").resolve())


def shipped(kind: str) -> Path:
    """The folder of shipped files of one kind: one of KINDS."""
    assert kind in KINDS, kind
    inside = _PACKAGE / "shipped" / kind
    return inside if inside.is_dir() else _PACKAGE.parent / kind
