"""What a run ran in, as one nested mapping: what a comparison lists where it differs, and what a paper tells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from attnspec.launch.measured_code import environments, measured_code, measured_versions
from attnspec.report.run import OpenedRun

_OF_HOST = ("name", "processor", "platform", "num_cpus", "python")
_OF_WORKER = ("device", "driver", "image_id", "kernel", "python", "versions", "cuda", "env", "variables")


def environment(run: OpenedRun) -> dict[str, Any]:
    """Code, runner, host, packages, driver, device and image of a run. Empty parts where its provenance is gone.

    What differs between the run's own workers, attempts or cases is a list of all values.
    """
    held = run.provenance
    return {
        "attnspec": _code(held),
        "runner": _some(section(held, "runner"), ("name", "image", "launcher")),
        "host": _some(section(held, "host"), _OF_HOST),
        "worker": _workers(held),
        "device": _values(run, "device"),
        "image": _values(run, "image_digest"),
        "provider": _providers(run),
    }


def section(held: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """A part of a provenance record; empty where it is missing or something else (people edit files).

    >>> section({"a": {"b": {"c": 1}}}, "a", "b"), section({"a": 3}, "a", "b")
    ({'c': 1}, {})
    """
    for name in names:
        found = held.get(name)
        if not isinstance(found, Mapping):
            return {}
        held = found
    return held


def together(mappings: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Several nested mappings as one.

    >>> together([{"driver": "1", "env": {"A": "x"}}, {"driver": "2", "env": {"A": "x"}}])
    {'driver': ['1', '2'], 'env': {'A': 'x'}}
    """
    every = list(mappings)
    merged: dict[str, Any] = {}
    for name in dict.fromkeys(name for one in every for name in one):
        values = [one[name] for one in every if name in one]
        if all(isinstance(value, Mapping) for value in values):
            merged[name] = together(values)
        else:
            merged[name] = _one_or_all(values)
    return merged


def _code(held: Mapping[str, Any]) -> dict[str, Any]:
    """Its versions, the SHA-256 of its states, their commits where each has one, and the plug-in files."""
    states = measured_code(held)
    commits = [] if None in states.values() else states.values()
    told = {"attnspec": measured_versions(held), "git_commit": commits, "code_sha256": states}
    distinct = {name: _one_or_all(values) for name, values in told.items()}
    return _some({**distinct, "plugins": held.get("plugins")}, (*told, "plugins"))


def _workers(held: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a provenance as one; a variable that only some saw is `unset` for the others."""
    told = [_worker(one) for one in environments(held)]
    names = dict.fromkeys(name for one in told for name in section(one, "variables"))
    for one in told:
        if isinstance(one.get("variables"), Mapping):
            one["variables"] = {**dict.fromkeys(names, "unset"), **one["variables"]}
    return together(told)


def _worker(held: Mapping[str, Any]) -> dict[str, Any]:
    """Its facts, each variable once: `variables` are those that it saw, `env` the others that spec and runner named."""
    told, seen = _some(held, _OF_WORKER), section(held, "variables")
    if seen and isinstance(told.get("env"), Mapping):
        told["env"] = {name: value for name, value in told["env"].items() if name not in seen}
    return told


def variables(provenance: Mapping[str, Any]) -> list[str]:
    """Environment variables of a run's workers as NAME=VALUE, all values where workers or attempts differ.

    >>> seen = {"a-1": {"variables": {"NCCL_ALGO": "Tree"}}, "a-2": {"variables": {}}}
    >>> variables({"workers": {"environment": {"a": {"env": {"OWN": "1"}}}, "variables": seen}})
    ['NCCL_ALGO=Tree or unset', 'OWN=1']
    """
    held = _workers(provenance)
    told = {**section(held, "env"), **section(held, "variables")}
    return [
        f"{name}={' or '.join(map(str, value if isinstance(value, list) else [value]))}"
        for name, value in sorted(told.items())
    ]


def _some(held: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: held[name] for name in names if held.get(name) is not None}


def _one_or_all(values: Iterable[Any]) -> Any:
    distinct: list[Any] = []
    for value in values:
        if value not in distinct:
            distinct.append(value)
    return distinct[0] if len(distinct) == 1 else sorted(distinct, key=str) or None


def _values(run: OpenedRun, column: str) -> Any:
    return _one_or_all(run.cells[column].drop_null().unique().to_pylist())


def _providers(run: OpenedRun) -> dict[str, Any]:
    """Kernel -> the package and version that ran it."""
    columns = (run.cells[name].to_pylist() for name in ("kernel", "provider", "provider_version", "status"))
    found: dict[str, list[str]] = {}
    for kernel, provider, version, status in zip(*columns, strict=True):
        if status == "ok" and provider is not None:
            found.setdefault(kernel, []).append(" ".join(filter(None, (provider, version))))
    return {kernel: _one_or_all(dict.fromkeys(names)) for kernel, names in sorted(found.items())}
