"""What is usable in this interpreter, on its first device: `python -m attnspec.worker.doctor kernels:sdpa ...`.

A kernel may be followed by a provider and a backend of it (`kernels:sdpa:torch:flash`); names are percent-encoded. For
each target one JSON line says that its examination starts and one what came out, so that whoever reads them knows the
culprit when this process dies. What libraries print goes to standard error, below a line that names the target. Ends
with code 75 when a kernel left the device in an error from which no process recovers; the rest is for a new one.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from attnspec import plugins
from attnspec.errors import InputError, UnsupportedError, worded
from attnspec.execute.providers import candidates, installed_version, verify
from attnspec.support import Device, Provider
from attnspec.wire import BEGINS, parts_of
from attnspec.worker.environment import set_defaults
from attnspec.worker.one_cudnn import restart_with_torchs_cudnn

POISONED = 75


def main(arguments: Sequence[str]) -> int:
    """Examine targets (`wire.target_of`), which have no slash; arguments with one are plug-in files."""
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    asked = [argument for argument in arguments if "/" not in argument]
    failed = _load(argument for argument in arguments if "/" in argument)
    failed |= _set_defaults(name for kind, name, *_ in map(parts_of, asked) if kind == "kernels")
    device = present_device()
    for argument in asked:
        print(f"{BEGINS}{argument}", file=sys.stderr, flush=True)
        print(json.dumps({"starts": argument}), file=lines, flush=True)
        kind, name, *way = parts_of(argument)
        reason = failed.get((kind, name))
        answer = examine(kind, name, *way, device=device) if reason is None else _answer(reason=reason)
        print(json.dumps({"done": argument, **answer}), file=lines, flush=True)
        if device.type == "cuda" and not _healthy():
            return POISONED
    return 0


def _load(files: Iterable[str]) -> dict[tuple[str, str], str]:
    """Load plug-in files; of what one that fails here may hold, the reason."""
    failed: dict[tuple[str, str], str] = {}
    for file in files:
        try:
            plugins.load_file(file)
        except InputError as error:
            name = Path(file).stem
            failed |= {(kind, name): str(error) for kind in plugins.KINDS if name not in plugins.names(kind)}
    return failed


def _set_defaults(kernels: Iterable[str]) -> dict[tuple[str, str], str]:
    """The variables that kernels want; of a kernel that does not tell them, the reason."""
    failed: dict[tuple[str, str], str] = {}
    for name in sorted(set(kernels)):
        try:
            set_defaults([name])
        except Exception as error:  # noqa: BLE001 (as in examine)
            failed["kernels", name] = _fails(error)
    return failed


def present_device() -> Device:
    """The first CUDA device, else the CPU."""
    if not torch.cuda.is_available():
        return Device(type="cpu")
    found = torch.cuda.get_device_properties(0)
    return Device(type="cuda", capability=(found.major, found.minor), model=found.name)


def examine(
    kind: str, name: str, provider: str | None = None, backend: str | None = None, *, device: Device
) -> dict[str, Any]:
    """usable, provider, version, reason, fix of one plug-in, or of one way to run a kernel.

    A kernel is usable when a tiny call of one of its providers computes what the reference does. A strategy is usable
    when what it needs imports, the package of the kernel that its library calls included; its ranks are not started.
    """
    try:
        module = plugins.load(kind, name)
        return _kernel(module, device, provider, backend) if kind == "kernels" else _strategy(module)
    except Exception as error:  # noqa: BLE001 (whatever a plug-in does wrong is what this command is to tell)
        return _answer(reason=_fails(error))


def _fails(error: Exception) -> str:
    return f"the plug-in fails: {worded(error)}"


def _kernel(module: ModuleType, device: Device, asked: str | None, backend: str | None) -> dict[str, Any]:
    failures: list[tuple[Provider, UnsupportedError]] = []
    package: Provider | None = getattr(module, "BACKEND_PACKAGES", {}).get(backend)
    for provider in candidates(module, asked):
        tried = provider
        try:
            version = installed_version(provider)
            if package is not None:
                tried = package
                version += f" with {package.distribution} {installed_version(package)}"
            backward = verify(module, provider, device, backend)
        except UnsupportedError as error:
            failures.append((tried, error))
        else:
            reason = None if backward else "forward only"
            return _answer(usable=True, provider=provider.name, version=version, reason=reason)
    answer = _refused(failures)
    if device.type not in module.SUPPORT.devices and answer["fix"]:
        answer["reason"] += f"; in any case it runs on {', '.join(module.SUPPORT.devices)}, not on {device.type}"
    return answer


def _strategy(module: ModuleType) -> dict[str, Any]:
    if not torch.distributed.is_available():
        return _answer(reason="this torch is built without torch.distributed")
    for own in _own_kernels(module):
        try:
            installed_version(own)
        except UnsupportedError as error:
            return _refused([(own, error)])
    failures: list[tuple[Provider, UnsupportedError]] = []
    for provider in getattr(module, "PROVIDERS", ()):
        try:
            return _answer(usable=True, provider=provider.name, version=installed_version(provider))
        except UnsupportedError as error:
            failures.append((provider, error))
    if failures:
        return _refused(failures)
    return _answer(usable=True, provider="torch", version=str(torch.__version__))


def _own_kernels(module: ModuleType) -> tuple[Provider, ...]:
    """The package whose kernel a strategy's library calls, where that is another one."""
    name = getattr(module, "KERNEL_PROVIDER", None)
    if name is None or any(one.name == name for one in module.PROVIDERS):
        return ()
    return candidates(plugins.load("kernels", module.KERNELS[0]), name)


def _refused(failures: Sequence[tuple[Provider, UnsupportedError]]) -> dict[str, Any]:
    """The reasons of all providers, and the first way to get one that is missing or broken."""
    fixes = [one.fix for one, error in failures if one.fix and error.reason_code.endswith("_package")]
    reason = "; ".join(f"{one.name}: {error.reason}" for one, error in failures)
    return _answer(reason=reason or "it has no provider", fix=fixes[0] if fixes else None)


def _answer(
    *,
    usable: bool = False,
    provider: str | None = None,
    version: str | None = None,
    reason: str | None = None,
    fix: str | None = None,
) -> dict[str, Any]:
    return {"usable": usable, "provider": provider, "version": version, "reason": reason, "fix": fix}


def _healthy() -> bool:
    """Whether the device still answers after a kernel failed on it."""
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


if __name__ == "__main__":
    restart_with_torchs_cudnn()
    sys.exit(main(sys.argv[1:]))
