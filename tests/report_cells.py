"""Cells and run folders for tests of reports: small ones by hand, distributed ones and thousands by formula."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from attnspec.drawing.cases import Cases, cases_of
from attnspec.record.schema import Cell, Timing, arrow_schema, to_table
from attnspec.record.status import REASON_CODES, Status

KERNELS = (
    ("fa2", None),
    ("fa3", None),
    ("fa4", None),
    ("cudnn", None),
    ("sdpa", "flash"),
    ("flex", "TRITON"),
    ("ffa", None),
)
STRATEGIES = ("ring_p2p", "ring_allgather", "ulysses", "usp", "loongtrain", "hybrid_dcp")
MASKS = (
    ("full", "{}", 1.0), ("causal", "{}", 0.5), ("varlen_full", "{}", 0.2), ("varlen_causal", "{}", 0.1),
    ("sliding_window_causal", '{"window":1024}', 0.05), ("varlen_block_causal", '{"block":2048}', 0.15),
)  # fmt: skip


def cell(
    kernel: str = "sdpa", seqlen: int = 1024, tflops: float | None = 100.0, status: str = "ok", **changes: object
) -> Cell:
    """One case on an H200; `tflops` is over all ranks. What is given by name replaces any column."""
    ok = status == "ok"
    ranks = int(changes.get("cp_size", 1))
    density = changes.pop("density", 0.5)
    area = int(seqlen * seqlen * density)
    flops = 4 * area * 64 * 128
    ms = flops / (tflops * 1e9) if ok and tflops else None
    reason = None if ok else f"why it is {status}"
    values: dict[str, object] = {
        "case_id": "-".join(map(str, (kernel, seqlen, ranks, changes.get("mask"), changes.get("pass_"), changes.get("strategy"), changes.get("backend")))),
        "level": "distributed" if changes.get("strategy") else "kernel", "device": "NVIDIA H200", "kernel": kernel, "mask": "causal", "mask_params": "{}",
        "seqlen": seqlen, "cp_size": ranks, "seqlen_per_rank": seqlen // ranks, "env": "{}", "pass_": "fwd", "batch": 1, "num_heads_q": 64, "num_heads_kv": 8,
        "head_dim": 128, "dtype": "bfloat16", "num_packs": 1, "mask_area": area, "flops": Decimal(flops), "status": status,
        "reason_code": None if ok else REASON_CODES[Status(status)][0], "reason": reason, "source": "measured",
    }  # fmt: skip
    if ok and tflops is not None:
        values |= {
            "tflops": tflops, "tflops_ci_low": tflops * 0.99, "tflops_ci_high": tflops * 1.01, "tflops_per_gpu": tflops / ranks, "time_ms_median": ms,
            "time_ms_p20": ms, "time_ms_p80": ms, "time_ms_ci_low": ms and ms / 1.01, "time_ms_ci_high": ms and ms / 0.99, "num_samples": 20, "throttled": False,
            "lower_s": 0.002, "compile_s": 0.5, "verify_s": 1.0, "setup_s": 2.0, "verified_error": 0.9, "verified_bound": 2.0, "provider": "torch",
        }  # fmt: skip
    return Cell(**(values | changes))  # type: ignore[arg-type]


def table(*cells: Cell) -> pa.Table:
    return to_table(Cell, cells)


def cases(*cells: Cell, **more: object) -> Cases:
    """What figures draw, of one run called `run`."""
    return cases_of([("run", table(*cells))], **more)  # type: ignore[arg-type]


def distributed() -> list[Cell]:
    """Six strategies on 8 to 64 GPUs, forward, two masks, with one X."""
    made = []
    for strategy, ranks, (mask, params, density) in itertools.product(STRATEGIES, (8, 16, 32, 64), MASKS[1:5:2]):
        place = STRATEGIES.index(strategy)
        per_gpu = (560 - 30 * place) * (8 / ranks) ** (0.05 + 0.03 * place) * (0.75 + density / 2)
        given = {
            "mask": mask, "mask_params": params, "cp_size": ranks, "strategy": strategy, "density": density, "mesh": f'{{"ring":{ranks}}}',
            "load_imbalance": 1 + 0.04 * place * (ranks / 8) ** 0.3, "comm_bytes": 10**9 // ranks, "padding_tokens": 16 * place,
        }  # fmt: skip
        row = cell("fa3", 8192 * ranks, per_gpu * ranks, **given)
        if strategy == "usp" and ranks == 64:
            made.append(cell("fa3", 8192 * ranks, status="unsupported", **given))
        else:
            made.append(replace(row, exposed_comm_ms=row.time_ms_median * (0.02 + 0.02 * place) * (ranks / 8) ** 0.4))
    return made


def many(count: int) -> list[Cell]:
    """`count` kernel cases over masks, passes, shapes, lengths and kernels; every 9th is not ok, in turn each way."""
    lengths = [1024 * 2**step for step in range(8)]
    ways = itertools.cycle(status for status in Status if status is not Status.OK)
    grid = itertools.product(range(1000), (64, 128), MASKS, ("fwd", "bwd", "fwd_bwd"), lengths, KERNELS)
    made = []
    for index, (batch, head_dim, (mask, params, density), pass_, seqlen, (kernel, backend)) in enumerate(itertools.islice(grid, count)):  # fmt: skip
        status = next(ways) if index % 9 == 8 else "ok"
        speed = (350 + 40 * (index % 7)) * seqlen / (seqlen + 6000) * (0.5 + density / 2)
        made.append(
            cell(
                kernel, seqlen, speed, str(status), mask=mask, mask_params=params, pass_=pass_, backend=backend, density=density,
                batch=batch + 1, head_dim=head_dim, case_id=f"{index:016x}",
            )
        )  # fmt: skip
    return made


def timings(cells: list[Cell], samples: int = 20) -> pa.Table:
    """Samples around the median of every ok cell, in rounds of five, over its packs and ranks."""
    ok = [one for one in cells if one.status == "ok" and one.time_ms_median]
    draw = np.random.default_rng(0)
    count = len(ok) * samples
    ms = np.repeat([one.time_ms_median for one in ok], samples) * (1 + 0.01 * draw.standard_normal(count))
    place = np.tile(np.arange(samples), len(ok))
    return pa.table(
        {
            "case_id": np.repeat([one.case_id for one in ok], samples) if ok else pa.array([], pa.string()),
            "pack": np.zeros(count, np.int32), "rank": np.zeros(count, np.int32), "round": (place // 5).astype(np.int32), "iteration": (place % 5).astype(np.int32),
            "started_ns": np.arange(count, dtype=np.int64), "elapsed_ns": np.asarray(ms * 1e6).astype(np.int64),
            "sm_clock_mhz": pa.nulls(count, pa.float32()), "throttled": pa.nulls(count, pa.bool_()),
        }
    ).cast(arrow_schema(Timing))  # fmt: skip


def write_run(folder: Path, cells: list[Cell], provenance: dict[str, object] | None = None) -> Path:
    """A run folder of tables alone, as the measured ones that are shipped."""
    folder.mkdir(parents=True)
    pq.write_table(table(*cells), folder / "cells.parquet")
    pq.write_table(timings(cells), folder / "timings.parquet")
    (folder / "provenance.json").write_text(
        json.dumps(provenance or {"attnspec": "0.1", "command": ["attnspec", "run"]})
    )
    return folder
