"""The distributed figure: every case is on it, per GPU, over ranks or over tokens per rank."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pyarrow as pa
import pytest

from attnspec import plugins
from attnspec.figures.throughput_by_cp_size import _bars, drawings
from attnspec.record.schema import Cell, to_table
from attnspec.report.page import save


def row(strategy, cp_size, status="ok", tflops=800.0, per_rank=8192, **changes):
    ok = status == "ok"
    values = {
        "case_id": f"{strategy} {cp_size} {per_rank}", "level": "distributed", "kernel": "fa3", "strategy": strategy, "mask": "varlen_full",
        "mask_params": "{}", "seqlen": cp_size * per_rank, "cp_size": cp_size, "seqlen_per_rank": per_rank, "env": "{}", "pass_": "fwd",
        "batch": 1, "num_heads_q": 64, "num_heads_kv": 8, "head_dim": 128, "dtype": "bfloat16", "num_packs": 20, "mesh": f'{{"ring_degree":{cp_size}}}',
        "status": status, "reason_code": None if ok else "mesh", "reason": None if ok else "why", "source": "measured", "device": "H100",
        "tflops": tflops if ok else None, "tflops_per_gpu": tflops / cp_size if ok else None,
        "tflops_ci_low": tflops * 0.9 if ok else None, "tflops_ci_high": tflops * 1.1 if ok else None,
    }  # fmt: skip
    return Cell(**values | changes)


def table(*rows):
    return to_table(Cell, rows)


def test_bars_are_per_gpu_and_degrees_make_no_line_of_their_own():
    cells = table(*(row(name, size) for name in ("ring_p2p", "usp") for size in (8, 16, 32)))
    bars = _bars(cells.to_pylist(), "cp_size")
    assert {bar.label for bar in bars} == {"ring_p2p (fa3)", "usp (fa3)"}
    first = next(bar for bar in bars if bar.x == 16)
    assert (first.height, first.low, first.high) == pytest.approx((50, 45, 55))


def test_two_cases_of_one_position_are_told_apart():
    cells = table(row("loongtrain", 16, mesh='{"window":1}'), row("loongtrain", 16, mesh='{"window":2}'))
    assert [bar.label for bar in _bars(cells.to_pylist(), "cp_size")] == [
        'loongtrain (fa3), {"window":1}',
        'loongtrain (fa3), {"window":2}',
    ]


def test_a_picture_per_mask_pass_and_tokens_per_rank(tmp_path):
    cells = table(
        *(row("ulysses", size, per_rank=share) for size in (8, 16) for share in (8192, 16384)),
        row("ring_p2p", 8, status="unsupported", device=None, backend=None),
        row("ulysses", 8, pass_="bwd"),
    )
    made = drawings(cells)
    assert len(made) == len({one.stem for one in made}) == 3
    save(made[0], tmp_path)
    text = "".join(ET.fromstring((tmp_path / f"{made[0].stem}.svg").read_bytes()).itertext())
    for word in (
        "Varlen full, forward",
        "TFLOP/s per GPU",
        "ulysses (fa3)",
        "ring_p2p (fa3)",
        "X",
        "8K tokens per GPU",
        "H100",
    ):
        assert word in text


def test_one_number_of_ranks_is_drawn_over_tokens_per_rank():
    cells = table(*(row("ulysses", 2, per_rank=share) for share in (8192, 16384, 32768)))
    (one,) = drawings(cells)
    axes = one.draw().axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["8K", "16K", "32K"]
    assert "2 GPUs" in one.caption


def test_kernel_cases_are_not_drawn():
    kernel = row(None, 1, level="kernel")
    assert drawings(table(kernel)) == []
    assert "throughput_by_cp_size" in plugins.names("figures")
    both = pa.concat_tables([table(kernel), table(row("usp", 8))])
    assert len(drawings(both)) == 1
