"""`exclude`: cases that a sweep leaves out, named by values of its axes. Pure.

An entry such as `{kernels: sdpa, masks: varlen_full, seqlen: 64K}` takes out every case that has one of the given
values on every given axis. A mask, kernel or strategy is named alone or with some of its settings. A value that the
sweep does not have is an error, so every entry takes out at least one case; leaving no case at all is one too.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from attnspec import catalog
from attnspec.catalog.findings import Finding, collect, error_of, not_among, shown, unknown_key
from attnspec.catalog.params import checked
from attnspec.shape import PASSES
from attnspec.spec.implementations import STRATEGY_KEYS
from attnspec.spec.items import SINGULAR, split_item
from attnspec.units import parse_count

AXES = {
    "kernel": ("masks", "seqlen", "passes", "kernels"),
    "distributed": ("masks", "cp_size", "seqlen_per_rank", "passes", "strategies"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """A mask, kernel or strategy by name and, where given, some of its settings."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def matches(self, item: Any) -> bool:
        """Whether an item has this name and every given setting."""
        held = item.settings
        return item.name == self.name and all(held.get(key) == value for key, value in self.settings.items())

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
        return all(any(_equal(one, case[axis]) for one in values) for axis, values in self.asked.items())

    def canonical(self) -> dict[str, Any]:
        """The entry as plain JSON that parses back to it."""
        return {
            axis: [one.canonical() if isinstance(one, Selector) else one for one in values]
            for axis, values in sorted(self.asked.items())
        }


def parse_excludes(value: Any, level: str) -> tuple[Exclude, ...]:
    """The `exclude` of a sweep: a list of mappings from axis to one value or a list."""
    if not isinstance(value, list | tuple):
        raise error_of(Finding(message=f"got {shown(value)}; allowed: a list of mappings"))
    findings: list[Finding] = []
    held: list[Exclude] = []
    for index, entry in enumerate(value):
        exclude = collect(findings, (index,), _exclude, entry, AXES[level])
        if exclude is None:
            continue
        if exclude in held:
            findings.append(Finding(message="is given twice", loc=(index,)))
        held.append(exclude)
    if findings:
        raise error_of(*findings)
    return tuple(held)


def check_excludes(excludes: tuple[Exclude, ...], axes: Mapping[str, tuple[Any, ...]]) -> None:
    """Find every value that the sweep with these axes does not have, and a sweep without any case left."""
    findings = [
        Finding(message=f"excludes no case: {one} is not among this sweep's {axis}", loc=("exclude", index, axis))
        for index, exclude in enumerate(excludes)
        for axis, values in exclude.asked.items()
        for one in values
        if not any(_equal(one, held) for held in axes[axis])
    ]
    if not findings and excludes:
        cases = (dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))
        if all(any(exclude.matches(case) for exclude in excludes) for case in cases):
            findings.append(Finding(message="leaves no case of this sweep", loc=("exclude",)))
    if findings:
        raise error_of(*findings)


def _equal(one: Any, held: Any) -> bool:
    return one.matches(held) if isinstance(one, Selector) else bool(one == held)


def _exclude(value: Any, axes: tuple[str, ...]) -> Exclude:
    if isinstance(value, Exclude):
        value = value.canonical()
    if not isinstance(value, Mapping) or not value:
        got = "is empty" if isinstance(value, Mapping) else f"got {shown(value)}"
        raise error_of(Finding(message=f"{got}; allowed: a mapping with some of {', '.join(axes)}"))
    findings: list[Finding] = []
    asked: dict[str, tuple[Any, ...]] = {}
    for axis, values in value.items():
        if axis not in axes:
            findings.append(Finding(message=unknown_key(axis, axes), loc=(axis,)))
        elif isinstance(values, list | tuple):
            if not values:
                findings.append(Finding(message="is empty; allowed: one value or more", loc=(axis,)))
            asked[axis] = tuple(collect(findings, (axis, index), _value, axis, one) for index, one in enumerate(values))
        else:
            asked[axis] = (collect(findings, (axis,), _value, axis, values),)
    if findings:
        raise error_of(*findings)
    return Exclude(asked=asked)


def _value(axis: str, value: Any) -> Any:
    if axis in SINGULAR:
        return _selector(axis, value)
    if axis == "passes":
        if value not in PASSES:
            raise error_of(Finding(message=not_among(value, PASSES)))
        return value
    return parse_count(value)


def _selector(kind: str, value: Any) -> Selector:
    name, settings, loc = split_item(value, kind)
    module = catalog.load(kind, name)
    declared = catalog.param_fields(module)
    # Settings that are no parameter of the plug-in are compared as they stand.
    free = {key for key in STRATEGY_KEYS if key not in declared and key != "env" and kind != "masks"}
    rest = {key: one for key, one in settings.items() if key not in free}
    findings: list[Finding] = []
    params = collect(findings, loc, checked, module, rest, partial=True)
    if params is None:
        raise error_of(*findings)
    return Selector(name=name, settings={key: one for key, one in settings.items() if key in free} | params)
