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
