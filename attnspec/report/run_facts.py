"""What the page says of one run: the facts of its provenance that a reader asks for first."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attnspec.launch.measured_code import measured_code, measured_versions
from attnspec.launch.rehearsal import is_rehearsal
from attnspec.report.environment import variables

_FILES = ("cells.parquet", "timings.parquet", "provenance.json", "spec.yaml", "plan.json")
_LONGEST_RECORD = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """facts: name and value, in order. links: file name and relative address. record: the provenance as text.

    rehearsed: whether the run was a rehearsal.
    """

    name: str
    rehearsed: bool
    facts: tuple[tuple[str, str], ...]
    links: tuple[tuple[str, str], ...]
    record: str


def run_facts(
    name: str, folder: Path, out_dir: Path, content: Mapping[str, Any], packs_problem: str | None = None
) -> RunFacts:
    """The facts of the provenance of a run folder or export; what a record lacks is left out.

    packs_problem: why the run's packs could not be read back, if they could not.
    """
    files = [folder] if folder.is_file() else [folder / name for name in _FILES if (folder / name).is_file()]
    links = [(file.name, _address(file, out_dir)) for file in files]
    told = _given("packs", packs_problem and f"not drawn: {packs_problem}")
    return RunFacts(
        name=name,
        rehearsed=is_rehearsal(content),
        facts=(*_facts(content), *told),
        links=tuple(links),
        record=_record(content),
    )


def _record(content: Mapping[str, Any]) -> str:
    """The whole provenance as indented JSON, cut where it would weigh the page down."""
    whole = json.dumps(content, indent=1)
    return whole if len(whole) <= _LONGEST_RECORD else f"{whole[:_LONGEST_RECORD]}\n... cut; whole in provenance.json"


def _facts(content: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    found, host, runner = (_mapping(content.get(key)) for key in ("found", "host", "runner"))
    yield from _given("attnspec", ", ".join(measured_versions(content)))
    yield from _code(measured_code(content))
    yield from _given("sha256 of the spec", content.get("spec_sha256"))
    command = content.get("command")
    if isinstance(command, list):
        yield "command", shlex.join(map(str, command))
    runs = [_mapping(one) for one in content.get("runs") or () if isinstance(one, Mapping)]
    started = [one["started_ns"] for one in runs if isinstance(one.get("started_ns"), int)]
    ended = [one["ended_ns"] for one in runs if isinstance(one.get("ended_ns"), int)]
    if started:
        yield "began", _moment(min(started))
    if ended:
        yield "ended", f"{_moment(max(ended))}, after {len(runs)} {'invocation' if len(runs) == 1 else 'invocations'}"
    yield from _given("runner", runner.get("name"))
    yield from _given("image", _mapping(content.get("planned_for")).get("image") or runner.get("image"))
    yield from _given("host", host.get("name"))
    yield from _given("platform", host.get("platform"))
    yield from _given("processor", host.get("processor"))
    devices = [str(_mapping(one).get("model")) for one in found.get("devices") or ()]
    if devices:
        counts = {model: devices.count(model) for model in dict.fromkeys(devices)}
        yield "devices", ", ".join(f"{count} x {model}" for model, count in counts.items())
    yield from _given("Python of the worker", found.get("python"))
    versions = _mapping(found.get("versions"))
    if versions:
        yield "versions", ", ".join(f"{package} {version}" for package, version in versions.items())
    yield from _given("CUDA", found.get("cuda"))
    workers = [*map(_mapping, _mapping(_mapping(content.get("workers")).get("environment")).values())]
    for worker in workers[:1]:
        cuda = _mapping(worker.get("cuda"))
        known = [f"{name} {cuda[name]}" for name in ("driver", "cudnn", "nccl", "power_limit_w") if cuda.get(name)]
        if known:
            yield "worker", ", ".join(known)
    yield from _given("environment variables", ", ".join(variables(content)))


def _code(states: Mapping[str, str | None]) -> Iterator[tuple[str, str]]:
    """Each state beside its own commit where there are several: none stands for the whole folder."""
    if len(states) == 1:
        yield from _given("git commit", *states.values())
        yield from _given("sha256 of the code", *states)
    elif states:
        told = (f"{state} (commit {commit})" if commit else state for state, commit in states.items())
        yield f"sha256 of the code, {len(states)} states", ", ".join(told)


def _given(name: str, value: object) -> Iterator[tuple[str, str]]:
    if value not in (None, ""):
        yield name, str(value)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _moment(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns / 1e9, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _address(file: Path, out_dir: Path) -> str:
    """A relative address of a file for a page in a folder, with signs that an address cannot hold escaped."""
    from urllib.parse import quote

    return quote(os.path.relpath(file.resolve(), out_dir.resolve()).replace(os.sep, "/"), errors="surrogateescape")
