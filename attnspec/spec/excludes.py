"""`exclude`: cases that a sweep leaves out, named by values of its axes.

An entry such as `{kernels: sdpa, masks: varlen_full, seqlen: 64K}` takes out every case that has one of the given
values on every given axis. A mask, kernel or strategy is named alone or with some of its settings. An entry that
matches no case is an error, and so is a value that the sweep does not have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attnspec import catalog
from attnspec.catalog.findings import Finding, collect, dotted, fail, shown, unknown_key
from attnspec.catalog.params import checked
from attnspec.errors import nearest
from attnspec.shape import PASSES
from attnspec.units import parse_count

AXES = ("masks", "seqlen", "cp_size", "seqlen_per_rank", "passes", "kernels", "strategies")
_PLUGINS = ("masks", "kernels", "strategies")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """A mask, kernel or strategy by name and, where given, some of its settings."""

    name: str
    settings: Mapping[str, Any]

    def matches(self, item: Any) -> bool:
        """Whether an item has this name and every given setting."""
        held = item.selection
        return item.name == self.name and all(
            key in held and held[key] == value for key, value in self.settings.items()
        )

    def canonical(self) -> Any:
        """The selector as plain JSON that parses back to it."""
        return {self.name: dict(sorted(self.settings.items()))} if self.settings else self.name

    def __str__(self) -> str:
        settings = ", ".join(f"{key}: {shown(value)}" for key, value in self.settings.items())
        return f"{self.name}: {{{settings}}}" if settings else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclude:
    """One entry: the values asked for on each named axis."""

    asked: Mapping[str, tuple[Any, ...]]

    def matches(self, case: Mapping[str, Any]) -> bool:
        """Whether a case (its value on each axis of the sweep) is taken out."""
        return all(any(_matches(one, case[axis]) for one in values) for axis, values in self.asked.items())

    def canonical(self) -> dict[str, Any]:
        """The entry as plain JSON that parses back to it."""
        return {
            axis: [one.canonical() if isinstance(one, Selector) else one for one in values]
            for axis, values in sorted(self.asked.items())
        }


def parse_excludes(value: Any) -> tuple[Exclude, ...]:
    """The `exclude` of a sweep: a list of mappings from axis to one value or a list."""
    if not isinstance(value, list | tuple):
        fail([Finding(message=f"got {shown(value)}; allowed: a list of mappings")])
    findings: list[Finding] = []
    entries = [collect(findings, (index,), lambda one=one: _exclude(one)) for index, one in enumerate(value)]  # type: ignore[misc]
    if findings:
        fail(findings)
    return tuple(entry for entry in entries if entry is not None)


def check_excludes(excludes: tuple[Exclude, ...], axes: Mapping[str, tuple[Any, ...]]) -> None:
    """Fail with a finding for every axis that the sweep has not and every value that matches none of its own."""
    findings: list[Finding] = []
    for index, exclude in enumerate(excludes):
        for axis, values in exclude.asked.items():
            if axis not in axes:
                findings.append(Finding(message=unknown_key(axis, axes), loc=("exclude", index, axis)))
                continue
            for one in values:
                if not any(_matches(one, held) for held in axes[axis]):
                    message = f"excludes no case: {one} is not among this sweep's {axis}"
                    findings.append(Finding(message=message, loc=("exclude", index, axis)))
    if findings:
        fail(findings)


def _matches(one: Any, held: Any) -> bool:
    return one.matches(held) if isinstance(one, Selector) else bool(one == held)


def _exclude(value: Any) -> Exclude:
    if isinstance(value, Exclude):
        return value
    if not isinstance(value, Mapping) or not value:
        got = "is empty" if isinstance(value, Mapping) else f"got {shown(value)}"
        fail([Finding(message=f"{got}; allowed: a mapping with some of {', '.join(AXES)}")])
    findings: list[Finding] = []
    asked: dict[str, tuple[Any, ...]] = {}
    for axis, values in value.items():
        if axis not in AXES:
            findings.append(Finding(message=unknown_key(axis, AXES), loc=(axis,)))
            continue
        several = isinstance(values, list | tuple)
        held = []
        for index, one in enumerate(values if several else [values]):
            parsed = collect(
                findings, (axis, index) if several else (axis,), lambda one=one, axis=axis: _value(axis, one)
            )  # type: ignore[misc]
            held.append(parsed)
        if not held:
            findings.append(Finding(message="is empty; allowed: one value or more", loc=(axis,)))
        asked[axis] = tuple(held)
    if findings:
        fail(findings)
    return Exclude(asked=asked)


def _value(axis: str, value: Any) -> Any:
    if axis in _PLUGINS:
        return _selector(axis, value)
    if axis == "passes":
        if value not in PASSES:
            fail([Finding(message=f"got {shown(value)}; allowed: {', '.join(PASSES)}")])
        return value
    return parse_count(value)


def _selector(kind: str, value: Any) -> Selector:
    if isinstance(value, Selector):
        return value
    settings: Any = {}
    name = value
    if isinstance(value, Mapping) and len(value) == 1:
        name, settings = next(iter(value.items()))
    known = catalog.names(kind)
    if not isinstance(name, str) or name not in known:
        hint = nearest(name, known) if isinstance(name, str) else ""
        fail([Finding(message=f"got {shown(name)}{hint}; allowed: {', '.join(known)}")])
    if not isinstance(settings, Mapping):
        fail([Finding(message=f"got {shown(settings)}; allowed: a mapping of settings", loc=(name,))])
    own = {key: settings[key] for key in ("kernel", "backend", "provider") if key in settings and kind != "masks"}
    rest = {key: item for key, item in settings.items() if key not in own}
    findings: list[Finding] = []
    params = collect(findings, (name,), lambda: checked(catalog.load(kind, name), rest, partial=True))
    if params is None:
        fail(findings)
    return Selector(name=name, settings={**own, **params})


__all__ = ["Exclude", "Selector", "check_excludes", "dotted", "parse_excludes"]
