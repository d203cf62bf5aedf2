"""What a run was made of: attnspec's own code, the command, the machine. Facts, gathered once per run."""

from __future__ import annotations

import hashlib
import os
import platform
import socket
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attnspec
from attnspec import plugins
from attnspec.launch.found import Found
from attnspec.launch.runner_profile import Runner
from attnspec.record.collect import standing_attempts
from attnspec.record.journal import Journal
from attnspec.wire import WIRE_VERSION

PACKAGE = Path(attnspec.__file__).resolve().parent
ADDING_UP = ("anchor_again", "compile_ahead", "spent")
"""Kinds of notes that tell what one attempt took."""
_OF_CODE = ("attnspec", "code_sha256")
_OF_VARIABLES = ("env", "variables")


def code_sha256(package: Path = PACKAGE) -> str:
    """SHA-256 over the names and contents of all Python files of the package."""
    digest = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(package).as_posix()}\n{len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def git_commit() -> str | None:
    """The commit of the checkout that this package lies in, with `-dirty` when it differs; None outside one."""
    if not (PACKAGE.parent / ".git").exists():
        return None
    try:
        answer = subprocess.run(
            ["git", "-C", str(PACKAGE.parent), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


def gather(
    *,
    argv: Iterable[str],
    runner: Runner,
    found: Found,
    spec_sha256: str,
    settings: Mapping[str, Any],
    code: str,
    images: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Everything about this run that is known before it starts. `settings`: how the spec was changed on the way."""
    return {
        "attnspec": attnspec.__version__,
        "wire_version": WIRE_VERSION,
        "git_commit": git_commit(),
        "code_sha256": code,
        "plugins": {Path(file).name: _sha256(Path(file)) for file in plugins.loaded_files()},
        "command": list(argv),
        "spec_sha256": spec_sha256,
        "settings": dict(settings),
        "images": {name: dict(facts) for name, facts in images.items()},
        "runner": {**runner.model_dump(mode="json"), "file": Path(runner.file).name},
        "host": {
            "name": socket.gethostname(),
            "platform": platform.platform(),
            "machine": platform.machine(),
            "processor": processor(),
            "num_cpus": os.cpu_count(),
            "python": platform.python_version(),
        },
        "found": {
            "python": found.python,
            "versions": dict(found.versions),
            "cuda": found.cuda,
            "driver": found.driver,
            "packages": dict(found.packages),
            "variables": dict(found.variables),
            "devices": [{"model": one.model, "capability": one.capability} for one in found.devices],
        },
    }


def processor() -> str:
    """The processor's model name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def facts_of_workers(journal: Journal) -> dict[str, Any]:
    """The newest note of every kind and writer: environments, bandwidths, anchors, as the workers found them.

    Of what adds up over attempts, every attempt's own, as writer-attempt; so too, as `code`, which state of attnspec's
    code each attempt had that took samples, and, as `variables`, the environment variables of each whose samples stand.
    Of `communication` the newest of every case and pack: case_id -> what `_communication` makes of them.
    """
    newest: dict[str, dict[str, Any]] = {}
    sent: dict[str, dict[int, Mapping[str, Any]]] = {}
    measured = set(journal.timings["attempt"].unique().to_pylist())
    stand = standing_attempts(journal)
    for note in sorted(journal.notes, key=lambda one: one.attempt):  # each writer's stay in the order of their writing
        attempt, data = f"{note.writer}-{note.attempt}", note.data
        if note.kind == "communication":
            sent.setdefault(data["case_id"], {})[data["pack"]] = data
        elif note.kind != "message":
            newest.setdefault(note.kind, {})[attempt if note.kind in ADDING_UP else note.writer] = data
        if note.kind == "environment" and note.attempt in measured and "code_sha256" in data:
            newest.setdefault("code", {})[attempt] = {name: data.get(name) for name in _OF_CODE}
        if note.kind == "environment" and note.attempt in stand and "variables" in data:
            newest.setdefault("variables", {})[attempt] = {name: data.get(name) for name in _OF_VARIABLES}
    if sent:
        newest["communication"] = {case_id: _communication(packs) for case_id, packs in sorted(sent.items())}
    return newest


def _communication(packs: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Bytes planned and counted by pack, and of the last the calls by operator and what was not counted.

    >>> _communication({0: {"case_id": "c", "pack": 0, "planned_bytes": 8, "counted_bytes": 8, "calls": {"send": 1}}})
    {'packs': [0], 'planned_bytes': [8], 'counted_bytes': [8], 'calls': {'send': 1}}
    """
    numbers = sorted(packs)
    told: dict[str, Any] = {"packs": numbers}
    told |= {name: [packs[number][name] for number in numbers] for name in ("planned_bytes", "counted_bytes")}
    return told | {name: packs[numbers[-1]][name] for name in ("calls", "not_counted") if name in packs[numbers[-1]]}


def differences(before: Mapping[str, Any], now: Mapping[str, Any], path: str = "") -> list[str]:
    """What changed between two environments, one line each. Pure.

    >>> differences({"driver": "1", "versions": {"torch": "2.11"}}, {"driver": "2", "versions": {"torch": "2.11"}})
    ['driver: 1 -> 2']
    """
    lines = []
    for name in sorted(before.keys() | now.keys()):
        old, new = before.get(name), now.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            lines += differences(old, new, f"{path}{name}.")
        elif old != new:
            nothing = "unset" if "variable" in f"{path}{name}" else "none"
            told = (nothing if one is None else one for one in (old, new))
            lines.append(f"{path}{name}: {' -> '.join(map(str, told))}")
    return lines
