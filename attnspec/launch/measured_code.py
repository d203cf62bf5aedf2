"""What measured a run, where a folder may hold attempts of several: attnspec's own code, environment variables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def measured_code(provenance: Mapping[str, Any]) -> dict[str, str | None]:
    """SHA-256 of every state of the code that measured, and its commit where that is recorded. Pure.

    The states are those that workers told, else those that runs began with. The commit at the top of a provenance is
    that of the last run, so it counts only where the last run's state is the only one.

    >>> measured_code({"code_sha256": "a", "git_commit": "1"})
    {'a': '1'}
    >>> held = {"code_sha256": "b", "git_commit": "2", "workers": {"code": {"job-rank0-1": {"code_sha256": "a"}}}}
    >>> measured_code(held), measured_code({**held, "runs": [{"code_sha256": "a", "git_commit": "1"}]})
    ({'a': None}, {'a': '1'})
    >>> measured_code({**held, "workers": {"environment": {"old-rank0": {"code_sha256": "c"}}, **held["workers"]}})
    {'c': None, 'a': None}
    """
    runs = list(_mappings(provenance.get("runs")))
    last = list(_texts([provenance], "code_sha256"))
    states = list(dict.fromkeys(_told(provenance, "code_sha256") or [*_texts(runs, "code_sha256"), *last]))
    named = [*([provenance] if states == last else ()), *runs]
    commits = {
        state: commit
        for one in named
        for state in _texts([one], "code_sha256")
        for commit in _texts([one], "git_commit")
    }
    return {state: commits.get(state) for state in states}


def measured_versions(provenance: Mapping[str, Any]) -> list[str]:
    """The versions of attnspec that measured, as workers told them; else that of the last run. Pure.

    >>> measured_versions({"attnspec": "0.2", "workers": {"environment": {"job-rank0": {"attnspec": "0.1"}}}})
    ['0.1']
    """
    return list(dict.fromkeys(_told(provenance, "attnspec") or _texts([provenance], "attnspec")))


def environments(provenance: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What workers found: each worker's newest, once under the variables of each of its attempts whose samples stand.

    Earlier versions kept no attempt's variables; there it is the newest alone. Pure.

    >>> workers = {"environment": {"job-rank0": {"driver": "1", "variables": {}}}}
    >>> environments({"workers": workers})
    [{'driver': '1', 'variables': {}}]
    >>> environments({"workers": {**workers, "variables": {"job-rank0-1": {"variables": {"NCCL_ALGO": "Tree"}}}}})
    [{'driver': '1', 'variables': {'NCCL_ALGO': 'Tree'}}]
    """
    environment, variables = _kinds(provenance, "environment", "variables")
    kept: dict[str, list[Mapping[str, Any]]] = {}
    for attempt, seen in variables.items():
        if isinstance(seen, Mapping):
            kept.setdefault(str(attempt).rpartition("-")[0], []).append(seen)
    found = [(worker, facts) for worker, facts in environment.items() if isinstance(facts, Mapping)]
    return [{**facts, **seen} for worker, facts in found for seen in kept.get(worker, [{}])]


def inherited_variables(provenance: Mapping[str, Any]) -> dict[str, list[str | None]]:
    """What workers had of the host's variables: name -> its values in the attempts whose samples stand, None for unset.

    Told are those that any run of the folder began with, as far as they reached workers: not what case or runner name,
    nor what a launcher sets in their place. Empty where an earlier version kept no attempt's. Pure.

    >>> runs = [{"variables": {"NCCL_ALGO": "Tree", "OMP_NUM_THREADS": "4"}}, {"variables": {}}]
    >>> seen = {"job-rank0-1": {"env": {}, "variables": {"NCCL_ALGO": "Tree", "OMP_NUM_THREADS": "1"}}}
    >>> inherited_variables({"runs": runs, "workers": {"variables": seen}})
    {'NCCL_ALGO': ['Tree']}
    >>> seen["job-rank0-2"] = {"env": {}, "variables": {}}
    >>> inherited_variables({"runs": runs, "workers": {"variables": seen}})
    {'NCCL_ALGO': ['Tree', None], 'OMP_NUM_THREADS': [None]}
    """
    hosts = list(_mappings(one.get("variables") for one in _mappings(provenance.get("runs"))))
    (attempts,) = _kinds(provenance, "variables")
    held: dict[str, dict[str | None, None]] = {}
    for attempt in _mappings(attempts.values()):
        named, seen = (_mapping(attempt.get(key)) for key in ("env", "variables"))
        for name in dict.fromkeys(name for host in hosts for name in host):
            if name not in named and seen.get(name) in [host.get(name) for host in hosts]:
                held.setdefault(name, {})[seen.get(name)] = None
    return {name: list(values) for name, values in held.items()}


def _told(provenance: Mapping[str, Any], name: str) -> list[str]:
    """What workers told: of each attempt that measured, else (earlier versions) in a worker's newest environment."""
    environment, code = _kinds(provenance, "environment", "code")
    attempted = {str(attempt).rpartition("-")[0] for attempt in code}
    alone = [one for worker, one in environment.items() if worker not in attempted]
    return list(_texts(_mappings([*alone, *code.values()]), name))


def _kinds(provenance: Mapping[str, Any], *names: str) -> list[Mapping[str, Any]]:
    """Notes of the workers by kind; empty where they are not what they should be (people edit files)."""
    workers = _mapping(provenance.get("workers"))
    return [_mapping(workers.get(name)) for name in names]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _mappings(values: Any) -> Iterator[Mapping[str, Any]]:
    """Those that are what they should be (people edit files)."""
    yield from (one for one in values or () if isinstance(one, Mapping))


def _texts(held: Any, name: str) -> Iterator[str]:
    yield from (one[name] for one in held if isinstance(one.get(name), str))
