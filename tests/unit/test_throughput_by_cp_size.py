"""The distributed figure: every case is on it, per GPU, over ranks or over tokens per rank."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from report_cells import cases, cell

from attnspec import plugins
from attnspec.drawing.saving import save
from attnspec.drawing.throughput import bars
from attnspec.figures.throughput_by_cp_size import drawings


def row(strategy, cp_size, status="ok", tflops=800.0, per_rank=8192, **changes):
    given = {"mask": "varlen_full", "device": "H100", "num_packs": 20, "mesh": f'{{"ring_degree":{cp_size}}}'}
    given |= {"peak_memory_bytes": 2**30} if status == "ok" else {}
    return cell("fa3", cp_size * per_rank, tflops, status, strategy=strategy, cp_size=cp_size, **(given | changes))


def test_bars_are_per_gpu_and_degrees_make_no_line_of_their_own():
    made = bars(
        cases(*(row(name, size) for name in ("ring_p2p", "usp") for size in (8, 16, 32))).measured, "cp_size", {}
    )
    assert {bar.label for bar in made} == {"ring_p2p (fa3)", "usp (fa3)"}
    first = next(bar for bar in made if bar.x == 16)
    assert (first.height, first.low, first.high) == pytest.approx((50, 49.5, 50.5))


def test_two_cases_of_one_position_are_told_apart():
    held = cases(
        row("loongtrain", 16, mesh='{"window":1}'), row("loongtrain", 16, mesh='{"window":2}', case_id="other")
    )
    assert [one["label"] for one in held.measured] == ["loongtrain (fa3, window 1)", "loongtrain (fa3, window 2)"]


def test_a_picture_per_mask_pass_and_tokens_per_rank(tmp_path):
    cells = cases(
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
    cells = cases(*(row("ulysses", 2, per_rank=share) for share in (8192, 16384, 32768)))
    (one,) = drawings(cells)
    axes = one.draw().axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["8K", "16K", "32K"]
    assert "2 GPUs" in one.caption
    (other,) = drawings(
        cases(*(row("ulysses", 2, per_rank=share, device="EPYC", peak_memory_bytes=None) for share in (8192, 16384)))
    )
    assert (other.draw().axes[0].get_ylabel(), other.draw().axes[0].get_xlabel()) == (
        "TFLOP/s per CPU rank",
        "tokens per CPU rank",
    )
    assert "GPU" not in other.caption


def test_kernel_cases_are_not_drawn():
    kernel = cell("fa3")
    assert drawings(cases(kernel)) == []
    assert "throughput_by_cp_size" in plugins.names("figures")
    assert len(drawings(cases(kernel, row("usp", 8)))) == 1


def test_captions_name_the_figure_of_the_page():
    (one,) = drawings(cases(row("usp", 8, device="NVIDIA H100 80GB HBM3", seqlen_per_rank=8192)))
    assert one.caption.endswith("Corresponds to figure 48 of the published page.")
    (other,) = drawings(cases(row("usp", 8, per_rank=16384, device="NVIDIA H200", pass_="bwd")))
    assert other.caption.endswith("figure 49 of the published page (there on H100, other tokens per GPU).")
