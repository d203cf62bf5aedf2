"""Throughput figures: every case is on them, whatever its status."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from report_cells import cases, cell, table

from attnspec.drawing import saving
from attnspec.drawing.cases import Cases, cases_of
from attnspec.drawing.look import STATUS_MARKS, implementation, labelled
from attnspec.drawing.palette import looks
from attnspec.drawing.saving import save
from attnspec.figures.throughput_by_seqlen import drawings
from attnspec.record.status import Status
from attnspec.report.published import published


def cells(**changes) -> list:
    """Every status, three kernels, three lengths."""
    statuses = itertools.cycle(Status)
    return [
        cell(kernel, seqlen, 1.5, str(next(statuses)), backend=backend, device="NVIDIA <H200>", num_heads_q=8, num_heads_kv=2, **changes)
        for kernel, backend, seqlen in itertools.product(("sdpa", "flex", "fa4"), (None, "TRITON"), (1024, 2048, 1000))
    ]  # fmt: skip


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small PNGs: what they show is looked at in the SVGs."""
    monkeypatch.setattr(saving, "_DPI", 40)


def svg_text(drawing, folder: Path) -> str:
    save(drawing, folder)
    assert (folder / f"{drawing.stem}.png").read_bytes().startswith(b"\x89PNG")
    return "".join(ET.fromstring((folder / f"{drawing.stem}.svg").read_bytes()).itertext())


def test_every_status_has_a_mark():
    assert set(STATUS_MARKS) == {str(status) for status in Status} - {"ok"}


def test_an_svg_shows_every_implementation_mark_and_reason(tmp_path):
    (drawing,) = drawings(cases(*cells()))
    text = svg_text(drawing, tmp_path)
    for word in ("flex TRITON", "fa4", "sdpa", "1K", "2K", "1000", "Causal, forward", "NVIDIA <H200>", "heads 8:2"):
        assert word in text
    assert all(mark in text for mark in STATUS_MARKS.values())
    assert "sdpa TRITON: why it is " in text


def test_pictures_carry_their_caption(tmp_path):
    (drawing,) = drawings(cases(cell(mask="full")))
    save(drawing, tmp_path)
    for suffix in ("svg", "png"):
        assert b"Corresponds to figure 20 of the published page" in (tmp_path / f"{drawing.stem}.{suffix}").read_bytes()


def test_the_same_cells_give_the_same_svg(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        save(drawings(cases(*cells()))[0], tmp_path / folder)
    one, other = (next((tmp_path / folder).glob("*.svg")).read_bytes() for folder in ("a", "b"))
    assert one == other


def test_masks_passes_shapes_and_devices_are_apart():
    assert drawings(cases()) == []
    mixed = [
        *(cell(), cell(pass_="bwd"), cell(mask="full"), cell(device="NVIDIA B200"), cell(head_dim=64)),
        *(cell(mask="sliding_window_causal", mask_params=f'{{"window":{size}}}') for size in (512, 1024)),
    ]
    assert len(drawings(cases(*mixed))) == 7


def test_bars_of_height_zero_have_an_axis():
    """An empty mask takes time and computes nothing."""
    zero = cell(tflops=1.0)
    (drawing,) = drawings(
        cases(cell(tflops=0.0, tflops_ci_low=0.0, tflops_ci_high=0.0, time_ms_median=zero.time_ms_median))
    )
    assert drawing.draw().axes[0].get_ylim() == (0, pytest.approx(1.12))


def test_cases_that_no_worker_saw_stand_beside_the_others():
    left_out = [cell("fa3", seqlen, status="skipped", device=None) for seqlen in (1024, 2048)]
    assert len(drawings(cases(*cells(), *left_out))) == 1


def test_a_picture_of_marks_alone_needs_a_whole_run():
    marks = [cell(status="unsupported"), cell("flex", status="unsupported")]
    assert len(drawings(cases(*marks))) == 1
    assert drawings(cases(*marks, cell("fa3", status="skipped"))) == []


def test_a_picture_without_any_ok_case_says_so(tmp_path):
    (drawing,) = drawings(cases(cell(status="oom"), cell("flex", status="unsupported")))
    text = svg_text(drawing, tmp_path)
    assert "no case of this picture is ok" in text
    assert "why it is oom" in text and "why it is unsupported" in text


def test_the_second_axis_counts_the_devices_peak():
    (drawing,) = drawings(cases(cell(tflops=494.7)))
    bars, share = drawing.draw().axes
    assert share.get_ylim()[1] == pytest.approx(bars.get_ylim()[1] / 989.4 * 100)
    for other in (cell(dtype="float32"), cell(device="Some CPU")):
        (drawing,) = drawings(cases(other))
        assert len(drawing.draw().axes) == 1


def test_many_bars_stand_in_strips():
    lengths = [1024 * 2**step for step in range(7)]
    (drawing,) = drawings(cases(*(cell("sdpa", size, backend=f"b{part}") for size in lengths for part in range(16))))
    strips = [axes for axes in drawing.draw().axes if axes.get_ylabel() == "TFLOP/s"]
    shown = [tick.get_text() for axes in strips for tick in axes.get_xticklabels()]
    assert shown == ["1K", "2K", "4K", "8K", "16K", "32K", "64K"]
    assert len(strips) == 2
    assert drawing.draw().get_figwidth() == 7.16


def test_captions_name_the_figure_of_the_page():
    def caption(**changes) -> str:
        return drawings(cases(cell(**changes)))[0].caption

    assert caption(device="NVIDIA H100 80GB HBM3", mask="full").endswith(
        "Corresponds to figure 20 of the published page."
    )
    assert caption(mask="full", pass_="bwd").endswith("Corresponds to figure 21 of the published page (there on H100).")
    assert caption(head_dim=64).endswith("figure 22 of the published page (there on H100, another shape).")
    assert "Corresponds" not in caption(mask="sliding_window_causal", mask_params='{"window":512}')
    assert "Corresponds" not in caption(device="Some CPU")


def test_published_points_stand_where_everything_matches():
    def diamonds(**changes) -> int:
        held = cases(cell("fa3", 8192, mask="full", **changes), published=published().to_pylist())
        axes = drawings(held)[0].draw().axes[0]
        return sum(line.get_marker() == "d" for line in axes.get_lines())

    assert diamonds() == 1
    assert diamonds(status="unsupported") == 1
    (legend,) = {
        text.get_text()
        for held in drawings(cases(cell("fa3", 8192, mask="full"), published=published().to_pylist()))
        for one in held.draw().legends
        for text in one.get_texts()
        if "page" in text.get_text()
    }
    assert legend == "published page, on H100"
    for other in ({"seqlen_per_rank": 1, "head_dim": 64}, {"device": "NVIDIA A100-SXM4-40GB"}, {"dtype": "float16"}):
        assert diamonds(**other) == 0
    both = [cell("fa3", 8192, mask="full", provider=name, backend=None) for name in ("xformers", "flash-attn-3")]
    both[1] = cell("fa3", 8192, mask="full", provider="flash-attn-3", status="unsupported", case_id="other")
    axes = drawings(cases(*both, published=published().to_pylist()))[0].draw().axes[0]
    assert sum(line.get_marker() == "d" for line in axes.get_lines()) == 1


def test_hostile_names_are_drawn(tmp_path):
    names = ("$\\frac{", "<script>alert(1)</script>", "a\x00b\x1b[31m", "\ud800", "x" * 300, "日本語")
    rows = [
        cell("fa2", 1024 + index, backend=name, case_id=str(index))
        for index, name in enumerate(names)
        if name != "\ud800"
    ]
    rows += [cell("fa3", status="error", reason="$\\bad{ \x00 <b>\n second")]
    (drawing,) = drawings(cases(*rows))
    text = svg_text(drawing, tmp_path)
    assert "<script>alert(1)</script>" in text and "$\\frac{" in text


@pytest.mark.parametrize(
    ("row", "label"),
    [
        ({"strategy": None, "kernel": "fa4", "backend": None}, "fa4"),
        ({"strategy": "usp", "kernel": "sdpa", "backend": "cudnn"}, "usp (sdpa cudnn)"),
    ],
)
def test_labels(row, label):
    assert implementation(row) == label


def test_what_tells_labels_apart_is_named():
    ran = {"kernel": "fa3", "strategy": None, "backend": None, "provider": "xformers", "mesh": None, "env": "{}"}
    tuned = {**ran, "strategy": "magi_attn_native", "env": '{"CUDA_DEVICE_MAX_CONNECTIONS":"8"}'}
    rows = [ran, {**ran, "provider": "flash-attn-3"}, tuned, {**tuned, "env": "{}"}]
    assert [label for label, _ in labelled(rows)] == [
        *("fa3 (xformers)", "fa3 (flash-attn-3)"),
        *("magi_attn_native (fa3, CUDA_DEVICE_MAX_CONNECTIONS 8)", "magi_attn_native (fa3)"),
    ]


def test_degrees_tell_cases_of_one_workload_apart_only():
    def one(mesh, **changes):
        return {
            "kernel": "fa3",
            "strategy": "usp",
            "backend": None,
            "provider": None,
            "mesh": mesh,
            "env": "{}",
            **changes,
        }

    full, varlen = one('{"groups_of_2":1}', mask="full"), one('{"groups_of_1":2}', mask="varlen_full")
    assert [label for label, _ in labelled([full, varlen, {**full, "mesh": "{}"}])] == ["usp (fa3)"] * 3
    assert [label for label, _ in labelled([full, one('{"groups_of_4":1}', mask="full")])] == [
        "usp (fa3, groups_of_2 1)",
        "usp (fa3, groups_of_4 1)",
    ]


@pytest.mark.parametrize(
    ("others", "labels"),
    [
        ([{}], ["sdpa flash (1 of 2)", "sdpa flash (2 of 2)"]),
        ([{}, {}], ["sdpa flash (1 of 3)", "sdpa flash (2 of 3)", "sdpa flash (3 of 3)"]),
        ([{"kernel_params": '{"block":2}'}], ["sdpa flash", "sdpa flash (block 2)"]),
        (
            [{"provider": "other"}, {}],
            ["sdpa flash (torch, 1 of 2)", "sdpa flash (other)", "sdpa flash (torch, 2 of 2)"],
        ),
        ([{"status": "unsupported", "backend": None, "device": None}], ["sdpa flash", "sdpa"]),
        ([{"status": "unsupported", "device": None}], ["sdpa flash (1 of 2)", "sdpa flash (2 of 2)"]),
        ([{"seqlen": 2048, "status": "skipped", "backend": None}], ["sdpa flash", "sdpa flash"]),
    ],
    ids=["twice", "three times", "parameters", "providers", "no backend", "no device", "other workload"],
)
def test_cases_of_one_workload_never_share_a_label(others, labels):
    held = [
        cell("sdpa", case_id=str(index), **{"backend": "flash", "kernel_params": "{}", **one})
        for index, one in enumerate([{}, *others])
    ]
    rows = table(*held).to_pylist()
    assert [label for label, _ in labelled(rows)] == labels
    assert [row["label"] for row in cases(*held).measured] == labels


def test_the_first_of_the_spec_is_the_first_at_every_length_and_in_every_run():
    held = [
        cell("sdpa", size, case_id=f"{name} {size}", backend="flash") for size in (1024, 2048) for name in ("b", "a")
    ]
    rows = cases(*held).measured
    assert [(row["case_id"], row["label"]) for row in rows] == [
        (f"{name} {size}", f"sdpa flash ({place} of 2)")
        for size in (1024, 2048)
        for place, name in ((1, "b"), (2, "a"))
    ]
    assert [row["label"] for row in two_runs(held[:2], held[:2]).measured] == [
        f"sdpa flash ({run}, {place} of 2)" for run in ("before", "after") for place in (1, 2)
    ]


def test_every_bar_of_two_cases_with_one_name_is_drawn(tmp_path):
    held = [cell("sdpa", case_id=name, backend="flash", tflops=speed) for name, speed in (("b", 100.0), ("a", 80.0))]
    (drawing,) = drawings(cases(*held))
    bars = [one for axes in drawing.draw().axes for one in axes.patches if one.get_height()]
    assert sorted(round(bar.get_height()) for bar in bars) == [80, 100]
    assert len({(bar.get_facecolor(), bar.get_hatch()) for bar in bars}) == 2
    text = svg_text(drawing, tmp_path)
    assert "sdpa flash (1 of 2)" in text and "sdpa flash (2 of 2)" in text


def test_what_was_predicted_says_so():
    assert [row["label"] for row in cases(cell(source="predicted"), cell("fa3")).measured] == [
        "sdpa (predicted)",
        "fa3",
    ]


def two_runs(one: list, other: list) -> Cases:
    return cases_of([("before", table(*one)), ("after", table(*other))])


def test_one_case_in_two_runs_is_two_lines():
    held = two_runs([cell(), cell("flex")], [cell(tflops=50.0)])
    assert [row["label"] for row in held.measured] == ["sdpa (before)", "flex", "sdpa (after)"]
    assert [row["label"] for row in two_runs([cell()], [cell(device="NVIDIA B200")]).measured] == ["sdpa", "sdpa"]


def test_other_packs_of_another_run_hide_nothing():
    held = two_runs([cell(), cell("flex")], [cell(case_id="of another seed", tflops=50.0)])
    assert [row["label"] for row in held.measured] == ["sdpa (before)", "flex", "sdpa (after)"]


def test_a_case_that_one_run_left_out_stands_once():
    held = two_runs([cell(), cell("flex", status="skipped")], [cell(status="skipped"), cell("flex")])
    assert [(row["run"], row["label"], row["status"]) for row in held.measured] == [
        ("before", "sdpa", "ok"),
        ("after", "flex", "ok"),
    ]


def test_one_look_a_label_whatever_else_a_picture_holds():
    held = cases(
        cell("fa3", mask="full", provider="one"),
        cell("fa3", mask="full", provider="seven", case_id="other"),
        cell("fa3", mask="causal", provider="seven"),
        cell("fa3", mask="causal", strategy="ulysses", cp_size=2),
        cell("fa3", mask="causal", status="skipped", provider="left out"),
    )
    seen = {}
    for drawing in drawings(held):
        bars = [one for axes in drawing.draw().axes for one in axes.patches if one.get_height()]
        for bar in bars:
            seen.setdefault((bar.get_facecolor(), bar.get_hatch()), []).append(drawing.stem)
    assert sorted(map(len, seen.values())) == [1, 2]
    known = {row["label"]: row["look"] for row in held.measured}
    assert len({known["fa3 (one)"].colour, known["fa3 (seven)"].colour}) == 2
    assert known["ulysses (fa3)"] == looks(["ulysses (fa3)"])["ulysses (fa3)"]


def test_a_letter_and_a_published_value_both_show():
    point = next(
        row
        for row in published().to_pylist()
        if row["kernel"] == "sdpa" and row["mask"] == "varlen_causal" and row["tflops"]
    )
    same = {name: point[name] for name in ("mask", "mask_params", "seqlen")}
    held = cases(
        cell("sdpa", status="oom", pass_=point["pass"], **same),
        cell("fa3", tflops=20 * point["tflops"], pass_=point["pass"], **same),
        published=[point],
    )
    (drawing,) = drawings(held)
    axes = drawing.draw().axes[0]
    (letter,) = [text for text in axes.texts if text.get_text() == STATUS_MARKS["oom"]]
    assert letter.get_position()[1] > point["tflops"]


@pytest.mark.parametrize("tflops", [0.0023, 700.0, 12_345.0])
def test_no_axis_title_is_cut_off(tflops):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    (drawing,) = drawings(cases(cell(tflops=tflops)))
    figure = drawing.draw()
    FigureCanvasAgg(figure).draw()
    assert figure.axes[0].yaxis.label.get_window_extent().x0 > 0


def test_what_was_left_out_of_a_run_is_not_drawn(tmp_path):
    left_out = cell("left_out", 4096, status="skipped", device="NVIDIA <H200>", num_heads_q=8, num_heads_kv=2)
    (drawing,) = drawings(cases(*cells(), left_out))
    text = svg_text(drawing, tmp_path)
    assert "sdpa" in text
    assert "left_out" not in text
    assert "4K" not in text
