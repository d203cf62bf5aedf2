"""What the tables of a distributed run say, as Markdown for a page of results; like `attnspec.report.results`.

Throughput is per GPU. "The same algorithm" pairs each of our strategies with a library's version of it that ran the
same kernel through the same package on the same tensors.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pyarrow.compute as pc

from attnspec.drawing.look import Row, labelled, mask_title
from attnspec.drawing.palette import ordered
from attnspec.drawing.throughput import point_of, published_points
from attnspec.record.rounds import packs_of
from attnspec.report.published import published
from attnspec.report.ratios import Pack, Ratio, case_time, ratios
from attnspec.report.results import table, table_of_outcomes
from attnspec.report.run import open_run
from attnspec.report.summary import figure
from attnspec.report.whole_rounds import samples_by_case, whole_packs
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
    """Ours beside a library's version of the same algorithm, over 1 where ours takes less.

    Intervals of all pairs hold at once (`attnspec.report.ratios`). Cycles are time x SM clock of each iteration.
    """
    lines = []
    for pair in _pairs(folder):
        ours = pair.ours
        lines.append(
            (
                *(_mask(ours), ours["pass"], format_count(ours["seqlen_per_rank"])),
                *(ours["strategy"], pair.theirs["strategy"], ours["kernel"]),
                pair.both("tflops_per_gpu", figure),
                *(_shown(pair.time), "" if pair.cycles is None else _shown(pair.cycles)),
                *(pair.both("sm_clock_mhz", "{:.0f}".format), pair.both("host_ms", figure)),
                pair.both("comm_bytes", lambda count: f"{count / 1e6:.0f}"),
                pair.both("load_imbalance", "{:.2f}".format),
            )
        )
    if not lines:
        return "Not measured.\n"
    head = ("mask", "pass", "tokens per rank", "ours", "theirs", "kernel", "TFLOP/s per GPU, ours / theirs")
    ratio = ("theirs / ours, time", "in cycles", "SM clock, MHz", "host, ms", "sent, MB", "load imbalance")
    return table((*head, *ratio), lines)


def told_apart(folder: str) -> str:
    """How many pairs of `same_algorithm` say what, by kernel and unit."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for pair in _pairs(folder):
        for unit, ratio in (("time", pair.time), ("cycles", pair.cycles)):
            if ratio is not None:
                said = "less" if ratio.low > 1 else "more" if ratio.high < 1 else "open"
                counts.setdefault((pair.ours["kernel"], unit), Counter())[said] += 1
    if not counts:
        return "Not measured.\n"
    lines = [
        (kernel, unit, *(str(held[said]) for said in ("less", "open", "more")))
        for (kernel, unit), held in counts.items()
    ]
    return table(("kernel", "in", "ours takes less", "not told apart", "ours takes more"), lines)


def statuses(folder: str) -> str:
    """How the cases of every implementation ended, and why those that were neither ok nor skipped."""
    return table_of_outcomes(_rows(folder))


def _over_places(head: str, folder: str, found: Mapping[str, Mapping[tuple[str, str], str]]) -> str:
    """A line of every label, a column of every mask and pass."""
    if not found:
        return "Not measured.\n"
    columns = sorted({place for held in found.values() for place in held}, key=lambda place: _order(folder, place))
    lines = [(label, *(found[label].get(place, "") for place in columns)) for label in ordered(found)]
    return table((head, *(f"{mask}, {pass_}" for mask, pass_ in columns)), lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """theirs and ours: cells. time, cycles: theirs over ours; cycles None where a clock was not read."""

    theirs: Row
    ours: Row
    time: Ratio
    cycles: Ratio | None

    def both(self, name: str, show: Callable[[float], str]) -> str:
        """A column of ours and of theirs; nothing where one has no value."""
        values = [row[name] for row in (self.ours, self.theirs)]
        return "" if None in values else " / ".join(map(show, values))


@cache
def _pairs(folder: str) -> tuple[Pair, ...]:
    """All that are ok, in the order of lengths, masks and passes."""
    done = [row for _, row in _rows(folder) if row["status"] == "ok"]
    ours: dict[tuple[object, ...], Row] = {}
    for row in sorted(done, key=lambda row: row["strategy"] == "usp"):  # stands for another only where that was not run
        if row["strategy"] not in PEERS:
            ours.setdefault((_algorithm(row["strategy"], row), *_ask(row)), row)
    theirs = [row for row in done if row["strategy"] in PEERS]
    order = sorted(theirs, key=lambda row: (row["seqlen"], _order(folder, (_mask(row), row["pass"])), row["strategy"]))
    found = [(row, ours.get((_algorithm(PEERS[row["strategy"]], row), *_ask(row)))) for row in order]
    rows = [(row, mine) for row, mine in found if mine is not None]
    times, cycles = _times(folder, [row for pair in rows for row in pair])

    def held(packs: Mapping[str, Sequence[Pack]]) -> dict[str, Ratio]:
        known = [(row, mine) for row, mine in rows if {row["case_id"], mine["case_id"]} <= packs.keys()]
        made = ratios([(packs[mine["case_id"]], packs[row["case_id"]]) for row, mine in known])
        return {row["case_id"]: ratio for (row, _), ratio in zip(known, made, strict=True)}

    by_time, by_cycles = held(times), held(cycles)
    return tuple(
        Pair(theirs=row, ours=mine, time=by_time[row["case_id"]], cycles=by_cycles.get(row["case_id"]))
        for row, mine in rows
    )


def _times(folder: str, rows: Sequence[Row]) -> tuple[dict[str, Sequence[Pack]], dict[str, Sequence[Pack]]]:
    """case_id -> its packs in ns, and in cycles where every sample has a clock."""
    run = open_run(Path(folder))
    times: dict[str, Sequence[Pack]] = {}
    cycles: dict[str, Sequence[Pack]] = {}
    by_id = {row["case_id"]: row for row in rows}
    for case_id, samples in samples_by_case(run, by_id, columns=["sm_clock_mhz"]):
        row = by_id[case_id]
        times[case_id] = case_time(whole_packs(run, row, samples), name=case_id)
        if samples["sm_clock_mhz"].null_count == 0:
            ticks = pc.multiply(samples["elapsed_ns"].cast("double"), samples["sm_clock_mhz"])
            packs = packs_of(samples.append_column("cycles", ticks), "cycles", row["cp_size"])
            cycles[case_id] = case_time([list(rounds) for rounds in packs], name=case_id)
    return times, cycles


def _shown(ratio: Ratio) -> str:
    """A ratio, with a mark where its interval holds 1."""
    return f"{ratio.ratio:.3f}" if ratio.low > 1 or ratio.high < 1 else f"~ {ratio.ratio:.3f}"


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
