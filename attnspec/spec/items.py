"""The items of a sweep: masks, and the implementations (a kernel, or a strategy with its kernel) that compute them.

In a spec an item is a name, or one name with its settings: `sdpa` or `sdpa: {backend: cudnn}`. Names and parameters
are checked against the plug-ins; parameters that an item leaves out are filled with their defaults.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

from attnspec import catalog
from attnspec.catalog.findings import Finding, collect, fail, shown, unknown_key
from attnspec.catalog.params import checked
from attnspec.errors import nearest
from attnspec.ids import canonical_json
from attnspec.wire import Implementation

T = TypeVar("T")

OWN_KEYS = ("backend", "provider", "env")
"""What every kernel item takes beside its parameters; a strategy item takes `kernel` too."""
LAUNCHER_ENV = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables that the launcher of a job sets."""
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskItem:
    """A mask with all its parameters."""

    name: str
    params: Mapping[str, Any]

    @property
    def selection(self) -> dict[str, Any]:
        """Everything that an `exclude` may ask for beside the name."""
        return dict(self.params)

    def canonical(self) -> Any:
        """The item as plain JSON that parses back to it."""
        return {self.name: dict(self.params)} if self.params else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class ImplementationItem:
    """A kernel or a strategy with all its settings, and the environment that its process starts with."""

    implementation: Implementation
    env: Mapping[str, str]

    @property
    def name(self) -> str:
        """The strategy's name, else the kernel's."""
        return self.implementation.strategy or self.implementation.kernel

    @property
    def selection(self) -> dict[str, Any]:
        """Everything that an `exclude` may ask for beside the name."""
        asked = self.implementation
        params = asked.strategy_params if asked.strategy else asked.kernel_params
        return {**params, "kernel": asked.kernel, "backend": asked.backend, "provider": asked.provider}

    def canonical(self) -> Any:
        """The item as plain JSON that parses back to it."""
        asked = self.implementation
        settings: dict[str, Any] = dict(asked.strategy_params if asked.strategy else asked.kernel_params)
        if asked.strategy:
            settings["kernel"] = {asked.kernel: dict(asked.kernel_params)} if asked.kernel_params else asked.kernel
        for key, value in (("backend", asked.backend), ("provider", asked.provider), ("env", dict(self.env))):
            if value:
                settings[key] = value
        return {self.name: settings} if settings else self.name


def parse_masks(value: Any) -> tuple[MaskItem, ...]:
    """The `masks` of a sweep."""
    return parse_items(value, "masks", _mask)


def parse_kernels(value: Any) -> tuple[ImplementationItem, ...]:
    """The `kernels` of a sweep."""
    return parse_items(value, "kernels", _kernel)


def parse_strategies(value: Any) -> tuple[ImplementationItem, ...]:
    """The `strategies` of a sweep."""
    return parse_items(value, "strategies", _strategy)


def parse_items(value: Any, kind: str, one: Callable[[str, dict[str, Any]], T]) -> tuple[T, ...]:
    """The items of a list; `one` makes an item from its name and settings. Duplicates are refused."""
    findings: list[Finding] = []
    entries: Sequence[tuple[tuple[str | int, ...], Any]] = ()
    if isinstance(value, Mapping):
        findings.append(Finding(message=f"got a mapping; allowed: a list of {kind}, each starting with '- '"))
        entries = [((), {name: settings}) for name, settings in value.items()]
    elif not isinstance(value, list | tuple):
        findings.append(Finding(message=f"got {shown(value)}; allowed: a list of {kind}"))
    elif not value:
        findings.append(Finding(message=f"is empty; allowed: {', '.join(catalog.names(kind))}"))
    else:
        entries = [((index,), entry) for index, entry in enumerate(value)]
    items: list[T] = []
    first_at: dict[str, int] = {}
    for loc, entry in entries:
        item = collect(findings, loc, lambda entry=entry: _item(entry, kind, one))  # type: ignore[misc]
        if item is None:
            continue
        key = canonical_json(item.canonical())  # type: ignore[attr-defined]
        if key in first_at:
            findings.append(Finding(message=f"is given twice: the same as item [{first_at[key]}]", loc=loc))
        first_at.setdefault(key, len(items))
        items.append(item)
    if findings:
        fail(findings)
    return tuple(items)


def _item(entry: Any, kind: str, one: Callable[[str, dict[str, Any]], T]) -> T:
    if isinstance(entry, MaskItem | ImplementationItem):
        entry = entry.canonical()
    if isinstance(entry, str):
        name, settings = entry, {}
    elif isinstance(entry, Mapping) and len(entry) == 1:
        name, settings = next(iter(entry.items()))
        settings = {} if settings is None else settings
    else:
        fail([Finding(message=_item_shape(entry, kind))])
    known = catalog.names(kind)
    if name not in known:
        loc = () if isinstance(entry, str) else (name,)
        message = f"unknown {_singular(kind)} {shown(name)}{nearest(str(name), known)}; allowed: {', '.join(known)}"
        fail([Finding(message=message, loc=loc)])
    if not isinstance(settings, Mapping):
        fail([Finding(message=f"got {shown(settings)}; allowed: a mapping of its settings", loc=(name,))])
    findings: list[Finding] = []
    loc = () if isinstance(entry, str) else (name,)
    item = collect(findings, loc, lambda: one(name, dict(settings)))
    if item is None:
        fail(findings)
    return item


def _item_shape(entry: Any, kind: str) -> str:
    if isinstance(entry, Mapping) and len(entry) > 1:
        first, *rest = map(str, entry)
        known = catalog.names(kind)
        if all(name in known for name in rest):
            return f"got {len(entry)} names in one item ({first}, {', '.join(rest)}); start each with '- '"
        return f"got {len(entry)} keys in one item ({first}, {', '.join(rest)}); indent {', '.join(rest)} under {first}"
    return f"got {shown(entry)}; allowed: the name of a {_singular(kind)}, alone or as `name: {{setting: value}}`"


def _mask(name: str, settings: dict[str, Any]) -> MaskItem:
    return MaskItem(name=name, params=checked(catalog.load("masks", name), settings))


def _kernel(name: str, settings: dict[str, Any]) -> ImplementationItem:
    module = catalog.load("kernels", name)
    findings: list[Finding] = []
    env = collect(findings, ("env",), lambda: parse_env(settings.pop("env", None)))
    provider = collect(findings, ("provider",), lambda: _provider(module, name, settings.pop("provider", None)))
    settings = _without_absent_backend(findings, module, name, settings)
    params = collect(findings, (), lambda: checked(module, settings))
    if findings or params is None or env is None:
        fail(findings)
    backend = params.pop("backend", None)
    return ImplementationItem(
        implementation=Implementation(kernel=name, backend=backend, provider=provider, kernel_params=params), env=env
    )


def _strategy(name: str, settings: dict[str, Any]) -> ImplementationItem:
    module = catalog.load("strategies", name)
    findings: list[Finding] = []
    env = collect(findings, ("env",), lambda: parse_env(settings.pop("env", None)))
    own = {key: settings.pop(key) for key in ("backend", "provider") if key in settings}
    asked = settings.pop("kernel", None)
    params = collect(findings, (), lambda: checked(module, settings))
    kernel = _kernel_of(findings, module, name, asked, own)
    if findings or params is None or env is None or kernel is None:
        fail(findings)
    return ImplementationItem(
        implementation=Implementation(
            kernel=kernel.kernel,
            backend=kernel.backend,
            provider=kernel.provider,
            kernel_params=kernel.kernel_params,
            strategy=name,
            strategy_params=params,
        ),
        env=env,
    )


def _kernel_of(
    findings: list[Finding], module: ModuleType, strategy: str, asked: Any, own: dict[str, Any]
) -> Implementation | None:
    only: tuple[str, ...] | None = getattr(module, "KERNELS", None)
    if asked is None and only is not None and len(only) == 1:
        asked = only[0]
    if asked is None:
        allowed = ", ".join(only or catalog.names("kernels"))
        findings.append(
            Finding(message=f"is missing: strategy {strategy} needs one; allowed: {allowed}", loc=("kernel",))
        )
        return None
    nested = next(iter(asked.values())) if isinstance(asked, Mapping) and len(asked) == 1 else None
    nested = nested if isinstance(nested, Mapping) else {}
    for key in ("env", *own):
        if key in nested:
            message = f"is given inside kernel; write {key} beside kernel"
            findings.append(Finding(message=message, loc=("kernel", *asked, key)))
            asked = {name: {k: v for k, v in nested.items() if k != key} for name in asked}
            nested = next(iter(asked.values()))
    base = collect(findings, ("kernel",), lambda: _item(asked, "kernels", _kernel))
    if base is None:
        return None
    if only is not None and base.name not in only:
        message = f"strategy {strategy} does not run {base.name}; allowed: {', '.join(only)}"
        findings.append(Finding(message=message, loc=("kernel",)))
        return None
    whole = collect(findings, (), lambda: _kernel(base.name, {**nested, **own}))
    return None if whole is None else whole.implementation


def _without_absent_backend(
    findings: list[Finding], module: ModuleType, name: str, settings: dict[str, Any]
) -> dict[str, Any]:
    if "backend" not in settings or "backend" in catalog.param_fields(module):
        return settings
    if settings["backend"] is not None:
        message = f"got {shown(settings['backend'])}, but kernel {name} has no backends"
        findings.append(Finding(message=message, loc=("backend",)))
    return {key: value for key, value in settings.items() if key != "backend"}


def _provider(module: ModuleType, name: str, asked: Any) -> str | None:
    known = [one.name for one in getattr(module, "PROVIDERS", ())]
    if asked is None or asked in known:
        return asked
    hint = nearest(asked, known) if isinstance(asked, str) else ""
    fail(
        [Finding(message=f"kernel {name} has no provider {shown(asked)}{hint}; allowed: {', '.join(known) or 'none'}")]
    )


def parse_env(value: Any) -> dict[str, str]:
    """Environment variables: names as a shell takes them, values as text; sorted."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        fail([Finding(message=f"got {shown(value)}; allowed: a mapping of variable to text")])
    findings: list[Finding] = []
    for name, text in value.items():
        if not isinstance(name, str) or not _ENV_NAME.fullmatch(name):
            findings.append(Finding(message=f"got {shown(name)}; allowed: a variable's name", loc=(name,)))
        elif name in LAUNCHER_ENV:
            findings.append(Finding(message=f"{name} is set by the launcher; leave it out", loc=(name,)))
        elif not isinstance(text, str):
            hint = "" if isinstance(text, Mapping | list | tuple) else f'; write it in quotes: "{shown(text)}"'
            findings.append(Finding(message=f"got {shown(text)}; allowed: text{hint}", loc=(name,)))
        elif "\0" in text:
            findings.append(Finding(message="got text with a NUL character", loc=(name,)))
    if findings:
        fail(findings)
    return dict(sorted(value.items()))


def _singular(kind: str) -> str:
    return {"masks": "mask", "kernels": "kernel", "strategies": "strategy"}[kind]


__all__ = [
    "ImplementationItem",
    "MaskItem",
    "parse_env",
    "parse_items",
    "parse_kernels",
    "parse_masks",
    "parse_strategies",
    "unknown_key",
]
