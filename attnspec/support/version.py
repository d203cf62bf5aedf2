"""Versions of packages against a requirement, for the few forms that providers use. Pure; no `packaging`."""

from __future__ import annotations

import re

_RELEASE = re.compile(r"v?(?P<release>\d+(?:\.\d+)*)(?:[-_.]?(?P<stage>dev|a|b|rc)(?P<number>\d*))?")
_CLAUSE = re.compile(r"\s*(?P<operator>>=|<=|==|!=|>|<)\s*(?P<version>\S+)\s*")
_STAGES = {"dev": -4, "a": -3, "b": -2, "rc": -1, None: 0}
_LENGTH = 6


def version_key(version: str) -> tuple[int, ...] | None:
    """A key that orders versions: release numbers, then dev < a < b < rc < final. None for what is no version.

    Local parts (`+cu130`) and post releases do not count.

    >>> version_key("4.0.0b36") < version_key("4.0.0") < version_key("4.0.1.dev2") < version_key("4.10")
    True
    >>> version_key("unknown") is None
    True
    """
    match = _RELEASE.match(version)
    if match is None:
        return None
    release = [int(part) for part in match["release"].split(".")][:_LENGTH]
    release += [0] * (_LENGTH - len(release))
    return (*release, _STAGES[match["stage"]], int(match["number"] or 0))


def satisfies(version: str, requires: str) -> bool:
    """Whether a version meets a requirement such as `>=2.11,<3`.

    Every version meets an empty one; an unknown version meets no clause.

    >>> satisfies("2.13.0+cpu", ">=2.11"), satisfies("0.0.1", ">=1.1"), satisfies("2.8.3.post2", ">=2.8,<3")
    (True, False, True)
    """
    key = version_key(version)
    for clause in filter(None, requires.split(",")):
        match = _CLAUSE.fullmatch(clause)
        wanted = version_key(match["version"]) if match else None
        assert match is not None and wanted is not None, f"malformed requirement {requires!r}"
        if key is None:
            return False
        met = {
            ">=": key >= wanted,
            "<=": key <= wanted,
            "==": key == wanted,
            "!=": key != wanted,
            ">": key > wanted,
            "<": key < wanted,
        }[match["operator"]]
        if not met:
            return False
    return True
