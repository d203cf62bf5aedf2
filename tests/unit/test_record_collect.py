"""Collecting: what the tables say of outcomes and raw samples, on worked examples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from attnspec.record.collect import METRICS, cells_from
from attnspec.record.entries import Outcome, Sample
from attnspec.record.journal import Journal, JournalWriter, read_journal
from attnspec.record.schema import Cell, Timing, arrow_schema, column_names, to_table

DERIVED = (
    *("num_samples", "time_ms_median", "time_ms_p20", "time_ms_p80", "time_ms_ci_low", "time_ms_ci_high", "host_ms"),
    *("tflops", "tflops_ci_low", "tflops_ci_high", "tflops_per_gpu", "sm_clock_mhz", "throttled"),
)


def planned(
    case_id: str = "c", *, cp_size: int = 1, num_packs: int = 1, flops: int | None = 8 * 10**12, **other
) -> Cell:
    values = {"status": "skipped", "reason_code": "not_run", "reason": "not measured yet", **other}
    return Cell(
        case_id=case_id,
        level="kernel" if cp_size == 1 else "distributed",
        kernel="sdpa",
        mask="causal",
        mask_params="{}",
        seqlen=1024,
        cp_size=cp_size,
        seqlen_per_rank=1024 // cp_size,
        env="{}",
        pass_="fwd",
        batch=1,
        num_heads_q=8,
        num_heads_kv=8,
        head_dim=64,
        dtype="bfloat16",
        num_packs=num_packs,
        flops=None if flops is None else Decimal(flops),
        source="measured",
        **values,
    )


def outcome(case_id: str = "c", status: str = "ok", *, key: str | None = "k", ended_ns: int = 1, **other) -> Outcome:
    return Outcome(case_id=case_id, result_key=key, status=status, attempt=1, ended_ns=ended_ns, **other)


def samples(
    ms: Sequence[float],
    *,
    case_id: str = "c",
    key: str = "k",
    pack: int = 0,
    rank: int = 0,
    number: int = 0,
    attempt: int = 1,
    host_ms: float | None = None,
) -> list[Sample]:
    return [
        Sample(
            case_id=case_id,
            pack=pack,
            rank=rank,
            round=number,
            iteration=iteration,
            started_ns=0,
            elapsed_ns=round(one * 1e6),
            result_key=key,
            host_ns=None if host_ms is None else round(host_ms * 1e6),
            attempt=attempt,
        )
        for iteration, one in enumerate(ms)
    ]


def journal(outcomes: Iterable[Outcome], timings: Iterable[Sample] = ()) -> Journal:
    return Journal(outcomes=tuple(outcomes), timings=to_table(Sample, timings))


def only_row(cells: pa.Table) -> dict:
    assert cells.num_rows == 1
    return cells.to_pylist()[0]


def test_slowest_rank_of_each_iteration_counts() -> None:
    held = [one for rank, ms in enumerate([10, 10, 10, 20]) for one in samples([ms] * 4, rank=rank)]
    cells, timings = cells_from([planned(cp_size=4)], journal([outcome()], held))
    row = only_row(cells)
    assert row["time_ms_median"] == 20
    assert row["tflops"] == pytest.approx(400)
    assert row["tflops_per_gpu"] == pytest.approx(100)
    assert row["num_samples"] == 4
    assert timings.num_rows == 16


def test_slowest_rank_may_differ_between_iterations() -> None:
    held = [*samples([10, 30], rank=0), *samples([20, 10], rank=1)]
    row = only_row(cells_from([planned(cp_size=2)], journal([outcome()], held))[0])
    assert row["time_ms_median"] == 25  # of 20 and 30; the ranks' own medians are 20 and 15


def test_packs_are_summed() -> None:
    held = [
        one
        for number in range(2)
        for pack, ms in enumerate([10, 30])
        for one in samples([ms] * 3, pack=pack, number=number, host_ms=1 + 2 * pack)
    ]
    row = only_row(cells_from([planned(num_packs=2)], journal([outcome()], held))[0])
    assert row["time_ms_median"] == row["time_ms_p20"] == row["time_ms_ci_low"] == 20
    assert row["host_ms"] == 2
    assert row["tflops"] == pytest.approx(8e12 / 0.040 / 1e12)  # not the mean of the packs' own rates


def test_interval_brackets_the_median() -> None:
    held = [one for number, ms in enumerate([9, 10, 11, 12]) for one in samples([ms, ms], number=number)]
    row = only_row(cells_from([planned()], journal([outcome()], held))[0])
    assert row["time_ms_ci_low"] < row["time_ms_median"] < row["time_ms_ci_high"]
    assert row["tflops_ci_low"] < row["tflops"] < row["tflops_ci_high"]
    assert row["tflops_ci_low"] == pytest.approx(8e12 / row["time_ms_ci_high"] / 1e9)


@pytest.mark.parametrize("rounds", [(1,), (1, 1), (3, 1)])
def test_where_a_pack_has_one_round_there_is_no_interval(rounds: tuple[int, ...]) -> None:
    held = [
        one
        for pack, count in enumerate(rounds)
        for number in range(count)
        for one in samples([10, 11 + number], pack=pack, number=number)
    ]
    row = only_row(cells_from([planned(num_packs=len(rounds))], journal([outcome()], held))[0])
    assert row["status"] == "ok" and row["time_ms_median"] > 10 and row["tflops"] > 0
    assert [name for name in DERIVED if row[name] is None and "_ci_" in name] == [
        *("time_ms_ci_low", "time_ms_ci_high", "tflops_ci_low", "tflops_ci_high"),
    ]


@pytest.mark.parametrize("bad", [0.0, -1.0])
def test_an_impossible_time_is_an_error_and_never_a_number(bad: float) -> None:
    row = only_row(cells_from([planned()], journal([outcome()], samples([1.0, bad])))[0])
    assert (row["status"], row["reason_code"]) == ("error", "invalid_time")
    assert all(row[name] is None for name in (*DERIVED, *METRICS))


def test_no_samples_is_an_error() -> None:
    row = only_row(cells_from([planned()], journal([outcome()]))[0])
    assert (row["status"], row["reason_code"], row["tflops"]) == ("error", "no_samples", None)


def test_samples_of_some_packs_only_are_an_error() -> None:
    row = only_row(cells_from([planned(num_packs=3)], journal([outcome()], samples([1.0], pack=1)))[0])
    assert (row["status"], row["reason_code"]) == ("error", "no_samples")
    assert row["reason"] == "no whole round of pack 0 was journaled"


def test_an_empty_mask_has_throughput_zero() -> None:
    row = only_row(cells_from([planned(flops=0)], journal([outcome()], samples([1.0])))[0])
    assert (row["status"], row["tflops"], row["time_ms_median"]) == ("ok", 0.0, 1.0)


@pytest.mark.parametrize(
    ("status", "reason_code"),
    [
        ("oom", "device_memory"),
        ("wrong", "out"),
        ("timeout", "measure"),
        ("crashed", "signal"),
        ("error", "fallback"),
        ("unsupported", "no_compiler"),
    ],
)
def test_metrics_are_null_unless_ok(status: str, reason_code: str) -> None:
    held = outcome(
        status=status,
        reason_code=reason_code,
        reason="the library's own words",
        provider_version="1.0",
        verified_error=3.0,
        verified_bound=2.0,
        peak_memory_bytes=5,
        setup_s=1.0,
    )
    row = only_row(cells_from([planned()], journal([held], samples([1.0])))[0])
    assert (row["status"], row["reason_code"], row["reason"]) == (status, reason_code, "the library's own words")
    assert row["provider_version"] == "1.0"
    told = {"verified_error", "verified_bound"} if status == "wrong" else set()
    assert {name for name in (*DERIVED, *METRICS) if row[name] is not None} == told


def test_every_planned_case_has_exactly_one_row() -> None:
    cases = [planned(f"c{index}") for index in range(5)]
    cases.append(planned("no", status="unsupported", reason_code="dtype", reason="float64 is not supported"))
    held = [outcome("c0"), outcome("c1", "oom", reason_code="device_memory"), outcome("stranger")]
    timed = [*samples([1.0], case_id="c0"), *samples([1.0], case_id="c2"), *samples([1.0], case_id="stranger")]
    cells, timings = cells_from(cases, journal(held, timed))
    assert cells["case_id"].to_pylist() == ["c0", "c1", "c2", "c3", "c4", "no"]
    assert cells["status"].to_pylist() == ["ok", "oom", *["skipped"] * 3, "unsupported"]
    assert cells["reason_code"].to_pylist() == [None, "device_memory", "interrupted", "not_run", "not_run", "dtype"]
    assert set(timings["case_id"].to_pylist()) == {"c0"}


def test_ok_wins_under_the_same_conditions() -> None:
    held = [outcome(ended_ns=1), outcome(status="crashed", reason_code="signal", ended_ns=2)]
    assert only_row(cells_from([planned()], journal(held, samples([1.0])))[0])["status"] == "ok"


def test_newer_conditions_replace_older_ones() -> None:
    """An ok record of an old driver does not hide what happens under the new one."""
    held = [outcome(key="old", ended_ns=1), outcome(key="new", status="timeout", reason_code="measure", ended_ns=2)]
    timed = [*samples([1.0], key="old"), *samples([3.0], key="new")]
    cells, timings = cells_from([planned()], journal(held, timed))
    assert (only_row(cells)["status"], only_row(cells)["result_key"]) == ("timeout", "new")
    assert timings["elapsed_ns"].to_pylist() == [3_000_000]


def test_a_later_attempt_is_newer_though_the_clock_was_set_back() -> None:
    held = [outcome(key="old", ended_ns=9), replace(outcome(key="new", ended_ns=1), attempt=2)]
    cells, _ = cells_from([planned()], journal(held, [*samples([1.0], key="old"), *samples([3.0], key="new")]))
    assert only_row(cells)["result_key"] == "new"


def test_a_death_under_unknown_conditions_does_not_hide_an_ok_record() -> None:
    held = [outcome(key="old", ended_ns=1), outcome(key=None, status="crashed", reason_code="exit", ended_ns=2)]
    assert only_row(cells_from([planned()], journal(held, samples([1.0], key="old")))[0])["status"] == "ok"


def test_samples_before_an_error_are_void() -> None:
    """A case that failed is measured anew from its first round; the bad samples stay in the journal only."""
    held = [outcome(status="error", reason_code="invalid_time"), replace(outcome(ended_ns=2), attempt=2)]
    timed = [*samples([0.0, 9.0], attempt=1), *samples([2.0], attempt=2)]
    cells, timings = cells_from([planned()], journal(held, timed))
    assert (only_row(cells)["status"], only_row(cells)["time_ms_median"], timings.num_rows) == ("ok", 2.0, 1)


def test_samples_of_other_conditions_do_not_count() -> None:
    held = [outcome(key="old", ended_ns=1), outcome(key="new", ended_ns=2)]
    timed = [*samples([1.0] * 9, key="old"), *samples([3.0], key="new")]
    assert only_row(cells_from([planned()], journal(held, timed))[0])["time_ms_median"] == 3


def test_an_interruption_does_not_replace_a_record() -> None:
    held = [outcome(ended_ns=1), outcome(key=None, status="skipped", reason_code="interrupted", ended_ns=2)]
    assert only_row(cells_from([planned()], journal(held, samples([1.0])))[0])["status"] == "ok"


def test_rounds_of_several_attempts_add_up_and_repeats_count_once() -> None:
    timed = [
        *samples([1, 1], number=0, attempt=1),
        *samples([1, 1], number=0, attempt=1),
        *samples([2, 2], number=1, attempt=1),
        *samples([50, 50], number=1, attempt=2),
        *samples([3, 3], number=2, attempt=2),
    ]
    cells, timings = cells_from([planned()], journal([outcome()], timed))
    assert timings["elapsed_ns"].to_pylist() == [1_000_000] * 2 + [2_000_000] * 2 + [3_000_000] * 2
    assert only_row(cells)["num_samples"] == 6


def test_a_round_that_one_rank_lost_is_taken_whole_from_the_next_attempt() -> None:
    timed = [
        *samples([1, 1], rank=0, number=0, attempt=1),
        *samples([5, 5], rank=0, number=0, attempt=2),
        *samples([7, 7], rank=1, number=0, attempt=2),
        *samples([9, 9], rank=1, number=1, attempt=2),
    ]
    cells, timings = cells_from([planned(cp_size=2)], journal([outcome()], timed))
    assert only_row(cells)["time_ms_median"] == 7
    assert timings["elapsed_ns"].to_pylist() == [5_000_000] * 2 + [7_000_000] * 2


def test_four_ranks_write_into_one_folder(tmp_path: Path) -> None:
    writers = [JournalWriter(tmp_path, f"job-rank{rank}", 1) for rank in range(4)]
    for number in range(5):
        for rank, writer in enumerate(writers):
            writer.append_round(
                {
                    "case_id": "c",
                    "pack": 0,
                    "rank": rank,
                    "round": number,
                    "iteration": iteration,
                    "started_ns": 1,
                    "elapsed_ns": 1_000_000,
                    "result_key": "k",
                }
                for iteration in range(5)
            )
    writers[0].append_outcome({"case_id": "c", "result_key": "k", "status": "ok"})
    for writer in writers:
        writer.close()
    cells, timings = cells_from([planned(cp_size=4)], read_journal(tmp_path))
    assert timings.num_rows == 100
    assert only_row(cells)["num_samples"] == 25


def test_columns_never_drift(tmp_path: Path) -> None:
    """Types are the schema's, whether a column is all null, holds whole numbers, or both."""
    empty = cells_from([planned("a"), planned("b")], journal([]))[0]
    whole = cells_from([planned()], journal([outcome()], samples([4.0], host_ms=1)))[0]
    broken = cells_from([planned()], journal([outcome()], samples([3.5])))[0]
    for index, table in enumerate((empty, whole, broken)):
        pq.write_table(table, tmp_path / f"{index}.parquet")
    read = [pq.read_table(tmp_path / f"{index}.parquet") for index in range(3)]
    assert all(one.schema.equals(arrow_schema(Cell)) for one in read)
    assert read[0].schema.field("setup_s").metadata[b"unit"] == b"s"
    joined = pa.concat_tables(read)
    assert joined["tflops"].type == joined["time_ms_median"].type == pa.float64()
    assert joined["time_ms_median"].to_pylist() == [None, None, 4.0, 3.5]
    assert joined["flops"].type == pa.decimal128(38, 0)


def test_rows_with_a_null_key_stay_in_a_group_by() -> None:
    cases = [planned("a"), planned("b"), planned("c", strategy="ring_p2p"), planned("d", strategy="ring_p2p")]
    held = [outcome(case_id) for case_id in "abcd"]
    timed = [one for case_id, ms in zip("abcd", (1, 3, 5, 7), strict=True) for one in samples([ms], case_id=case_id)]
    cells = cells_from(cases, journal(held, timed))[0]
    means = cells.group_by(["kernel", "strategy"]).aggregate([("time_ms_median", "mean")]).to_pylist()
    assert {row["strategy"]: row["time_ms_median_mean"] for row in means} == {None: 2.0, "ring_p2p": 6.0}


def test_timings_have_exactly_the_columns_of_timing() -> None:
    timings = cells_from([planned()], journal([outcome()], samples([1.0])))[1]
    assert timings.column_names == list(column_names(Timing))
    assert timings.schema.equals(arrow_schema(Timing), check_metadata=True)


def test_clocks_and_throttling_are_summed_up() -> None:
    held = samples([1.0, 1.0, 1.0])
    timed = to_table(Sample, held)
    timed = timed.set_column(timed.column_names.index("throttled"), "throttled", pa.array([False, True, None]))
    clocks = pa.array([1900.0, 1700.0, None], type=pa.float32())
    timed = timed.set_column(timed.column_names.index("sm_clock_mhz"), "sm_clock_mhz", clocks)
    row = only_row(cells_from([planned()], Journal(outcomes=(outcome(),), timings=timed))[0])
    assert (row["throttled"], row["sm_clock_mhz"]) == (True, 1800.0)
