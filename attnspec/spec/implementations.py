"""Implementations in a sweep: kernels, and strategies with the kernel that they run. Pure.

A kernel's settings are its own parameters and `backend`, `provider`, `env`; a strategy's are its own parameters, the
same three, and `kernel`, which is an item itself: `kernel: fa3` or `kernel: {flex: {block: 256}}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from attnspec import catalog
from attnspec.catalog.findings import Finding, collect, error_of, not_among, shown
from attnspec.catalog.params import checked
from attnspec.spec.environment import parse_env
from attnspec.spec.items import ImplementationItem, parse_items, split_item
from attnspec.wire import Implementation

KERNEL_KEYS = ("backend", "provider", "env")
STRATEGY_KEYS = ("kernel", *KERNEL_KEYS)


def parse_kernels(value: Any) -> tuple[ImplementationItem, ...]:
    """The `kernels` of a sweep."""
    return parse_items(value, "kernels", _kernel)


def parse_strategies(value: Any) -> tuple[ImplementationItem, ...]:
    """The `strategies` of a sweep."""
    return parse_items(value, "strategies", _strategy)


def runnable_kernels(strategy: ModuleType) -> tuple[str, ...] | None:
    """The kernels that a strategy is limited to (its optional `KERNELS`), None for any."""
    return getattr(strategy, "KERNELS", None)


def provider_names(kernel: ModuleType) -> tuple[str, ...]:
    """The providers of a kernel in order of preference."""
    return tuple(one.name for one in getattr(kernel, "PROVIDERS", ()))


def _kernel(name: str, settings: Mapping[str, Any]) -> ImplementationItem:
    module = catalog.load("kernels", name)
    findings: list[Finding] = []
    env = collect(findings, ("env",), parse_env, settings.get("env"))
    provider = settings.get("provider")
    if provider is not None and provider not in provider_names(module):
        message = f"unknown provider of {name}: {not_among(provider, provider_names(module))}"
        findings.append(Finding(message=message, loc=("provider",)))
    own = {key: value for key, value in settings.items() if key not in ("env", "provider")}
    if "backend" not in catalog.param_fields(module) and own.pop("backend", None) is not None:
        message = f"got {shown(settings['backend'])}; kernel {name} has no backends"
        findings.append(Finding(message=message, loc=("backend",)))
    params = collect(findings, (), checked, module, own)
    if findings or params is None:
        raise error_of(*findings)
    backend = params.pop("backend", None)
    asked = Implementation(kernel=name, backend=backend, provider=provider, kernel_params=params)
    return ImplementationItem(implementation=asked, env=env or {})


def _strategy(name: str, settings: Mapping[str, Any]) -> ImplementationItem:
    module = catalog.load("strategies", name)
    findings: list[Finding] = []
    env = collect(findings, ("env",), parse_env, settings.get("env"))
    own = {key: value for key, value in settings.items() if key not in STRATEGY_KEYS}
    params = collect(findings, (), checked, module, own)
    beside = {key: settings[key] for key in ("backend", "provider") if key in settings}
    kernel = collect(findings, (), _kernel_of, name, module, settings.get("kernel"), beside)
    if findings or params is None or kernel is None:
        raise error_of(*findings)
    asked = Implementation(
        kernel=kernel.kernel,
        backend=kernel.backend,
        provider=kernel.provider,
        kernel_params=kernel.kernel_params,
        strategy=name,
        strategy_params=params,
    )
    return ImplementationItem(implementation=asked, env=env or {})


def _kernel_of(strategy: str, module: ModuleType, entry: Any, beside: Mapping[str, Any]) -> Implementation:
    """The kernel of a strategy; `beside` holds the backend and provider that stand next to `kernel`."""
    limited = runnable_kernels(module)
    if entry is None and limited is not None and len(limited) == 1:
        entry = limited[0]
    if entry is None:
        allowed = ", ".join(limited or catalog.names("kernels"))
        raise error_of(Finding(message=f"is missing: {strategy} needs a kernel; allowed: {allowed}", loc=("kernel",)))
    findings: list[Finding] = []
    split = collect(findings, ("kernel",), split_item, entry, "kernels")
    if split is None:
        raise error_of(*findings)
    name, inside, loc = split
    if limited is not None and name not in limited:
        message = f"{strategy} does not run {name}; allowed: {', '.join(limited)}"
        raise error_of(Finding(message=message, loc=("kernel", *loc)))
    for key in inside:
        if key == "env" or key in beside:
            message = f"write {key} beside kernel, not inside"
            findings.append(Finding(message=message, loc=("kernel", *loc, key)))
    faults: list[Finding] = []
    item = collect(faults, (), _kernel, name, {**inside, **beside})
    for fault in faults:
        where = () if fault.loc and fault.loc[0] in beside else ("kernel", *loc)
        findings.append(Finding(message=fault.message, loc=(*where, *fault.loc)))
    if findings or item is None:
        raise error_of(*findings)
    return item.implementation
