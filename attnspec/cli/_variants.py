"""The ways to run a kernel, each examined by itself: its providers, and the backends of each. Not a command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attnspec import plugins
from attnspec.catalog import param_fields
from attnspec.cli._answers import Answer
from attnspec.support import Provider
from attnspec.wire import parts_of, target_of


def kernel_targets(name: str) -> list[str]:
    """`kernels:NAME:PROVIDER`, which is with the backend that the kernel takes by itself, and `...:BACKEND` for each.

    `kernels:NAME` of a kernel without providers, or whose plug-in is at fault.

    >>> kernel_targets("fa4")
    ['kernels:fa4:flash-attn-4', 'kernels:fa4:flash-attn-4:varlen', 'kernels:fa4:flash-attn-4:block_sparse']
    """
    try:
        module = plugins.load("kernels", name)
        field = param_fields(module).get("backend")
        backends = () if field is None else field.choices or ()
        ways = [
            target_of("kernels", name, provider.name, *backend)
            for provider in module.PROVIDERS
            for backend in ((), *((one,) for one in backends))
        ]
    except Exception:  # noqa: BLE001 (whatever a plug-in does wrong is told by whoever examines it)
        ways = []
    return ways or [target_of("kernels", name)]


def package_of(target: str) -> Provider | None:
    """The package that a target stands or falls with, where it names one."""
    kind, name, *way = parts_of(target)
    try:
        module = plugins.load(kind, name)
        held: Sequence[Provider] = getattr(module, "PROVIDERS", ())
        of_backend: Provider | None = getattr(module, "BACKEND_PACKAGES", {}).get(way[1]) if len(way) > 1 else None
        package = of_backend or next((one for one in held if not way or one.name == way[0]), None)
    except Exception:  # noqa: BLE001 (whatever a plug-in does wrong is told by whoever examines it)
        return None
    return package if isinstance(package, Provider) else None


def kernel_answers(answers: Mapping[str, Answer]) -> dict[str, Answer]:
    """One answer for each kernel, of the first way that is usable; with those of all ways where there are several."""
    ways: dict[str, dict[tuple[str, ...], Answer]] = {}
    for target, answer in answers.items():
        _, name, *way = parts_of(target)
        ways.setdefault(name, {})[tuple(way)] = answer
    return {name: _whole(held) for name, held in ways.items()}


def _whole(ways: Mapping[tuple[str, ...], Answer]) -> Answer:
    by_itself = [answer for way, answer in ways.items() if len(way) < 2]
    usable = [answer for answer in (*by_itself, *ways.values()) if answer["usable"]]
    if len(ways) == 1:
        return next(iter(ways.values()))
    answer: Answer = {
        **(usable or by_itself)[0],
        "variants": [_variant(way, one) for way, one in _named(ways).items()],
    }
    if not usable:
        answer["reason"] = "; ".join(dict.fromkeys(one["reason"] for one in by_itself))
        answer["fix"] = next((one["fix"] for one in by_itself if one["fix"]), None)
    return answer


def _named(ways: Mapping[tuple[str, ...], Answer]) -> dict[tuple[str, ...], Answer]:
    """The ways with their backends, where there are backends."""
    backends = {way: answer for way, answer in ways.items() if len(way) > 1}
    return backends or dict(ways)


def _variant(way: tuple[str, ...], answer: Answer) -> dict[str, Any]:
    provider, backend = (*way, None)[:2]
    return {**answer, "provider": provider, "backend": backend}
