"""Which package runs a kernel: the first of its providers that imports, is recent enough, and computes a tiny call."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable, Iterable
from types import ModuleType

import torch

from attnspec.errors import UnsupportedError, nearest, worded
from attnspec.execute.tiny_call import tiny_call
from attnspec.support import Device, Provider
from attnspec.support.version import satisfies

_found: dict[tuple[str | None, ...], tuple[str, str] | UnsupportedError] = {}


def choose(module: ModuleType, asked: str | None, device: Device) -> tuple[str, str]:
    """(provider, version) of a kernel; found once per process.

    asked: the provider that a spec names, None for the first usable one. Raises UnsupportedError with the message of
    every provider that was tried: missing_package when none is installed, else what the last installed one said.

    Providers that are torch itself are only imported: torch runs already, and a failure of its operators shows as the
    case's own. (A tiny call would make every worker compile flex once more.)
    """
    return _once(("choose", module.__name__, asked, device.type), lambda: _choose(module, asked, device))


def beside(module: ModuleType, backend: str | None) -> tuple[str, str] | None:
    """(distribution, version) of what a backend needs beside the kernel's provider; None for one that needs nothing.

    Its kernel names it in BACKEND_PACKAGES. Found once per process. Raises UnsupportedError as `choose` does, without a
    tiny call: what runs it is the kernel's own provider.
    """
    package: Provider | None = getattr(module, "BACKEND_PACKAGES", {}).get(backend)
    if package is None:
        return None
    return _once(("beside", module.__name__, backend), lambda: (package.distribution, _only(package)))


def library(strategy: ModuleType) -> dict[str, str]:
    """Distribution and version of the library whose strategy it is; empty for those of attnspec.

    It is imported and not called, for its ranks are not there yet. Raises UnsupportedError as `choose` does.
    """
    held = tuple(getattr(strategy, "PROVIDERS", ()))
    failures = []
    for provider in held:
        try:
            return {provider.distribution: installed_version(provider)}
        except UnsupportedError as error:
            failures.append((provider, error))
    if held:
        raise joined(failures)
    return {}


def through(strategy: ModuleType, asked: str | None) -> str | None:
    """The provider to ask for of a strategy's kernel: its library calls the kernel of one, whatever else is there.

    Raises UnsupportedError when a spec names another one.
    """
    own: str | None = getattr(strategy, "KERNEL_PROVIDER", None)
    if own is not None and asked not in (None, own):
        raise UnsupportedError("backend", f"this strategy calls its kernel through {own}, not {asked}")
    return own or asked


def _only(provider: Provider) -> str:
    try:
        return installed_version(provider)
    except UnsupportedError as error:
        raise joined([(provider, error)]) from error


def _once(key: tuple[str | None, ...], find: Callable[[], tuple[str, str]]) -> tuple[str, str]:
    if key not in _found:
        try:
            _found[key] = find()
        except UnsupportedError as error:
            _found[key] = error
    held = _found[key]
    if isinstance(held, UnsupportedError):
        raise UnsupportedError(held.reason_code, held.reason)
    return held


def _choose(module: ModuleType, asked: str | None, device: Device) -> tuple[str, str]:
    failures = []
    for provider in candidates(module, asked):
        try:
            version = installed_version(provider)
            if provider.module != "torch":
                verify(module, provider, device)
        except UnsupportedError as error:
            failures.append((provider, error))
        else:
            return provider.name, version
    raise joined(failures)


def candidates(module: ModuleType, asked: str | None) -> tuple[Provider, ...]:
    """The providers to try, in order of preference. Raises UnsupportedError for one that the kernel does not have."""
    providers: tuple[Provider, ...] = module.PROVIDERS
    if asked is None:
        return providers
    named = tuple(provider for provider in providers if provider.name == asked)
    if not named:
        known = [provider.name for provider in providers]
        raise UnsupportedError(
            "missing_package", f"no provider {asked!r}{nearest(asked, known)}; allowed: {', '.join(known)}"
        )
    return named


def installed_version(provider: Provider) -> str:
    """The version of a provider that imports. Raises UnsupportedError with the import's own message.

    A module that is not there is missing; anything else that keeps it from loading (an undefined symbol, a shared
    library, a package it needs, an exit), and a version that is too old (placeholders on the package index are), is
    broken.
    """
    try:
        imported = importlib.import_module(provider.module)
    except ModuleNotFoundError as error:
        name = error.name or ""
        own = provider.module == name or provider.module.startswith(f"{name}.")
        raise UnsupportedError("missing_package" if own and name else "broken_package", worded(error)) from error
    except (Exception, SystemExit) as error:  # a package may raise anything while it loads
        raise UnsupportedError("broken_package", worded(error)) from error
    try:
        version = importlib.metadata.version(provider.distribution)
    except importlib.metadata.PackageNotFoundError:
        version = str(getattr(imported, "__version__", "unknown"))
    if not satisfies(version, provider.requires):
        raise UnsupportedError(
            "broken_package", f"{provider.distribution} {version} is installed, {provider.requires} is needed"
        )
    return version


def verify(module: ModuleType, provider: Provider, device: Device, backend: str | None = None) -> bool:
    """The tiny call, by a backend or by what the kernel takes itself; whether it had a backward.

    Raises UnsupportedError with the library's own message. Running out of memory says nothing about the package and
    goes through.
    """
    try:
        return tiny_call(module, provider.name, device, backend)
    except (UnsupportedError, MemoryError, torch.OutOfMemoryError):
        raise
    except (Exception, SystemExit) as error:  # a library may raise anything
        raise UnsupportedError("broken_package", worded(error)) from error


def joined(failures: Iterable[tuple[Provider, UnsupportedError]]) -> UnsupportedError:
    """One error from those of all providers, each with the way to get the package where that would help."""
    held = list(failures)
    parts = []
    for provider, error in held:
        fix = f" ({provider.fix})" if provider.fix and error.reason_code.endswith("_package") else ""
        parts.append(f"{provider.name}: {error.reason}{fix}")
    codes = [error.reason_code for _, error in held if error.reason_code != "missing_package"]
    return UnsupportedError(codes[-1] if codes else "missing_package", "; ".join(parts))
