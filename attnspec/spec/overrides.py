"""`--set path=value`: one value of a spec replaced from the command line, read by the same YAML rules. Pure."""

from __future__ import annotations

import re
from typing import Any

from attnspec.catalog.findings import Loc, dotted, not_among, shown
from attnspec.errors import Problem
from attnspec.spec.yaml_text import Document, Place, parse_yaml

_PART = re.compile(r"\.?(?P<key>[^.\[\]]+)|\[(?P<index>[0-9]+)\]")


def apply_override(document: Document, override: str) -> None:
    """Set one value in a document; what is wrong with the option becomes a problem of the document.

    `override` is `shape.head_dim=64` or `sweeps[0].seqlen=[1K, 2K]` (`sweeps.0.seqlen` means the same). Missing
    mappings on the way are made, list entries are not.
    """
    label = f"--set {override}"
    path, equals, text = override.partition("=")
    loc = parse_path(path)
    if not equals or loc is None:
        message = "allowed: path=value, such as shape.head_dim=64 or sweeps[0].seqlen=[1K, 2K]"
        document.problems.append(Problem(message=message, file=label))
        return
    parsed = parse_yaml(text, label)
    if parsed.problems:
        document.problems.extend(Problem(message=one.message, file=label, path=one.path) for one in parsed.problems)
        return
    fault = _store(document, loc, parsed.value)
    if fault is not None:
        document.problems.append(Problem(message=fault, file=label))
        return
    plain = parsed.places[()].text if () in parsed.places else None
    document.places = {held: place for held, place in document.places.items() if held[: len(loc)] != loc}
    document.places[loc] = Place(file=label, text=plain)
    document.broken = {held for held in document.broken if held[: len(loc)] != loc}


def parse_path(path: str) -> Loc | None:
    """The keys and indexes of a dotted path, or None when it is none.

    >>> parse_path("sweeps[0].masks.2"), parse_path("shape..x")
    (('sweeps', 0, 'masks', 2), None)
    """
    loc: list[str | int] = []
    end = 0
    for match in _PART.finditer(path):
        if match.start() != end or (not loc and (path[0] in ".[")):
            return None
        end = match.end()
        key = match["key"]
        loc.append(int(match["index"]) if key is None else int(key) if key.isascii() and key.isdigit() else key)
    return tuple(loc) if loc and end == len(path) else None


def _store(document: Document, loc: Loc, value: Any) -> str | None:
    """Put the value in its place, or say why there is none."""
    held = document.value
    for depth, part in enumerate(loc):
        last = depth == len(loc) - 1
        where = dotted(loc[:depth]) or "the spec"
        if isinstance(held, list):
            if not isinstance(part, int):
                return f"{where} is a list; allowed: an index from 0 to {len(held) - 1}, got {part!r}"
            if part >= len(held):
                return f"{where} has {len(held)} items; allowed: an index from 0 to {len(held) - 1}, got {part}"
        elif isinstance(held, dict):
            if isinstance(part, int):
                return f"{where} is a mapping; {not_among(part, held)}"
            if not last and held.get(part) is None:
                held[part] = {}
        else:
            return f"{where} is {shown(held)}; allowed: a list or a mapping"
        if last:
            held[part] = value
        else:
            held = held[part]
    return None
