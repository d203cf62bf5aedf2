"""The tables of a page of results against the cells that they are made from."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from attnspec.errors import InputError
from attnspec.record.schema import Cell, Timing, to_table
from attnspec.report import results
from attnspec.report.probes import beside_probes
from attnspec.report.published import published


def cell(kernel="fa3", seqlen=8192, tflops=500.0, status="ok", spread=0.01, **more):
    ok = status == "ok"
    values = {
        "case_id": f"{kernel} {seqlen} {more}", "level": "kernel", "kernel": kernel, "provider": "torch", "mask": "full",
        "mask_params": "{}", "seqlen": seqlen, "cp_size": 1, "seqlen_per_rank": seqlen, "env": "{}", "pass_": "fwd",
        "batch": 1, "num_heads_q": 64, "num_heads_kv": 8, "head_dim": 128, "dtype": "bfloat16", "num_packs": 1,
        "status": status, "reason": None if ok else "no | room\nfor it", "reason_code": None if ok else "device_memory",
        "tflops": tflops if ok else None, "source": "measured", "compile_s": 2.0 if ok else None,
        "verify_s": 1.0 if ok else None, "time_ms_median": 1.0 if ok else None, "time_ms_p20": 1.0 if ok else None,
        "time_ms_p80": 1.0 + spread if ok else None,
    }  # fmt: skip
    return Cell(**{**values, **more})


@pytest.fixture
def folder(tmp_path):
    def write(cells, elapsed_ns=(), provenance=None):
        samples = [
            Timing(case_id="c", pack=0, rank=0, round=0, iteration=index, started_ns=0, elapsed_ns=value)
            for index, value in enumerate(elapsed_ns)
        ]
        pq.write_table(to_table(Cell, cells), tmp_path / "cells.parquet")
        pq.write_table(to_table(Timing, samples), tmp_path / "timings.parquet")
        (tmp_path / "provenance.json").write_text(json.dumps(provenance or {}))
        return str(tmp_path)

    return write


def test_the_fastest_of_every_mask_pass_and_length(folder):
    made = results.fastest(
        folder(
            [
                cell("fa3", 1024, 100.0),
                cell("fa4", 1024, 120.0, backend="varlen"),
                cell("fa4", 8192, status="oom", backend="varlen"),
                cell("fa3", 8192, 601.4),
                cell("fa3", 8192, 300.0, pass_="bwd"),
                cell("fa3", 8192, 999.0, level="distributed", strategy="ulysses"),
            ]
        )
    )
    assert made.splitlines() == [
        "| mask, pass (TFLOP/s) | 1K | 8K |",
        "| --- | --- | --- |",
        "| full, fwd | fa4 varlen 120 ~ fa3 | fa3 601 |",
        "| full, bwd |  | fa3 300 |",
    ]


def test_the_host_decides_short_lengths_where_its_launch_takes_longer(folder):
    def timed(kernel, seqlen, device_ms, host_ms, **more):
        return cell(kernel, seqlen, 100 / device_ms, time_ms_median=device_ms, host_ms=host_ms, **more)

    rows = [
        *(timed("fa3", 1024, 0.0616, 0.1657), timed("fa4", 1024, 0.0662, 0.0739), timed("flex", 1024, 0.07, 0.08)),
        *(timed("fa3", 2048, 0.2, 0.1657), timed("fa4", 2048, 0.21, 0.07)),  # the host keeps up
        *(timed("fa3", 2048, 0.2, 0.25, pass_="bwd"), timed("fa4", 2048, 0.25, 0.1, pass_="bwd")),  # as long
        *(timed("fa3", 1024, 0.1, None, pass_="bwd"), timed("fa4", 1024, 0.2, 0.1, pass_="bwd")),
        *(timed("fa3", 4096, 0.1, 0.5), timed("fa4", 4096, 0.2, 0.1)),
    ]
    assert results.host_made_winners(folder(rows)).splitlines() == [
        "In 1 of 4 workloads another is first by the longer of the two:",
        "",
        "| mask, pass | seqlen | first by device time: device, host, ms | first by the longer: device, host, ms |",
        "| --- | --- | --- | --- |",
        "| full, fwd | 1K | fa3 0.0616, 0.166 | fa4 0.0662, 0.0739 |",
    ]


def test_no_other_winner_by_the_host_is_one_line(folder):
    assert results.host_made_winners(folder([cell(seqlen=1024, host_ms=0.1)])) == (
        "In 0 of 1 workloads another is first by the longer of the two.\n"
    )


@pytest.mark.parametrize(
    ("more", "shown"),
    [((), "fa3 100 ~ fa4"), ((("fa2", 98.5, 97.0, 101.0), ("flex", 98.4, 97.0, 101.0)), "fa3 100 ~ fa4, fa2, 1 more")],
)
def test_nobody_wins_alone_where_intervals_meet(folder, more, shown):
    known = [("fa3", 100.0, 98.0, 102.0), ("fa4", 99.0, 97.0, 101.0), ("ffa", 97.0, 96.0, 97.5), *more]
    rows = [cell(name, 1024, at, tflops_ci_low=low, tflops_ci_high=high) for name, at, low, high in known]
    assert results.fastest(folder(rows)).splitlines()[-1] == f"| full, fwd | {shown} |"


@pytest.mark.parametrize(
    ("clock", "told"),
    [
        (1700.0, "0 of 2 winners rest on a higher clock."),
        (1950.0, "| full, fwd | 1K | fa3 100 at 1950 MHz | fa4 98.0 at 1700 MHz | -11.0% |"),
    ],
)
def test_winners_by_a_higher_clock_are_told(folder, clock, told):
    def at(kernel, tflops, clock, **more):
        return cell(kernel, 1024, tflops, sm_clock_mhz=clock, **more)

    clear = [at("fa3", 100.0, 1700.0, mask="causal"), at("fa4", 99.5, 1700.0, mask="causal")]
    rows = [at("fa3", 100.0, clock), at("fa4", 98.0, 1700.0), *clear]
    assert results.clock_made_winners(folder(rows)).splitlines()[-1] == told


def test_every_implementation_with_its_status_but_not_what_was_not_run(folder):
    rows = [
        cell("sdpa", 1024, 9.5, backend="efficient", kernel_params='{"kv_repeat":true}'),
        cell("sdpa", 8192, status="oom", backend="efficient", kernel_params='{"kv_repeat":true}'),
        cell("fa3", 1024, status="skipped"),
        cell("fa3", 8192, 500.0),
        cell("ffa", 1024, status="skipped"),
    ]
    assert results.throughput(folder(rows), "full", "fwd").splitlines()[2:] == [
        "| fa3 |  | 500 |",
        "| sdpa efficient kv_repeat | 9.50 | oom |",
    ]


def test_the_best_variant_is_held_against_the_published_figure_from_8k_on(folder):
    shown = next(
        row["tflops"] for row in published().to_pylist()
        if (row["level"], row["device"], row["kernel"], row["mask"], row["pass"], row["seqlen"])
        == ("kernel", "h100", "fa3", "full", "fwd", 8192)
    )  # fmt: skip
    slow = [
        cell("fa3", 8192, 0.9 * shown, backend="a"),
        cell("fa3", 8192, 0.8 * shown, backend="b"),
        cell("fa3", 1024, 1.0),
    ]
    made = results.published_misses(folder(slow)).splitlines()
    assert made[0] == "1 of 1 compared figures are more than 5 percent below the published page's:"
    assert made[-1].startswith("| fa3 a | full | fwd | 8K |")
    assert made[-1].endswith(" | -10% |")


def test_nothing_measured_is_said(folder):
    assert results.throughput(folder([cell()]), "causal", "fwd") == "Not measured.\n"


def test_no_miss_is_one_line(folder):
    assert results.published_misses(folder([cell("fa3", 8192, 5000.0)])) == (
        "0 of 1 compared figures are more than 5 percent below the published page's.\n"
    )


def test_spreads(folder):
    calm = [cell(spread=0.01), cell(seqlen=1024, spread=0.5)]
    assert results.stability(folder(calm)) == "0 of 1 cases spread over 3 percent; the largest spread is 1.0%.\n"


def test_spreads_over_3_percent_are_listed_with_what_is_left_of_them_at_one_clock(folder):
    hot, odd = cell("fa4", spread=0.1), cell("fa2", spread=0.02)
    made = folder([cell(spread=0.04), hot, odd])
    samples = [
        Timing(
            case_id=one.case_id, pack=0, rank=0, round=0, iteration=number, started_ns=0, sm_clock_mhz=clock,
            elapsed_ns=round(2e9 / clock) if one is hot else 1_000_000,
        )
        for one in (hot, odd)
        for number, clock in enumerate((1700.0, 1800.0, 1900.0, 2000.0))
    ]  # fmt: skip
    pq.write_table(to_table(Timing, samples), f"{made}/timings.parquet")
    lines = results.stability(made).splitlines()
    assert lines[0] == "2 of 3 cases spread over 3 percent, 1 of 2 whose clock was read do in cycles:"
    assert lines[-2:] == ["| fa4 | full | fwd | 8K | 10.0% | 0.0% |", "| fa3 | full | fwd | 8K | 4.0% |  |"]


def test_spreads_by_clock(folder):
    cells = [
        cell("fa3", spread=0.01, sm_clock_mhz=1980.0),
        cell("fa4", spread=0.02, sm_clock_mhz=1650.0),
        cell("flex", spread=0.04, sm_clock_mhz=1610.0),
        cell("fa2", 4096, spread=0.5, sm_clock_mhz=1610.0),
        cell("ffa", spread=0.5),
    ]
    assert results.spread_by_clock(folder(cells)).splitlines()[2:] == [
        "| 1600 to 1700 | 2 | 3.0% | 1 |",
        "| 1900 to 2000 | 1 | 1.0% | 0 |",
    ]


def test_both_clocks_side_by_side(tmp_path):
    row = {
        "backend": "FLASH_ATTENTION", "mask": "causal", "seqlen": 8192, "ours_ms": 1.98, "unheld_ms": 1.99, "do_bench_ms": 2.016,
        "ours_over_do_bench": 0.9738, "ours_over_clocked_do_bench": 0.9891,
        "ours_over_clocked_do_bench_in_cycles": 0.9956, "host_ms": 0.0619, "ours_spread": 0.033, "do_bench_spread": 0.0257,
    }  # fmt: skip
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "clock_against_do_bench.parquet")
    *_, line = results.beside_do_bench(str(tmp_path)).splitlines()
    assert line == "| flash, causal | 8K | 1.98 | 1.99 | 2.02 | 0.974 | 0.989 | 0.996 | 0.062 | 3.3% | 2.6% |"


def test_costs_leave_compilation_and_verification_out_of_the_rest(folder):
    provenance = {
        "runs": [{"started_ns": 0, "ended_ns": 20e9}, {"started_ns": 30e9, "ended_ns": 40e9}, {"started_ns": 50e9}],
        "workers": {
            "compile_ahead": {"job-rank0-1": {"wall_s": 6.0}, "job-rank0-2": {"wall_s": 4.0}},
            "spent": {
                "job-rank0-1": {"oracle": 0.5, "verify": 2.5, "measure": 5.0, "timed": 4.0, "setup": 1.0},
                "job-rank0-2": {"oracle": 0.5, "verify": 2.5, "measure": 4.5, "timed": 4.0, "inspect": 1.5},
            },
        },
    }
    cells = [cell(), cell("fa4", pass_="bwd"), cell("fa4", pass_="fwd_bwd")]  # the last two share what was compiled
    made = results.costs(folder(cells, [], provenance)).splitlines()[2:]
    assert made == [
        "| wall time of all runs | 30.0 |",
        "| compiling ahead | 10.0 |",
        "| compiling in the worker | 4.0 |",
        "| verification | 2.0 |",
        "| inside warm-up and timed iterations | 8.0 |",
        "| the rest of the timing loop | 1.5 |",
        "| lowering, binding, tensors | 1.0 |",
        "| peak memory and names of device kernels | 1.5 |",
        "| starting, planning, sampling, tables and figures | 2.0 |",
        "| all but compiling and verification, over warm-up and timed iterations | 1.75 |",
    ]


def test_costs_of_tables_that_do_not_tell(folder):
    assert results.costs(folder([cell()], [2_000_000_000], {"runs": []})) == "Not recorded.\n"


def test_outcomes_tell_why_in_one_line(folder):
    rows = [cell("fa3", 1024), cell("fa3", 2048, status="oom"), cell("ffa", status="skipped")]
    assert results.outcomes(folder(rows)).splitlines()[2:] == [
        "| ffa | 1 skipped |  |",
        "| fa3 | 1 ok, 1 oom | oom: no \\| room |",
    ]


TORCH_OOM = (
    "OutOfMemoryError: CUDA out of memory. Tried to allocate {}. GPU 0 has a total capacity of 139.80 GiB of which "
    "{} GiB is free. See documentation"
)


def test_every_kind_of_reason_is_told_once_with_its_count(folder):
    asked = [("16.00 GiB", 6.5), ("256.00 GiB", 127), ("256.00 GiB", 128), ("1024.00 GiB", 105), ("512.00 MiB", 0.1)]
    rows = [
        *(cell(seqlen=size, status="oom", reason=TORCH_OOM.format(*one)) for size, one in enumerate(asked, 1)),
        cell(seqlen=6, status="oom", reason="ValueError: the workspace has no room\nmore"),
        *(cell(seqlen=size, status="unsupported", reason="takes no mask\nof this kind") for size in (7, 8)),
    ]
    why = (
        "oom: OutOfMemoryError: CUDA out of memory. Tried to allocate 256 GiB (2 x), 16 GiB (1 x), 1024 GiB (1 x), "
        "512 MiB (1 x); ValueError: the workspace has no room (1 x); unsupported: takes no mask"
    )
    assert results.outcomes(folder(rows)).splitlines()[2:] == [f"| fa3 | 6 oom, 2 unsupported | {why} |"]


def test_one_allocation_is_told_with_its_size(folder):
    rows = [cell(status="oom", reason=TORCH_OOM.format("2.25 GiB", 1))]
    assert results.outcomes(folder(rows)).splitlines()[2:] == [
        "| fa3 | 1 oom | oom: OutOfMemoryError: CUDA out of memory. Tried to allocate 2.25 GiB |"
    ]


def test_a_folder_of_another_kind_is_refused(tmp_path):
    with pytest.raises(InputError, match="no run folder"):
        results.fastest(str(tmp_path))


def test_what_a_probe_did_too_is_set_beside_it_and_what_is_over_5_percent_below_counted(folder):
    dpa = {"provider": "transformer-engine", "device": "NVIDIA H200"}
    ring = {"level": "distributed", "strategy": "te_p2p", "cp_size": 2, "seqlen_per_rank": 8192, **dpa}
    rows = [
        cell("cudnn", 8192, 680.0, tflops_per_gpu=680.0, sm_clock_mhz=1700.0, **dpa),
        cell("cudnn", 8192, 400.0, tflops_per_gpu=400.0, pass_="bwd", **dpa),
        cell("cudnn", 16384, 1000.0, tflops_per_gpu=617.0, **ring),
        cell("cudnn", 8192, status="oom", mask="causal", **dpa),
        cell("cudnn", 4096, 680.0, tflops_per_gpu=680.0, **dpa),
    ]
    told, _, _, _, *lines = beside_probes(folder(rows)).splitlines()
    assert told.startswith("1 of 3 compared figures")
    assert [line.split(" | ")[1:] for line in lines] == [
        ["full", "fwd", "8K", "680", "680", "+0.0%", "1700 |"],
        ["full", "bwd", "8K", "400", "513", "-22.0%", " |"],
        ["full", "fwd", "16K", "617", "617", "+0.0%", " |"],
    ]
    assert beside_probes(folder(rows[3:])).startswith("0 of 0 compared figures")


@pytest.mark.parametrize(
    "other",
    [
        {"device": "NVIDIA H100 80GB HBM3"},
        {"device": None},
        {"batch": 2},
        {"num_heads_q": 32},
        {"num_heads_kv": 64},
        {"head_dim": 64},
        {"dtype": "float16"},
        {"mask_params": '{"bidirectional":true}'},
    ],
    ids=str,
)
def test_only_what_has_the_probes_shape_and_device_is_set_beside_them(folder, other):
    same = {"provider": "transformer-engine", "device": "NVIDIA H200", "tflops_per_gpu": 680.0}
    rows = [cell("cudnn", 8192, 680.0, **same), cell("cudnn", 8192, 680.0, **same, pass_="bwd")]
    assert beside_probes(folder(rows)).startswith("0 of 2 compared figures")
    rows[1] = cell("cudnn", 8192, 680.0, **{**same, "pass_": "bwd", **other})
    assert beside_probes(folder(rows)).startswith("0 of 1 compared figures")
