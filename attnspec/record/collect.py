"""From a plan's cases and a journal to the two tables: the one place where throughput is derived. Pure.

One row per planned case, whatever happened to it; metrics are null unless it is ok. Times of a round are the slowest
rank's per iteration. Sums over packs: tflops = sum of FLOPs / sum of the packs' medians.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from attnspec import stats
from attnspec.record.entries import Outcome
from attnspec.record.journal import Journal
from attnspec.record.rounds import packs_of, sound_samples, whole_rounds
from attnspec.record.schema import Cell, Timing, column_names, to_table
from attnspec.record.status import Status, check_outcome

FOUND = ("result_key", "device", "provider", "provider_version", "backend", "mesh", "padding_tokens", "image_digest")
"""Columns that every outcome may fill; where it says nothing, what was planned stands."""

METRICS = (
    *("peak_memory_bytes", "comm_bytes", "load_imbalance", "exposed_comm_ms", "lower_s", "compile_s", "verify_s"),
    *("setup_s", "verified_error", "verified_bound", "kernel_names"),
)
"""Columns that the outcome of an ok case fills."""

Rounds = list[NDArray[np.int64]]


def cells_from(planned: Iterable[Cell], journal: Journal) -> tuple[pa.Table, pa.Table]:
    """The tables `cells` (columns of Cell, one row per planned case, in that order) and `timings` (columns of Timing).

    planned: rows as planned, with status `unsupported` or `skipped`. Samples count only under the result_key of the
    outcome that stands for their case.
    """
    cases = {cell.case_id: cell for cell in planned}
    chosen = standing(journal.outcomes)
    sound = sound_samples(_of_keys(journal.timings, chosen), journal.outcomes)
    timings = whole_rounds(sound, {case_id: cell.cp_size for case_id, cell in cases.items()})
    spans = _spans(timings)
    begun = set(journal.timings["case_id"].unique().to_pylist())
    cells = []
    for case_id, cell in cases.items():
        outcome = chosen.get(case_id)
        if outcome is not None:
            cells.append(_cell(cell, outcome, timings.slice(*spans.get(case_id, (0, 0)))))
        elif case_id in begun and cell.status == Status.SKIPPED:
            reason = "a run ended before this case did; its finished rounds are kept, run again to go on"
            cells.append(dataclasses.replace(cell, reason_code="interrupted", reason=reason))
        else:
            cells.append(cell)
    return to_table(Cell, cells), _timing_columns(timings)


def standing(outcomes: Iterable[Outcome]) -> dict[str, Outcome]:
    """case_id -> the outcome that stands for the case.

    The newest outcome tells the present conditions, and under its result_key the newest ok outcome wins, else the
    newest. Where it has no result_key, because the worker never came to know one, the newest ok outcome wins under
    whatever conditions. An outcome `skipped` says nothing about a case, so it stands only alone.
    """
    held: dict[str, list[Outcome]] = {}
    for outcome in sorted(outcomes, key=lambda one: (one.attempt, one.ended_ns)):  # a clock may be set back in between
        held.setdefault(outcome.case_id, []).append(outcome)
    return {case_id: _standing(history) for case_id, history in held.items()}


def standing_attempts(journal: Journal) -> frozenset[int]:
    """Those that took samples of ok cases, under the result_key that stands for the case."""
    keys = {(name, one.result_key) for name, one in standing(journal.outcomes).items() if one.status == Status.OK}
    taken = journal.timings.group_by(["case_id", "result_key", "attempt"]).aggregate([]).to_pylist()
    return frozenset(one["attempt"] for one in taken if (one["case_id"], one["result_key"]) in keys)


def _standing(history: list[Outcome]) -> Outcome:
    """Of one case's outcomes, oldest first."""
    said = [one for one in history if one.status != Status.SKIPPED] or history
    newest = said[-1]
    alike = [one for one in said if newest.result_key in (None, one.result_key) and one.status == Status.OK]
    return alike[-1] if alike else newest


def _of_keys(timings: pa.Table, chosen: Mapping[str, Outcome]) -> pa.Table:
    """Samples taken under the result_key that stands for their case."""
    wanted = {(case_id, outcome.result_key) for case_id, outcome in chosen.items()}
    pairs = zip(timings["case_id"].to_pylist(), timings["result_key"].to_pylist(), strict=True)
    return timings.filter(pa.array((pair in wanted for pair in pairs), type=pa.bool_()))


def _spans(timings: pa.Table) -> dict[str, tuple[int, int]]:
    """case_id -> (offset, length) of its rows, which lie together."""
    spans: dict[str, tuple[int, int]] = {}
    for row, case_id in enumerate(timings["case_id"].to_pylist()):
        offset, length = spans.get(case_id, (row, 0))
        spans[case_id] = offset, length + 1
    return spans


def _cell(planned: Cell, outcome: Outcome, samples: pa.Table) -> Cell:
    found = {name: value for name in FOUND if (value := getattr(outcome, name)) is not None}
    status, reason_code, reason = Status(outcome.status), outcome.reason_code, outcome.reason
    values: dict[str, Any] = {}
    if status is Status.OK:
        status, reason_code, reason = _sound(planned, samples)
    if status is Status.OK:
        values = {name: getattr(outcome, name) for name in METRICS} | _numbers(planned, samples)
    elif status is Status.WRONG:
        values = {"verified_error": outcome.verified_error, "verified_bound": outcome.verified_bound}
    check_outcome(status, reason_code)
    return dataclasses.replace(planned, **found, **values, status=status.value, reason_code=reason_code, reason=reason)


def _sound(planned: Cell, samples: pa.Table) -> tuple[Status, str | None, str | None]:
    """Whether the samples of a case that the worker calls ok can carry numbers."""
    missing = sorted(set(range(planned.num_packs)) - set(samples["pack"].to_pylist()))
    if missing:
        return Status.ERROR, "no_samples", f"no whole round of pack {missing[0]} was journaled"
    shortest = min(samples["elapsed_ns"].to_pylist())
    if shortest <= 0:
        return Status.ERROR, "invalid_time", f"an iteration took {shortest} ns: the clock did not time the device"
    return Status.OK, None, None


def _numbers(planned: Cell, samples: pa.Table) -> dict[str, Any]:
    packs = [list(one) for one in packs_of(samples, "elapsed_ns", planned.cp_size)]
    times = [np.concatenate(rounds) for rounds in packs]
    num_packs = len(packs)
    ns_median = sum(map(stats.median, times))
    bounds = _interval(packs, seed=stats.seed_of(planned.case_id))
    host = [np.concatenate(list(one)) for one in packs_of(samples, "host_ns", planned.cp_size)]
    clocks = samples["sm_clock_mhz"].drop_null().to_pylist()
    throttled = samples["throttled"].drop_null().to_pylist()
    numbers = {
        "num_samples": sum(one.size for one in times),
        "time_ms_median": ns_median / num_packs / 1e6,
        "time_ms_p20": sum(stats.percentile(one, 20) for one in times) / num_packs / 1e6,
        "time_ms_p80": sum(stats.percentile(one, 80) for one in times) / num_packs / 1e6,
        "time_ms_ci_low": bounds.low / num_packs / 1e6 if bounds else None,
        "time_ms_ci_high": bounds.high / num_packs / 1e6 if bounds else None,
        "host_ms": sum(map(stats.median, host)) / num_packs / 1e6 if host else None,
        "sm_clock_mhz": stats.median(clocks) if clocks else None,
        "throttled": any(throttled) if throttled else None,
    }
    if planned.flops is not None:
        flops = float(planned.flops)
        numbers |= {
            "tflops": flops / ns_median / 1e3,
            "tflops_ci_low": flops / bounds.high / 1e3 if bounds else None,
            "tflops_ci_high": flops / bounds.low / 1e3 if bounds else None,
            "tflops_per_gpu": flops / ns_median / 1e3 / planned.cp_size,
        }
    return numbers


def _interval(packs: list[Rounds], *, seed: int) -> stats.Interval | None:
    """Of the sum of the packs' medians. None where a pack has one round: it cannot tell how far rounds are apart."""
    if min(map(len, packs)) < 2:
        return None
    return stats.block_bootstrap_sum(packs, seed=seed)


def _timing_columns(samples: pa.Table) -> pa.Table:
    """Samples in the columns and with the metadata of Timing."""
    empty = to_table(Timing, ())
    return pa.Table.from_arrays([samples[name] for name in column_names(Timing)], schema=empty.schema)
