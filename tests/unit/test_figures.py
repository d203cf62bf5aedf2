"""The figures beyond throughput: what they hold, and that every shipped file draws what it applies to."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from report_cells import MASKS, cases, cell, distributed

from attnspec import plugins
from attnspec.drawing.cases import Packs
from attnspec.drawing.saving import save
from attnspec.figures import (
    balance_and_exposure,
    density_and_efficiency,
    sampled_packs,
    scaling_efficiency,
    setup_and_steady_time,
    speed_against_fastest,
)
from attnspec.sample import draw_packs, read_lengths


def kernels() -> list:
    return [
        cell(kernel, seqlen, 100.0 * rank, mask=mask, mask_params=params, density=density)
        for rank, kernel in enumerate(("sdpa", "flex", "fa3"), 1)
        for mask, params, density in MASKS
        for seqlen in (1024, 4096)
    ]


def packs(name: str = "page") -> Packs:
    lengths = read_lengths(name)
    held = draw_packs(lengths, seqlen=4096, num_packs=3, max_doc_fraction=0.25, seed=1)
    return Packs(run="run", lengths=lengths, seqlen=4096, max_length=1024, seed=1, packs=held)


def texts(axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


@pytest.mark.parametrize("name", plugins.names("figures"))
def test_every_figure_draws_and_says_what_it_shows(name, tmp_path):
    held = cases(*kernels(), *distributed(), packs=[packs()])
    made = plugins.load("figures", name).drawings(held)
    assert made
    for one in made[:1]:
        assert one.caption.endswith(".") and one.title
        figure = one.draw()
        figure.savefig(tmp_path / "one.svg")
        assert figure.get_figwidth() == 7.16 and 1.5 < figure.get_figheight() < 10


@pytest.mark.parametrize("name", plugins.names("figures"))
def test_numbers_that_are_none_are_not_drawn(name):
    odd = [
        cell("fa2", 1024 * 2**place, value, mask=mask, density=density)
        for place, (value, (mask, _, density)) in enumerate(
            zip((float("nan"), float("inf"), 0.0, 9.0), MASKS, strict=False)
        )
    ]
    ranks = [
        cell("fa3", 8192, value, strategy="usp", cp_size=count)
        for value, count in ((float("nan"), 2), (9.0, 4), (9.0, 8))
    ]
    for one in plugins.load("figures", name).drawings(cases(*odd, *ranks, cell("fa3", tflops_ci_low=float("nan")))):
        one.draw()


@pytest.mark.parametrize("name", plugins.names("figures"))
def test_names_of_any_length_leave_room_for_the_picture(name):
    long = [
        cell(f"kernel{'l' * 120}{place}", mask="m" * 90, device="d" * 90, density=0.1 * place) for place in range(1, 9)
    ]
    for one in plugins.load("figures", name).drawings(cases(*long)):
        assert min(axes.get_position().width for axes in one.draw().axes) > 0.3


def test_strategies_of_one_number_of_gpus_stand_side_by_side():
    (drawing,) = balance_and_exposure.drawings(
        cases(*(one for one in distributed() if one.cp_size == 8 and one.mask == "causal"))
    )
    for axes in drawing.draw().axes:
        places = [one.get_offsets()[0][0] for one in axes.collections]
        assert len(places) == len(set(places)) > 3
        assert axes.get_xlim() == (-0.5, 0.5) and [one.get_text() for one in axes.get_xticklabels()] == ["8"]
        assert -0.5 < min(places) < 0 < max(places) < 0.5


def test_every_number_of_gpus_has_a_band_of_its_own():
    """No mark stands where an axis of numbers would have another number than its own."""
    held = [one for one in distributed() if one.mask == "causal"]
    (drawing,) = balance_and_exposure.drawings(cases(*held))
    for axes in drawing.draw().axes:
        sizes = [one.get_text() for one in axes.get_xticklabels()]
        assert (axes.get_xscale(), sizes) == ("linear", ["8", "16", "32", "64"])
        for points in axes.collections:
            assert [round(x) for x, _ in points.get_offsets()] == list(range(points.get_offsets().shape[0]))
        spans = [
            [points.get_offsets()[place][0] for points in axes.collections if len(points.get_offsets()) > place]
            for place in range(4)
        ]
        assert all(len(set(span)) == len(span) for span in spans)
        assert all(
            left < edge < right
            for edge, one, other in zip((0.5, 1.5, 2.5), spans, spans[1:], strict=False)
            for left in one
            for right in other
        )


def test_the_axis_title_of_set_up_times_is_whole():
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    (drawing, *_) = setup_and_steady_time.drawings(
        cases(*(cell(seqlen=2**place, compile_s=20.0) for place in range(10, 15)))
    )
    figure = drawing.draw()
    FigureCanvasAgg(figure).draw()
    assert figure.axes[0].yaxis.label.get_window_extent().x0 > 0


@pytest.mark.parametrize("name", plugins.names("figures"))
def test_no_figure_draws_nothing(name):
    assert plugins.load("figures", name).drawings(cases()) == []
    only_marks = [cell(status="oom"), cell("flex", status="unsupported", device=None)]
    for one in plugins.load("figures", name).drawings(cases(*only_marks)):
        one.draw()


def test_speed_is_a_share_of_the_rows_fastest():
    rows = [*kernels(), cell("fa2", 1024, status="oom", mask="full")]
    (one,) = speed_against_fastest.drawings(cases(*rows))
    (axes,) = one.draw().axes
    shown = texts(axes)
    assert shown.count("100%") == 12 and shown.count("67%") == 12 and shown.count("33%") == 12 and "M" in shown
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["fa2", "fa3", "sdpa", "flex"]


def test_a_long_heat_map_goes_on_another_sheet():
    rows = [cell(kernel, 1024 + size) for kernel in ("sdpa", "flex") for size in range(60)]
    made = speed_against_fastest.drawings(cases(*rows))
    assert [one.title for one in made] == [f"Speed against the fastest, forward ({part} of 2)" for part in (1, 2)]
    assert len({one.stem for one in made}) == 2


def test_density_is_the_allowed_share_of_all_pairs():
    (one,) = density_and_efficiency.drawings(cases(*kernels()))
    axes = one.draw().axes[0]
    points = np.concatenate([np.asarray(held.get_offsets()) for held in axes.collections])
    assert sorted(set(points[:, 0].round(3))) == [0.05, 0.1, 0.15, 0.2, 0.5, 1.0]
    assert points[:, 1].max() == pytest.approx(300 / 989.4)
    assert axes.get_ylabel() == "share of bf16 peak"
    (unknown,) = density_and_efficiency.drawings(
        cases(*(cell(density=share, device="CPU", case_id=str(share)) for share in (0.1, 0.2, 0.3)))
    )
    assert unknown.draw().axes[0].get_ylabel() == "TFLOP/s per CPU rank"


def test_rectangles_have_their_own_density():
    held = cases(cell(mask="full", mask_params='{"seqlen_k":2048}', mask_area=1024 * 2048))
    assert held.measured[0]["density"] == 1


def test_setup_is_lowering_and_compiling_per_pack():
    rows = [cell(kernel, num_packs=4, lower_s=0.1, compile_s=0.3) for kernel in ("sdpa", "flex", "fa3")]
    (one,) = setup_and_steady_time.drawings(cases(*rows))
    points = [held.get_offsets()[0] for held in one.draw().axes[0].collections]
    assert [point[1] for point in points] == pytest.approx([100, 100, 100])


def test_balance_and_exposure_are_per_strategy():
    made = balance_and_exposure.drawings(cases(*distributed()))
    assert len(made) == 2
    left, right = made[0].draw().axes
    assert "imbalance" in left.get_title("left") and "Exposed" in right.get_title("left")
    assert len(left.lines) == 6 + 1 + 3  # and the line of perfect balance, and what parts four bands
    lost = [held.get_offsets()[:, 1].max() for held in right.collections]
    assert max(lost) == pytest.approx(0.12 * 8**0.4)


def test_weak_and_strong_scaling_stand_against_the_fewest_gpus():
    (weak,) = scaling_efficiency.drawings(cases(*distributed()))
    assert weak.title == "Weak scaling, forward, 8K tokens per GPU"
    for axes in weak.draw().axes:
        assert all(held.get_offsets()[0][1] == 1 for held in axes.collections)
    rows = [cell("fa3", 65536, 800.0 * size / 2, strategy="ulysses", cp_size=size) for size in (2, 4)]
    (strong,) = scaling_efficiency.drawings(cases(*rows))
    assert strong.title == "Strong scaling, forward, 64K tokens in all"
    alone = [cell("fa3", 65536, 800.0, strategy="ulysses", cp_size=8)]
    assert scaling_efficiency.drawings(cases(*alone)) == []


def test_the_longest_packs_of_each_distribution_are_drawn(tmp_path):
    (one,) = sampled_packs.drawings(cases(packs=[packs(), packs()]))
    assert "figure 19 of the published page" in one.caption
    other = sampled_packs.drawings(cases(packs=[packs("pile"), packs()]))
    assert len(other) == 2 and "figure 19" not in next(one for one in other if "pile" in one.stem).caption


def test_a_sign_that_the_font_lacks_is_no_warning(tmp_path):
    rows = [cell("fa2", backend="\U0001f98a"), cell("fa3")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save(speed_against_fastest.drawings(cases(*rows))[0], tmp_path)
