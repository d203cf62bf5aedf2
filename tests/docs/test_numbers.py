"""Every number has its formula, and those that follow from the tables give the tables."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from attnspec.record.schema import Cell, arrow_schema
from attnspec.report.run import open_run

ROOT = Path(__file__).parents[2]
ASKED = {"seqlen", "cp_size", "seqlen_per_rank", "batch", "num_heads_q", "num_heads_kv", "head_dim", "num_packs"}
"""Numbers that a spec gives; they have a meaning and no formula."""
FACTORS = {"fwd": 4, "bwd": 10, "fwd_bwd": 14}


def explained() -> set[str]:
    text = (ROOT / "docs/numbers.md").read_text().partition("## Formulas")[2].partition("\n## ")[0]
    names = re.findall(r"^\| ([a-z0-9_, ]+) \|", text, re.MULTILINE)
    return {name for cell in names for name in cell.split(", ")}


def test_every_number_has_a_formula():
    numbers = {
        field.name
        for field in arrow_schema(Cell)
        if pa.types.is_integer(field.type)
        or pa.types.is_floating(field.type)
        or pa.types.is_decimal(field.type)
        or pa.types.is_boolean(field.type)
    }
    assert numbers - ASKED - explained() == set()
    assert {"ratio", "ci_low", "ci_high", "verdict", "regressions"} <= explained()


@pytest.mark.parametrize("run", ["h200_quickstart", "h200_check"])
def test_formulas_give_the_tables(run):
    opened = open_run(ROOT / "data" / "measured" / run)
    timings = dict(list(opened.timings.to_pandas().groupby("case_id")))
    rows = [row for row in opened.cells.to_pylist() if row["status"] == "ok"]
    assert len(rows) > 90
    for row in rows:
        samples = timings[row["case_id"]]
        packs = [pack["elapsed_ns"].to_numpy() / 1e6 for _, pack in samples.groupby("pack")]

        def mean(percent, packs=packs):
            return sum(np.percentile(pack, percent) for pack in packs) / len(packs)

        work = row["mask_area"] * row["batch"] * row["num_heads_q"] * row["head_dim"]
        total_ms = row["num_packs"] * row["time_ms_median"]
        expected = {
            "flops": FACTORS[row["pass"]] * work,
            "num_samples": sum(map(len, packs)),
            "num_packs": len(packs),
            "time_ms_median": mean(50),
            "time_ms_p20": mean(20),
            "time_ms_p80": mean(80),
            "tflops": float(row["flops"]) / total_ms / 1e9,
            "tflops_ci_low": float(row["flops"]) / (row["num_packs"] * row["time_ms_ci_high"]) / 1e9,
            "tflops_ci_high": float(row["flops"]) / (row["num_packs"] * row["time_ms_ci_low"]) / 1e9,
            "tflops_per_gpu": row["tflops"] / row["cp_size"],
            "sm_clock_mhz": samples["sm_clock_mhz"].median(),
        }
        for name, value in expected.items():
            assert float(row[name]) == pytest.approx(float(value), rel=1e-6), (row["case_id"], name)
        assert row["throttled"] == samples["throttled"].any()
        assert row["time_ms_ci_low"] <= row["time_ms_median"] <= row["time_ms_ci_high"]
