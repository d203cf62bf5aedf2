"""What the tables of a kernel run say, as Markdown for a page of results: every number is read from the tables.

Each function takes a folder that `attnspec.open_run` opens and returns one table, or one line where there is nothing to
tell. A page holds their output between marks, and a test makes it again (tests/docs/test_pages.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from attnspec.drawing.look import Row, labelled, mask_title
from attnspec.drawing.palette import ordered
from attnspec.report.published import published
from attnspec.report.reasons import reasons_told
from attnspec.report.run import OpenedRun, open_run
from attnspec.report.standings import meets
from attnspec.report.summary import figure
from attnspec.shape import PASSES
from attnspec.units import format_count

LONG_SEQLEN = 8192
"""From here on a case takes long enough for its figures to be judged."""
SHORT_SEQLEN = 2048
"""Up to here many launches take longer than the device."""
MISS_SHARE = 0.05
MISS_IN_CYCLES = 0.01
MOST_SPREAD = 0.03
MOST_LINES = 20
MOST_TIED = 2
"""Named beside a winner; of more only how many."""
CLOCK_STEP_MHZ = 100


@cache
def _opened(folder: str) -> tuple[OpenedRun, tuple[tuple[str, Row], ...]]:
    run = open_run(Path(folder))
    return run, tuple(labelled([row for row in run.cells.to_pylist() if row["level"] == "kernel"]))


def fastest(folder: str) -> str:
    """Who is fastest and how fast, by mask and pass over seqlen; after ~ who cannot be told apart (intervals meet)."""
    _, rows = _opened(folder)
    held: dict[tuple[str, str], dict[int, list[tuple[str, Row]]]] = {}
    for label, row in _ok(rows):
        held.setdefault((_mask(row), row["pass"]), {}).setdefault(row["seqlen"], []).append((label, row))
    return _over_seqlen(
        "mask, pass (TFLOP/s)",
        {
            f"{mask}, {pass_}": {seqlen: _first_of(contest) for seqlen, contest in contests.items()}
            for (mask, pass_), contests in sorted(held.items(), key=lambda item: _rank(rows, *item[0]))
        },
    )


def _first_of(contest: Sequence[tuple[str, Row]]) -> str:
    """The fastest with its throughput, and after ~ those whose intervals meet its own, the faster first."""
    (winner, best), *others = sorted(contest, key=lambda one: -one[1]["tflops"])
    tied = [label for label, row in others if meets(row, best)]
    shown = tied[:MOST_TIED] + ([f"{len(tied) - MOST_TIED} more"] if len(tied) > MOST_TIED else [])
    return f"{winner} {figure(best['tflops'])}" + (f" ~ {', '.join(shown)}" if shown else "")


def clock_made_winners(folder: str) -> str:
    """Where another than the fastest takes over 1 percent fewer cycles, time x SM clock: a higher clock decided."""
    _, rows = _opened(folder)
    contests: dict[tuple[str, str, int], list[tuple[str, Row]]] = {}
    for label, row in _ok(rows):
        if row["sm_clock_mhz"] is not None:
            contests.setdefault((_mask(row), row["pass"], row["seqlen"]), []).append((label, row))

    def shown(label: str, row: Row) -> str:
        return f"{label} {figure(row['tflops'])} at {row['sm_clock_mhz']:.0f} MHz"

    lines = []
    for (mask, pass_, seqlen), held in sorted(contests.items(), key=lambda item: item[0][2]):
        winner = max(held, key=lambda one: one[1]["tflops"])
        ahead = min(held, key=lambda one: _cycles(one[1]))
        share = _cycles(ahead[1]) / _cycles(winner[1]) - 1
        if share < -MISS_IN_CYCLES:
            lines.append((f"{mask}, {pass_}", format_count(seqlen), shown(*winner), shown(*ahead), f"{share:.1%}"))
    told = f"{len(lines)} of {len(contests)} winners"
    if not lines:
        return f"{told} rest on a higher clock.\n"
    head = ("mask, pass", "seqlen", "fastest, TFLOP/s", "fewest cycles, TFLOP/s", "cycles against the fastest")
    return f"{told} rest on a higher clock, where another takes over 1 percent fewer cycles:\n\n{table(head, lines)}"


def _cycles(row: Row) -> float:
    """Of one workload, in a unit of its own."""
    return float(row["sm_clock_mhz"] / row["tflops"])


def host_made_winners(folder: str) -> str:
    """Where another than the fastest is first at 1K and 2K by what takes longer, the device or the host's launch."""
    _, rows = _opened(folder)
    contests: dict[tuple[str, str, int], list[tuple[str, Row]]] = {}
    for label, row in _ok(rows):
        if row["seqlen"] <= SHORT_SEQLEN and row["host_ms"] is not None:
            contests.setdefault((_mask(row), row["pass"], row["seqlen"]), []).append((label, row))

    def shown(label: str, row: Row) -> str:
        return f"{label} {figure(row['time_ms_median'])}, {figure(row['host_ms'])}"

    lines = []
    for (mask, pass_, seqlen), held in sorted(contests.items(), key=lambda one: (one[0][2], *_rank(rows, *one[0][:2]))):
        winner = max(held, key=lambda one: one[1]["tflops"])
        ahead = min(held, key=lambda one: _longer_ms(one[1]))
        if _longer_ms(ahead[1]) < _longer_ms(winner[1]):
            lines.append((f"{mask}, {pass_}", format_count(seqlen), shown(*winner), shown(*ahead)))
    told = f"In {len(lines)} of {len(contests)} workloads another is first by the longer of the two"
    if not lines:
        return f"{told}.\n"
    head = ("mask, pass", "seqlen", "first by device time: device, host, ms", "first by the longer: device, host, ms")
    return f"{told}:\n\n{table(head, lines)}"


def _longer_ms(row: Row) -> float:
    return float(max(row["time_ms_median"], row["host_ms"]))


def throughput(folder: str, mask: str, pass_: str) -> str:
    """TFLOP/s of every implementation over seqlen; else its status, and nothing where it was not run."""
    _, rows = _opened(folder)
    found: dict[str, dict[int, str]] = {}
    for label, row in rows:
        if (row["mask"], row["pass"]) == (mask, pass_) and row["status"] != "skipped":
            found.setdefault(label, {})[row["seqlen"]] = (
                figure(row["tflops"]) if row["status"] == "ok" else row["status"]
            )
    return _over_seqlen("TFLOP/s", {label: found[label] for label in ordered(found)})


def published_misses(folder: str) -> str:
    """Where the best variant of a kernel is over 5 percent below what the published page has on H100, from 8K."""
    _, rows = _opened(folder)
    best: dict[tuple[object, ...], tuple[float, str]] = {}
    for label, row in _ok(rows):
        best[_point(row)] = max(best.get(_point(row), (0.0, "")), (row["tflops"], label))
    compared, misses = 0, []
    for row in published().to_pylist():
        wanted = row["level"] == "kernel" and row["device"] == "h100" and row["seqlen"] >= LONG_SEQLEN
        if not wanted or row["status"] != "ok" or _point(row) not in best:
            continue
        value, label = best[_point(row)]
        compared += 1
        if value < (1 - MISS_SHARE) * row["tflops"]:
            size = format_count(row["seqlen"])
            shown = (label, _mask(row), row["pass"], size, figure(value), figure(row["tflops"]))
            misses.append((*shown, f"{value / row['tflops'] - 1:.0%}"))
    told = f"{len(misses)} of {compared} compared figures"
    if not misses:
        return f"{told} are more than 5 percent below the published page's.\n"
    head = ("implementation", "mask", "pass", "seqlen", "measured", "published", "difference")
    return f"{told} are more than 5 percent below the published page's:\n\n{table(head, misses)}"


def stability(folder: str) -> str:
    """How far the middle of the samples spreads, (p80 - p20) / median, from 8K; the largest that are over 3 percent.

    Beside it the spread in cycles of the streaming multiprocessors, time x clock: what is left of it at one clock.
    """
    run, rows = _opened(folder)
    spreads = []
    for label, row in _ok(rows):
        if row["seqlen"] >= LONG_SEQLEN:
            spread = (row["time_ms_p80"] - row["time_ms_p20"]) / row["time_ms_median"]
            spreads.append((spread, label, row))
    over = [one for one in spreads if one[0] > MOST_SPREAD]
    told = f"{len(over)} of {len(spreads)} cases spread over 3 percent"
    if not over:
        largest = max((spread for spread, *_ in spreads), default=0.0)
        return f"{told}; the largest spread is {largest:.1%}.\n"
    over.sort(key=lambda one: -one[0])
    cycles = _spreads_in_cycles(run, [row["case_id"] for *_, row in spreads])
    wide = sum(spread > MOST_SPREAD for spread in cycles.values())
    lines = [
        (label, _mask(row), row["pass"], format_count(row["seqlen"]), f"{spread:.1%}", _percent(cycles, row["case_id"]))
        for spread, label, row in over[:MOST_LINES]
    ]
    shown = f"; the largest {MOST_LINES}" if len(over) > MOST_LINES else ""
    head = ("implementation", "mask", "pass", "seqlen", "(p80 - p20) / median", "in cycles")
    also = f"{wide} of {len(cycles)} whose clock was read do in cycles"
    return f"{told}, {also}{shown}:\n\n{table(head, lines)}"


def spread_by_clock(folder: str) -> str:
    """How far the middle of the samples spreads from 8K, by the median SM clock of a case."""
    _, rows = _opened(folder)
    held: dict[int, list[float]] = {}
    for _, row in _ok(rows):
        if row["seqlen"] >= LONG_SEQLEN and row["sm_clock_mhz"] is not None:
            spread = (row["time_ms_p80"] - row["time_ms_p20"]) / row["time_ms_median"]
            held.setdefault(int(row["sm_clock_mhz"] // CLOCK_STEP_MHZ), []).append(spread)
    lines = [
        (
            f"{step * CLOCK_STEP_MHZ} to {(step + 1) * CLOCK_STEP_MHZ}",
            str(len(spreads)),
            f"{np.median(spreads):.1%}",
            str(sum(spread > MOST_SPREAD for spread in spreads)),
        )
        for step, spreads in sorted(held.items())
    ]
    return table(("SM clock, MHz", "cases", "median of (p80 - p20) / median", "over 3 percent"), lines)


def _spreads_in_cycles(run: OpenedRun, case_ids: Sequence[str]) -> dict[str, float]:
    """By case, where its clock was read: (p80 - p20) / median of time x clock within a pack, the mean over packs."""
    taken: dict[tuple[str, int], list[float]] = {}
    chosen = run.timings.filter(pc.is_in(run.timings["case_id"], pa.array(case_ids, pa.string())))
    for row in chosen.select(["case_id", "pack", "elapsed_ns", "sm_clock_mhz"]).to_pylist():
        if row["sm_clock_mhz"] is not None:
            taken.setdefault((row["case_id"], row["pack"]), []).append(row["elapsed_ns"] * row["sm_clock_mhz"])
    spreads: dict[str, list[float]] = {}
    for (case_id, _), cycles in taken.items():
        low, middle, high = np.quantile(cycles, [0.2, 0.5, 0.8])
        spreads.setdefault(case_id, []).append(float((high - low) / middle))
    return {case_id: sum(held) / len(held) for case_id, held in spreads.items()}


def _percent(found: dict[str, float], case_id: str) -> str:
    return f"{found[case_id]:.1%}" if case_id in found else ""


def costs(folder: str) -> str:
    """Where the wall time went, and all but compiling and verification over the time inside warm-up and rounds."""
    run, rows = _opened(folder)
    facts = run.provenance
    wall_s = sum((one["ended_ns"] - one["started_ns"]) / 1e9 for one in facts.get("runs", ()) if one.get("ended_ns"))
    workers = facts.get("workers", {})
    spent: Counter[str] = Counter()
    for writer, one in workers.get("spent", {}).items():
        if "-rank0" in writer:  # ranks spend the same time together
            spent.update(one)
    if not spent["timed"]:
        return "Not recorded.\n"
    ahead_s = sum(one["wall_s"] for one in workers.get("compile_ahead", {}).values())
    # What was bound for a backward serves its two passes; each row has the time that this took once.
    once: dict[tuple[object, ...], float] = {}
    for label, row in rows:
        bound = (label, *_point(row)[1:3], row["seqlen"], row["pass"] == "fwd")
        once[bound] = max(once.get(bound, 0.0), row["compile_s"] or 0.0)
    compile_s = sum(once.values())
    verify_s = spent["oracle"] + spent["verify"] - compile_s
    rest_s = wall_s - ahead_s - compile_s - verify_s
    seconds = {
        "wall time of all runs": wall_s,
        "compiling ahead": ahead_s,
        "compiling in the worker": compile_s,
        "verification": verify_s,
        "inside warm-up and timed iterations": spent["timed"],
        "the rest of the timing loop": spent["measure"] - spent["timed"],
        "lowering, binding, tensors": spent["setup"],
        "peak memory and names of device kernels": spent["inspect"],
    }
    seconds["starting, planning, sampling, tables and figures"] = rest_s - sum(
        spent[name] for name in ("measure", "setup", "inspect")
    )
    lines = [(name, f"{value:.1f}") for name, value in seconds.items()]
    share = f"{rest_s / spent['timed']:.2f}"
    lines.append(("all but compiling and verification, over warm-up and timed iterations", share))
    return table(("what", "seconds"), lines)


def beside_do_bench(folder: str) -> str:
    """Our clock beside do_bench on one forward, as tests/gpu/clock_against_do_bench.py measured them.

    Ratios are of ours to do_bench's time; where do_bench reads the SM clock before each iteration, the host is ahead.
    `not held` is ours without holding the queue.
    """
    header = (
        "backend, mask",
        "seqlen",
        "ours, ms",
        "not held, ms",
        "do_bench, ms",
        "ours / do_bench",
        "with the clock read",
        "in cycles",
        "host, ms",
        "(p80 - p20) / median, ours",
        "do_bench's",
    )
    lines = [
        (
            f"{row['backend'].removesuffix('_ATTENTION').lower()}, {row['mask']}",
            format_count(row["seqlen"]),
            *(figure(row[name]) for name in ("ours_ms", "unheld_ms", "do_bench_ms")),
            *(
                f"{row[name]:.3f}"
                for name in (
                    "ours_over_do_bench",
                    "ours_over_clocked_do_bench",
                    "ours_over_clocked_do_bench_in_cycles",
                    "host_ms",
                )
            ),
            *(f"{row[name]:.1%}" for name in ("ours_spread", "do_bench_spread")),
        )
        for row in pq.read_table(Path(folder) / "clock_against_do_bench.parquet").to_pylist()
    ]
    return table(header, lines)


def outcomes(folder: str) -> str:
    """How the cases of every implementation ended, and why those that were neither ok nor skipped."""
    return table_of_outcomes(_opened(folder)[1])


def table_of_outcomes(rows: Iterable[tuple[str, Row]]) -> str:
    """A line of every label: how many of its cases ended how, and each kind of reason (`reasons_told`)."""
    held: dict[str, dict[str, list[str | None]]] = {}
    for label, row in rows:
        held.setdefault(label, {}).setdefault(row["status"], []).append(row["reason"])
    lines = []
    for label in ordered(held):
        counts = sorted(held[label].items(), key=lambda item: -len(item[1]))
        told = [f"{status}: {reasons_told(why)}" for status, why in counts if status not in ("ok", "skipped")]
        lines.append((label, ", ".join(f"{len(why)} {status}" for status, why in counts), "; ".join(told)))
    return table(("implementation", "cases", "why"), lines)


def _ok(rows: Iterable[tuple[str, Row]]) -> list[tuple[str, Row]]:
    return [(label, row) for label, row in rows if row["status"] == "ok" and row["tflops"] is not None]


def _mask(row: Row) -> str:
    return mask_title(row["mask"], row["mask_params"])


def _point(row: Row) -> tuple[object, ...]:
    return tuple(row[name] for name in ("kernel", "mask", "mask_params", "pass", "seqlen"))


def _rank(rows: Sequence[tuple[str, Row]], mask: str, pass_: str) -> tuple[int, int]:
    """The order of the tables: masks as they come, then passes."""
    masks = list(dict.fromkeys(_mask(row) for _, row in rows))
    return masks.index(mask), PASSES.index(pass_)


def _over_seqlen(head: str, found: dict[str, dict[int, str]]) -> str:
    if not found:
        return "Not measured.\n"
    lengths = sorted({seqlen for held in found.values() for seqlen in held})
    lines = [(name, *(held.get(seqlen, "") for seqlen in lengths)) for name, held in found.items()]
    return table((head, *map(format_count, lengths)), lines)


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table; what would break a row is escaped."""

    def line(fields: Sequence[str]) -> str:
        return "| " + " | ".join(" ".join(field.split()).replace("|", "\\|") for field in fields) + " |\n"

    return line(head) + line(["---"] * len(head)) + "".join(map(line, lines))
