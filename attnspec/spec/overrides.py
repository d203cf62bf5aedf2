"""`--set path=value`: one value of a spec replaced from the command line, read by the same YAML rules."""

from __future__ import annotations

from attnspec.errors import Problem, SpecError
from attnspec.spec.yaml_text import Document, parse_yaml


def apply_override(document: Document, override: str) -> None:
    """Set one value in a document."""
    path, _, text = override.partition("=")
    value = parse_yaml(text).value
    held = document.value
    *around, last = path.split(".")
    for part in around:
        held = held[int(part)] if isinstance(held, list) else held.setdefault(part, {})
    try:
        held[int(last) if isinstance(held, list) else last] = value
    except (IndexError, ValueError, TypeError):
        raise SpecError([Problem(message=f"no {path} in the spec", file=f"--set {override}")]) from None
