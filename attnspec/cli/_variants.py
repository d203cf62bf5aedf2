"""The ways to run a kernel, each examined by itself: its providers, and the backends of each. Not a command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attnspec import plugins
from attnspec.catalog import param_fields
from attnspec.cli._answers import Answer
from attnspec.errors import InputError
from attnspec.support import Provider


def kernel_targets(name: str) -> Iterator[str]:
    """`kernels:NAME:PROVIDER`, which is with the backend that the kernel takes by itself, and `...:BACKEND` for each.

    >>> list(kernel_targets("fa4"))
    ['kernels:fa4:flash-attn-4', 'kernels:fa4:flash-attn-4:varlen', 'kernels:fa4:flash-attn-4:block_sparse']
    """
    try:
        module = plugins.load("kernels", name)
        field = param_fields(module).get("backend")
    except InputError:  # told by whoever examines it
        yield f"kernels:{name}"
        return
    backends = () if field is None else field.choices or ()
    for provider in module.PROVIDERS:
        yield f"kernels:{name}:{provider.name}"
        for backend in backends:
            yield f"kernels:{name}:{provider.name}:{backend}"


def package_of(target: str) -> Provider | None:
    """The package that a target stands or falls with, where it names one."""
    kind, name, *way = target.split(":")
    try:
        module = plugins.load(kind, name)
    except InputError:
        return None
    held: Sequence[Provider] = getattr(module, "PROVIDERS", ())
    if len(way) > 1 and way[1] in getattr(module, "BACKEND_PACKAGES", {}):
        package: Provider = module.BACKEND_PACKAGES[way[1]]
        return package
    return next((one for one in held if not way or one.name == way[0]), None)


def kernel_answers(answers: Mapping[str, Answer]) -> dict[str, Answer]:
    """One answer for each kernel, of the first way that is usable; with those of all ways where there are several."""
    ways: dict[str, dict[tuple[str, ...], Answer]] = {}
    for target, answer in answers.items():
        _, name, *way = target.split(":")
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
