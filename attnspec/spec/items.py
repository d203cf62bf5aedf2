"""The items of a sweep: masks, and the implementations (a kernel, or a strategy with its kernel) that compute them.

In a spec an item is a name, or one name with its settings: `sdpa` or `sdpa: {backend: cudnn}`. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from attnspec import catalog
from attnspec.catalog.findings import Finding, Loc, collect, error_of, not_among, shown
from attnspec.catalog.params import checked
from attnspec.ids import canonical_json
from attnspec.wire import Implementation

SINGULAR = {"masks": "mask", "kernels": "kernel", "strategies": "strategy"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskItem:
    """A mask with all its parameters."""

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that an `exclude` may ask for beside the name."""
        return dict(self.params)

    def canonical(self) -> Any:
        """The item as plain JSON that parses back to it."""
        return {self.name: dict(self.params)} if self.params else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class ImplementationItem:
    """A kernel or a strategy with all its settings, and the environment that its process starts with."""

    implementation: Implementation
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The strategy's name, else the kernel's."""
        return self.implementation.strategy or self.implementation.kernel

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that an `exclude` may ask for beside the name."""
        asked = self.implementation
        params = asked.strategy_params if asked.strategy else asked.kernel_params
        return {**params, "kernel": asked.kernel, "backend": asked.backend, "provider": asked.provider}

    def canonical(self) -> Any:
        """The item as plain JSON that parses back to it."""
        asked = self.implementation
        held: dict[str, Any] = dict(asked.strategy_params if asked.strategy else asked.kernel_params)
        if asked.strategy:
            held["kernel"] = {asked.kernel: dict(asked.kernel_params)} if asked.kernel_params else asked.kernel
        others = {"backend": asked.backend, "provider": asked.provider, "env": dict(self.env)}
        held.update({key: value for key, value in others.items() if value})
        return {self.name: held} if held else self.name


Item = TypeVar("Item", MaskItem, ImplementationItem)


def parse_masks(value: Any) -> tuple[MaskItem, ...]:
    """The `masks` of a sweep: names and parameters checked against the plug-ins, defaults filled."""
    return parse_items(value, "masks", _mask)


def _mask(name: str, settings: Mapping[str, Any]) -> MaskItem:
    return MaskItem(name=name, params=checked(catalog.load("masks", name), settings))


def parse_items(value: Any, kind: str, make: Callable[[str, Mapping[str, Any]], Item]) -> tuple[Item, ...]:
    """A list of items, each made by `make` from its name and settings. Items that mean the same are refused.

    Raises pydantic's ValidationError with one finding per fault.
    """
    findings: list[Finding] = []
    entries: list[tuple[Loc, Any]] = []
    if isinstance(value, list | tuple) and value:
        entries = [((index,), entry) for index, entry in enumerate(value)]
    elif isinstance(value, list | tuple):
        findings.append(Finding(message=f"is empty; allowed: {', '.join(catalog.names(kind))}"))
    elif isinstance(value, Mapping):
        # Wrong, but what is meant is clear enough to check the settings too.
        findings.append(Finding(message=f"got a mapping; allowed: a list of {kind}, each starting with '- '"))
        entries = [((), {name: settings}) for name, settings in value.items()]
    else:
        allowed = f"a list of {kind}, of {', '.join(catalog.names(kind))}"
        findings.append(Finding(message=f"got {shown(value)}; allowed: {allowed}"))
    held: dict[str, tuple[Loc, Item]] = {}
    for loc, entry in entries:
        item = collect(findings, loc, _made, entry, kind, make)
        if item is None:
            continue
        text = canonical_json(item.canonical())
        if text in held:
            findings.append(Finding(message=f"is given twice: the same as item {held[text][0][0]}", loc=loc))
        held.setdefault(text, (loc, item))
    if findings:
        raise error_of(*findings)
    return tuple(item for _, item in held.values())


def split_item(entry: Any, kind: str) -> tuple[str, Mapping[str, Any], Loc]:
    """The name of an item, its settings, and where inside the item these stand. Checks that the name exists."""
    settings: Any = None
    loc: Loc = ()
    if isinstance(entry, Mapping) and len(entry) == 1:
        name, settings = next(iter(entry.items()))
        loc = (name,)
    elif isinstance(entry, Mapping) and entry:
        raise error_of(Finding(message=_several_keys(entry, kind)))
    else:
        name = entry
    known = catalog.names(kind)
    if isinstance(name, Mapping | list | tuple) or name is None:
        allowed = f"the name of a {SINGULAR[kind]}, alone or with settings as `name: {{setting: value}}`"
        raise error_of(Finding(message=f"got {shown(name)}; allowed: {allowed}"))
    if name not in known:
        raise error_of(Finding(message=f"unknown {SINGULAR[kind]}: {not_among(name, known)}", loc=loc))
    if not isinstance(settings, Mapping | None):
        raise error_of(Finding(message=f"got {shown(settings)}; allowed: a mapping of settings", loc=loc))
    return name, settings or {}, loc


def _made(entry: Any, kind: str, make: Callable[[str, Mapping[str, Any]], Item]) -> Item:
    if isinstance(entry, MaskItem | ImplementationItem):
        entry = entry.canonical()
    name, settings, loc = split_item(entry, kind)
    findings: list[Finding] = []
    item = collect(findings, loc, make, name, settings)
    if item is None:
        raise error_of(*findings)
    return item


def _several_keys(entry: Mapping[str, Any], kind: str) -> str:
    first, *rest = entry
    known = catalog.names(kind)
    fix = "start each with '- '" if all(name in known for name in rest) else f"indent what belongs to {first} deeper"
    return f"got {len(entry)} keys in one item ({', '.join(entry)}); allowed: one name; {fix}"
