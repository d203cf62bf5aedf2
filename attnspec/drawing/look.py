"""What every figure shares: labels, one colour, hatch and marker per implementation, and how a picture is described.

Colours come from Okabe and Ito's palette for colour-blind readers (2008), extended by two; hatches and markers keep
neighbours apart in greyscale.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnspec.params import switches_said

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = Mapping[str, Any]

_COLOURS = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#CC79A7",
    "#56B4E9",
    "#8C6D1F",
    "#6A51A3",
    "#7F7F7F",
    "#B8A900",
    "#1B4F72",
    "#A93226",
)
_HATCHES = ("", "//", "..", "\\\\", "xx", "--", "||", "++")
_MARKERS = "osD^vP<>X*hp"
# A family of implementations keeps its colour over all figures and runs, whatever else is drawn beside it.
_FAMILIES = (
    "ffa",
    "fa2",
    "fa3",
    "fa4",
    "cudnn",
    "sdpa",
    "flex",
    "flash_mask",
    "reference",
    "ffa_fa4",
    "ring_p2p",
    "ring_allgather",
    "ulysses",
    "usp",
    "loongtrain",
    "hybrid_dcp",
    "magi_attn_a2av",
    "magi_attn_native",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How one implementation appears in every figure."""

    colour: str
    hatch: str
    marker: str


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


def labelled(rows: Sequence[Row]) -> list[tuple[str, Row]]:
    """Rows with their labels: `implementation`, and what else tells rows of one picture apart.

    A case that never ran has no backend; where its kernel ran with one backend only, it belongs to that line.

    >>> ran = {"kernel": "sdpa", "strategy": None, "backend": "math", "provider": "torch", "mesh": None, "env": "{}"}
    >>> [label for label, _ in labelled([ran, {**ran, "backend": None}])]
    ['sdpa math', 'sdpa math']
    >>> [label for label, _ in labelled([ran, {**ran, "provider": "other"}])]
    ['sdpa math, torch', 'sdpa math, other']
    >>> [label for label, _ in labelled([{**ran, "kernel_params": text} for text in ('{"block":1}', '{"block":2}')])]
    ['sdpa math, {"block":1}', 'sdpa math, {"block":2}']
    """
    whole = _with_backends(rows)
    kinds: dict[str, dict[str, set[str]]] = {}
    meshes: dict[tuple[str, int | None, int | None], set[str]] = {}
    for row in whole:
        base = implementation(row)
        held = kinds.setdefault(base, {name: set() for name in ("provider", "kernel_params", "env")})
        for name, values in held.items():
            if row.get(name) is not None:
                values.add(row[name])
        # Degrees follow the number of ranks, so they tell cases apart only where these have one number.
        place = (base, row.get("cp_size"), row.get("seqlen"))
        meshes.setdefault(place, set()).update({row["mesh"]} - {None})
    crowded = {base for (base, *_), held in meshes.items() if len(held) > 1}

    def label(row: Row) -> str:
        base = implementation(row)
        telling = [name for name, values in kinds[base].items() if len(values) > 1]
        telling += ["mesh"] if base in crowded else []
        return ", ".join([base, *(row[name] for name in telling if row.get(name) not in (None, "{}"))])

    return [(label(row), row) for row in whole]


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


def looks(labels: Iterable[str]) -> dict[str, Look]:
    """A look per label. A family keeps its colour; members of one family differ by hatch and marker."""
    chosen: dict[str, Look] = {}
    members: dict[str, int] = {}
    for label in labels:
        family = _family(label)
        index = _FAMILIES.index(family) if family in _FAMILIES else sum(map(ord, family))
        member = members.get(family, 0)
        members[family] = member + 1
        chosen[label] = Look(
            colour=_COLOURS[index % len(_COLOURS)],
            hatch=_HATCHES[(member + index // len(_COLOURS)) % len(_HATCHES)],
            marker=_MARKERS[(index + member) % len(_MARKERS)],
        )
    return chosen


def _family(label: str) -> str:
    return label.split(" ")[0].rstrip(",")


def ordered(labels: Iterable[str]) -> list[str]:
    """Distinct labels, families in their fixed order, then by name."""

    def key(label: str) -> tuple[int, str]:
        family = _family(label)
        return (_FAMILIES.index(family) if family in _FAMILIES else len(_FAMILIES), label)

    return sorted(set(labels), key=key)


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
    import json

    name = MASK_TITLES.get(mask, mask.replace("_", " "))
    params = json.loads(mask_params)
    short = [f"{key} {value}" for key, value in params.items() if isinstance(value, int | float | str)]
    return f"{name} ({', '.join(short)})" if short else name
