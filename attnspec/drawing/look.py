"""What every figure shares: labels of implementations, names of masks and statuses, and how a picture is described."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnspec.params import switches_said

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """One picture. `stem` is its file name without ending; `caption` says in words what it shows."""

    stem: str
    title: str
    caption: str
    draw: Callable[[], Figure]


def implementation(row: Row) -> str:
    """The label of what a row measured: kernel, backend where one is named, its switches, and strategy.

    >>> implementation({"strategy": None, "kernel": "flex", "backend": "TRITON", "provider": "torch"})
    'flex TRITON'
    >>> implementation({"strategy": "ulysses", "kernel": "fa3", "backend": None, "provider": "flash_attn"})
    'ulysses (fa3)'
    >>> asked = {"strategy": None, "kernel": "sdpa", "backend": "efficient", "kernel_params": '{"kv_repeat":true}'}
    >>> implementation(asked)
    'sdpa efficient kv_repeat'
    """
    switches = switches_said(json.loads(row.get("kernel_params") or "{}"))
    kernel = " ".join(part for part in (row["kernel"], row["backend"], switches) if part)
    if row["strategy"]:
        return f"{row['strategy']} ({kernel})"
    return kernel


_ASKED = (
    *("mask", "mask_params", "pass", "seqlen", "cp_size"),
    *("batch", "num_heads_q", "num_heads_kv", "head_dim", "dtype"),
)
_WORKLOAD = ("device", *_ASKED)


def labelled(rows: Sequence[Row]) -> list[tuple[str, Row]]:
    """Rows with their labels: `implementation`, and what else tells rows of one picture apart.

    A case that never ran has no backend; where its kernel ran with one backend only, it belongs to that line.

    >>> ran = {"kernel": "sdpa", "strategy": None, "backend": "math", "provider": "torch", "mesh": None, "env": "{}"}
    >>> [label for label, _ in labelled([ran, {**ran, "backend": None}])]
    ['sdpa math', 'sdpa math']
    >>> [label for label, _ in labelled([ran, {**ran, "provider": "other"}])]
    ['sdpa math (torch)', 'sdpa math (other)']
    >>> [label for label, _ in labelled([{**ran, "kernel_params": text} for text in ('{"block":1}', '{"block":2}')])]
    ['sdpa math (block 1)', 'sdpa math (block 2)']

    Rows of several runs that hold the same case on the same device, or would stand at one place of a picture, are told
    apart by their `run`. What was predicted says so.

    Cases of one workload that nothing tells apart, as sdpa and sdpa flash where sdpa chose flash, are numbered in the
    order of the spec.

    >>> [label for label, _ in labelled([{**ran, "case_id": text} for text in ("c1", "c2")])]
    ['sdpa math (1 of 2)', 'sdpa math (2 of 2)']
    """
    whole = _with_backends(rows)
    labels = _told_apart(whole)
    # Beside a case that has this backend, one without is none of that line.
    whole = [
        row if len(cases) > 1 else lent
        for row, lent, cases in zip(rows, whole, _cases_of_places(labels, whole), strict=True)
    ]
    labels = _told_apart(whole)
    numbered = [
        _with([f"{cases.index(row.get('case_id')) + 1} of {len(cases)}"], text) if len(cases) > 1 else text
        for text, row, cases in zip(labels, whole, _cases_of_places(labels, whole), strict=True)
    ]
    return list(zip(numbered, whole, strict=True))


def _cases_of_places(labels: Sequence[str], rows: Sequence[Row]) -> list[list[Any]]:
    """For each row the case_ids of all that share its label, run and workload, in their order."""
    # A case that never ran has no device, so its device says nothing about its place.
    places = [(text, *(row.get(name) for name in ("run", *_ASKED))) for text, row in zip(labels, rows, strict=True)]
    held: dict[tuple[Any, ...], dict[Any, None]] = {}
    for place, row in zip(places, rows, strict=True):
        held.setdefault(place, {})[row.get("case_id")] = None
    return [list(held[place]) for place in places]


def _told_apart(whole: Sequence[Row]) -> list[str]:
    """The labels, with what a row has in its columns that tells it from others of its implementation."""
    kinds: dict[str, dict[str, set[str]]] = {}
    meshes: dict[tuple[Any, ...], set[str]] = {}
    runs: dict[tuple[str, str | None, str | None], set[str]] = {}
    for row in whole:
        base = implementation(row)
        held = kinds.setdefault(base, {name: set() for name in ("provider", "kernel_params", "env")})
        for name, values in held.items():
            if row.get(name) is not None:
                values.add(row[name])
        # Degrees follow the number of ranks and groups the documents, so they tell cases of one workload apart only.
        # A case that never ran may have none.
        place = (base, *(row.get(name) for name in _WORKLOAD))
        meshes.setdefault(place, set()).update({row.get("mesh") or "{}"} - {"{}"})
        same = (base, row.get("case_id"), row.get("device"))
        runs.setdefault(same, set()).update({row["run"]} if row.get("run") else ())
    crowded = {base for (base, *_), held in meshes.items() if len(held) > 1}
    repeated = {base for (base, *_), held in runs.items() if len(held) > 1}

    def told(row: Row) -> tuple[str, list[str]]:
        base = implementation(row)
        telling = [name for name, values in kinds[base].items() if len(values) > 1]
        telling += ["mesh"] if base in crowded else []
        telling += ["run"] if base in repeated else []
        if row.get("source") == "predicted":
            telling.append("source")
        return base, [name for name in telling if row.get(name) not in (None, "{}")]

    def label(row: Row, *more: str) -> str:
        base, telling = told(row)
        return _with([worded(row[name]) for name in dict.fromkeys((*telling, *more))], base)

    labels = [label(row) for row in whole]
    # Cases of other packs have another case_id, and yet the same place.
    sharing: dict[tuple[Any, ...], set[str]] = {}
    for text, row in zip(labels, whole, strict=True):
        if row.get("status") != "skipped" and row.get("run"):
            sharing.setdefault((text, *(row.get(name) for name in _WORKLOAD)), set()).add(row["run"])
    shared = {text for (text, *_), held in sharing.items() if len(held) > 1}
    return [
        label(row, "run") if text in shared and row.get("run") else text
        for text, row in zip(labels, whole, strict=True)
    ]


def _with(more: Sequence[str], base: str) -> str:
    """What tells a label apart, in one pair of parentheses at its end."""
    if not more:
        return base
    return f"{base[:-1]}, {', '.join(more)})" if base.endswith(")") else f"{base} ({', '.join(more)})"


def worded(value: str) -> str:
    """A label's part: names as they are, JSON objects as `key value`."""
    if not value.startswith("{"):
        return value
    try:
        return ", ".join(f"{key} {held}" for key, held in json.loads(value).items())
    except json.JSONDecodeError:
        return value


def _with_backends(rows: Sequence[Row]) -> list[Row]:
    seen: dict[tuple[str, str | None], set[str]] = {}
    for row in rows:
        seen.setdefault((row["kernel"], row["strategy"]), set()).update({row["backend"]} - {None})
    return [
        {**row, "backend": next(iter(held))}
        if row["backend"] is None and len(held := seen[row["kernel"], row["strategy"]]) == 1
        else row
        for row in rows
    ]


MASK_TITLES = {
    "full": "full",
    "causal": "causal",
    "varlen_full": "varlen full",
    "varlen_causal": "varlen causal",
    "sliding_window_causal": "sliding window causal",
    "varlen_block_causal": "varlen block causal",
}
PASS_TITLES = {"fwd": "forward", "bwd": "backward", "fwd_bwd": "forward and backward"}
STATUS_MARKS = {
    "unsupported": "X",
    "oom": "M",
    "wrong": "W",
    "timeout": "T",
    "crashed": "C",
    "error": "E",
    "skipped": "-",
}
STATUS_WORDS = "X unsupported, M out of memory, W wrong, T timeout, C crashed, E error, - not run"


def mask_title(mask: str, mask_params: str) -> str:
    """A mask's name for people, with its parameters.

    >>> mask_title("sliding_window_causal", '{"window":1024}')
    'sliding window causal (window 1024)'
    """
    name = MASK_TITLES.get(mask, mask.replace("_", " "))
    params = json.loads(mask_params)
    short = [f"{key} {value}" for key, value in params.items() if isinstance(value, int | float | str)]
    return f"{name} ({', '.join(short)})" if short else name
