"""What the tables of a distributed run say, as Markdown for a page of results; like `attnspec.report.results`.

Throughput is per GPU. "The same algorithm" pairs each of our strategies with a library's version of it that ran the
same kernel through the same package on the same tensors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from attnspec.drawing.look import Row, labelled, mask_title
from attnspec.drawing.palette import ordered
from attnspec.drawing.throughput import point_of, published_points
from attnspec.report.published import published
from attnspec.report.results import table
from attnspec.report.run import open_run
from attnspec.report.summary import figure
from attnspec.shape import PASSES
from attnspec.units import format_count

PEERS = {
    "te_p2p": "ring_p2p",
    "te_all_gather": "ring_allgather",
    "te_a2a": "ulysses",
    "te_a2a_p2p": "usp",
    "ring_flash_attn_zigzag": "ring_p2p",
    "ring_flash_attn_llama3": "ring_allgather",
    "yunchang_usp": "usp",
}
"""A library's strategy -> ours of the same algorithm; a mesh that is all heads or all ring is that of `MESHES`."""
MESHES = {"ring_degree": "ulysses", "ulysses_degree": "ring_p2p"}
"""A degree of usp -> what it is where that is 1."""


@cache
def _rows(folder: str) -> tuple[tuple[str, Row], ...]:
    return tuple(labelled([row for row in open_run(Path(folder)).cells.to_pylist() if row["level"] == "distributed"]))


def throughput_per_gpu(folder: str, cp_size: str, seqlen_per_rank: str) -> str:
    """TFLOP/s per GPU of every implementation over masks and passes; else its status, nothing where it was not run."""
    found: dict[str, dict[tuple[str, str], str]] = {}
    for label, row in _rows(folder):
        here = str(row["cp_size"]) == cp_size and format_count(row["seqlen_per_rank"]) == seqlen_per_rank
        if here and row["status"] != "skipped":
            shown = figure(row["tflops_per_gpu"]) if row["status"] == "ok" else row["status"]
            found.setdefault(label, {})[_mask(row), row["pass"]] = shown
    return _over_places("TFLOP/s per GPU", folder, found)


def beside_published(folder: str, cp_size: str) -> str:
    """TFLOP/s per GPU, measured / published, where the page shows the strategy on a device of the same class."""
    points = published_points(published().to_pylist())
    found: dict[str, dict[tuple[str, str], str]] = {}
    for label, row in _rows(folder):
        point = points.get(point_of(row)) if row["status"] == "ok" and str(row["cp_size"]) == cp_size else None
        if point is not None and point["tflops_per_gpu"] is not None:
            ours, theirs = row["tflops_per_gpu"], point["tflops_per_gpu"]
            shown = f"{figure(ours)} / {figure(theirs)} = {ours / theirs:.2f}"
            found.setdefault(label, {})[_mask(row), row["pass"]] = shown
    return _over_places("measured / published", folder, found)


def same_algorithm(folder: str) -> str:
    """Ours beside a library's version of the same algorithm: time of theirs over time of ours, over 1 where we win."""
    lines = []
    for theirs, ours in _pairs(folder):
        ratio = theirs["time_ms_median"] / ours["time_ms_median"]
        apart = theirs["time_ms_ci_low"] > ours["time_ms_ci_high"] or theirs["time_ms_ci_high"] < ours["time_ms_ci_low"]
        place = _mask(ours), ours["pass"], format_count(ours["seqlen_per_rank"])
        speeds = figure(ours["tflops_per_gpu"]), figure(theirs["tflops_per_gpu"])
        shown = f"{ratio:.3f}" if apart else f"{ratio:.3f} (intervals meet)"
        lines.append((*place, ours["strategy"], theirs["strategy"], ours["kernel"], *speeds, shown))
    if not lines:
        return "Not measured.\n"
    head = ("mask", "pass", "tokens per rank", "ours", "theirs", "kernel", "ours, TFLOP/s per GPU", "theirs")
    return table((*head, "theirs / ours, time"), lines)


def statuses(folder: str) -> str:
    """How the cases of every implementation ended, and the first reason of each that was neither ok nor skipped."""
    counts: dict[str, dict[str, int]] = {}
    why: dict[tuple[str, str], str] = {}
    for label, row in _rows(folder):
        held = counts.setdefault(label, {})
        held[row["status"]] = held.get(row["status"], 0) + 1
        if row["status"] not in ("ok", "skipped"):
            why.setdefault((label, row["status"]), (row["reason"] or "").strip().partition("\n")[0])
    lines = [
        (
            label,
            ", ".join(f"{count} {status}" for status, count in counts[label].items()),
            "; ".join(f"{status}: {why[label, status]}" for status in counts[label] if (label, status) in why),
        )
        for label in ordered(counts)
    ]
    return table(("implementation", "cases", "why"), lines)


def _over_places(head: str, folder: str, found: Mapping[str, Mapping[tuple[str, str], str]]) -> str:
    """A line of every label, a column of every mask and pass."""
    if not found:
        return "Not measured.\n"
    columns = sorted({place for held in found.values() for place in held}, key=lambda place: _order(folder, place))
    lines = [(label, *(found[label].get(place, "") for place in columns)) for label in ordered(found)]
    return table((head, *(f"{mask}, {pass_}" for mask, pass_ in columns)), lines)


def _pairs(folder: str) -> Iterator[tuple[Row, Row]]:
    """(theirs, ours), both ok, in the order of masks, passes and lengths."""
    done = [row for _, row in _rows(folder) if row["status"] == "ok"]
    ours = {(_algorithm(row["strategy"], row), *_ask(row)): row for row in done if row["strategy"] not in PEERS}
    theirs = [row for row in done if row["strategy"] in PEERS]
    order = sorted(theirs, key=lambda row: (row["seqlen"], _order(folder, (_mask(row), row["pass"])), row["strategy"]))
    for row in order:
        found = ours.get((_algorithm(PEERS[row["strategy"]], row), *_ask(row)))
        if found is not None:
            yield row, found


def _algorithm(strategy: str, row: Row) -> tuple[str, str | None]:
    """What a strategy comes to on its mesh, and the mesh of a usp that is both."""
    if strategy != "usp":
        return strategy, None
    mesh = json.loads(row["mesh"] or "{}")
    alone = next((name for degree, name in MESHES.items() if mesh.get(degree) == 1), None)
    return (strategy, row["mesh"]) if alone is None else (alone, None)


def _ask(row: Row) -> tuple[object, ...]:
    """What two cases have in common that differ in the strategy alone."""
    names = ("kernel", "backend", "provider", "mask", "mask_params", "pass", "seqlen", "cp_size", "env")
    return tuple(row[name] for name in names)


def _mask(row: Row) -> str:
    return mask_title(row["mask"], row["mask_params"])


def _order(folder: str, place: tuple[str, str]) -> tuple[int, int]:
    masks = list(dict.fromkeys(_mask(row) for _, row in _rows(folder)))
    return masks.index(place[0]), PASSES.index(place[1])
