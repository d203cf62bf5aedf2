"""Tables of strategies beside what the page shows."""

from __future__ import annotations

import pyarrow.parquet as pq

from attnspec.record.schema import Cell, Timing, to_table
from attnspec.report import strategy_results
from attnspec.report.published import published


def cell(strategy, tflops_per_gpu, *, cp_size=8, status="ok", **more):
    values = {
        "case_id": f"{strategy} {cp_size} {more}", "level": "distributed", "kernel": "fa3", "strategy": strategy,
        "mask": "full", "mask_params": "{}", "seqlen": 8192 * cp_size, "seqlen_per_rank": 8192, "cp_size": cp_size,
        "env": "{}", "pass_": "fwd", "batch": 1, "num_heads_q": 64, "num_heads_kv": 8, "head_dim": 128,
        "dtype": "bfloat16", "num_packs": 1, "device": "NVIDIA H200", "status": status, "source": "measured",
        "tflops_per_gpu": tflops_per_gpu,
    }  # fmt: skip
    return Cell(**{**values, **more})


def shown(strategy):
    """What the page shows for full, forward, 8 GPUs of H100."""
    (row,) = (
        row
        for row in published().to_pylist()
        if (row["device"], row["strategy"], row["mask"], row["pass"], row["cp_size"])
        == ("h100", strategy, "full", "fwd", 8)
    )
    return row["tflops_per_gpu"]


def test_measured_over_published_for_one_number_of_gpus(tmp_path):
    cells = [
        cell("ulysses", 2 * shown("ulysses")),
        cell("ring_p2p", None, status="oom"),
        cell("ring_allgather", 500.0, kernel="fa4"),  # the page has no such kernel
        cell("ulysses", 700.0, cp_size=4),  # nor so few GPUs
        cell("ulysses", 700.0, cp_size=16),
    ]
    pq.write_table(to_table(Cell, cells), tmp_path / "cells.parquet")
    pq.write_table(to_table(Timing, []), tmp_path / "timings.parquet")
    (tmp_path / "provenance.json").write_text("{}")
    (line,) = strategy_results.beside_published(str(tmp_path), "8").splitlines()[2:]
    label, value = (part.strip() for part in line.strip("|").split("|"))
    assert label.startswith("ulysses")
    assert value.endswith(f"/ {shown('ulysses'):.0f} = 2.00")
    assert strategy_results.beside_published(str(tmp_path), "4") == "Not measured.\n"


def test_outcomes_tell_every_kind_of_reason_once(tmp_path):
    asked = "CUDA out of memory. Tried to allocate {}.00 GiB. GPU 0 has {} GiB free."
    cells = [
        cell("usp", 500.0),
        *(
            cell("usp", None, status="oom", reason=asked.format(*sizes), seqlen=seqlen)
            for seqlen, sizes in enumerate([(4, 1), (4, 2), (8, 3)], 1)
        ),
        cell("ulysses", None, status="skipped", reason="not run"),
    ]
    assert lines_of(strategy_results.statuses(written(tmp_path, cells, []))) == [
        ["ulysses (fa3)", "1 skipped", ""],
        ["usp (fa3)", "3 oom, 1 ok", "oom: CUDA out of memory. Tried to allocate 4 GiB (2 x), 8 GiB (1 x)"],
    ]


def timed(strategy, ms, mesh=None, **more):
    asked = {"kernel": "fa2", "provider": "flash-attn", "mesh": mesh, "cp_size": 2}
    return cell(strategy, 100.0 / ms, time_ms_median=ms, **{**asked, **more})


def samples_of(cells, *, spread=0.001, clock=lambda cell: 1500.0):
    """Five rounds of two iterations on two ranks around each cell's median, the second rank's a little less."""
    return [
        Timing(
            case_id=cell.case_id, pack=0, rank=rank, round=number, iteration=iteration, started_ns=1000 * number,
            elapsed_ns=round(cell.time_ms_median * 1e6 * (1 + spread * (number - 2)) * (1 - 0.01 * rank)),
            sm_clock_mhz=clock(cell), throttled=False,
        )
        for cell in cells
        for number in range(5)
        for iteration in range(2)
        for rank in range(2)
    ]  # fmt: skip


def written(folder, cells, samples):
    pq.write_table(to_table(Cell, cells), folder / "cells.parquet")
    pq.write_table(to_table(Timing, samples), folder / "timings.parquet")
    (folder / "provenance.json").write_text("{}")
    return str(folder)


def lines_of(text):
    return [[part.strip() for part in line.strip("|").split("|")] for line in text.splitlines()[2:]]


def test_pairs_are_told_apart_in_time_and_in_cycles(tmp_path):
    """Of two strategies that take as long, the one whose chip ran faster took more cycles."""
    cells = [
        timed("ring_p2p", 1.0),
        timed("ring_flash_attn_zigzag", 1.2),
        timed("ring_allgather", 1.0),
        timed("ring_flash_attn_llama3", 1.0, load_imbalance=1.5),
    ]
    clocks = {"ring_flash_attn_zigzag": 1250.0, "ring_flash_attn_llama3": 2000.0}
    folder = written(tmp_path, cells, samples_of(cells, clock=lambda cell: clocks.get(cell.strategy, 1500.0)))
    found = {line[4]: (line[7], line[8]) for line in lines_of(strategy_results.same_algorithm(folder))}
    assert found == {"ring_flash_attn_zigzag": ("1.200", "~ 1.000"), "ring_flash_attn_llama3": ("~ 1.000", "1.333")}
    assert lines_of(strategy_results.told_apart(folder)) == [
        ["fa2", "time", "1", "1", "0"],
        ["fa2", "cycles", "1", "1", "0"],
    ]


def test_without_clocks_there_are_no_cycles(tmp_path):
    cells = [timed("ring_p2p", 1.2), timed("ring_flash_attn_zigzag", 1.0)]
    folder = written(tmp_path, cells, samples_of(cells, clock=lambda cell: None))
    ((*_, time, cycles, _, _, _, _),) = lines_of(strategy_results.same_algorithm(folder))
    assert (time, cycles) == ("0.833", "")
    assert lines_of(strategy_results.told_apart(folder)) == [["fa2", "time", "0", "0", "1"]]


def test_a_librarys_usp_is_paired_by_its_mesh(tmp_path):
    heads, ring, both = (
        f'{{"ring_degree":{ring},"ulysses_degree":{heads}}}' for heads, ring in ((8, 1), (1, 8), (2, 4))
    )
    cells = [
        timed("ulysses", 1.0, heads),
        timed("ring_p2p", 2.0, ring),
        timed("usp", 9.0, ring, case_id="usp that is a ring"),
        timed("usp", 4.0, both),
        timed("usp", 9.0, both.replace("4", "5"), mask="causal"),
        timed("yunchang_usp", 1.5, heads, case_id="heads"),
        timed("yunchang_usp", 5.0, ring, case_id="ring"),
        timed("yunchang_usp", 8.0, both, case_id="both"),
        timed("yunchang_usp", 8.0, both, case_id="another mesh", mask="causal"),
    ]
    lines = lines_of(strategy_results.same_algorithm(written(tmp_path, cells, samples_of(cells))))
    assert [(line[3], line[4], line[7]) for line in lines] == [
        ("ulysses", "yunchang_usp", "1.500"),
        ("ring_p2p", "yunchang_usp", "2.500"),
        ("usp", "yunchang_usp", "2.000"),
    ]
