"""Verdicts, standings and comparisons with the published page: what the report says is what the rows hold."""

from __future__ import annotations

from dataclasses import replace

import pytest
from report_cells import cases, cell, distributed

from attnspec.report.beside_published import disagreements, pairs, shared_differences, summary
from attnspec.report.published import published
from attnspec.report.published_setup import differences
from attnspec.report.sections import overview
from attnspec.report.standings import doubts, standings
from attnspec.report.verdicts import absences, shaky, verdicts

PUBLISHED = published().to_pylist()


def said(*rows) -> str:
    (one,) = verdicts(cases(*rows).measured)
    return one.text


def at(seqlen: int, **speeds: float) -> list:
    return [cell(kernel, seqlen, tflops) for kernel, tflops in speeds.items()]


def test_one_winner_everywhere():
    rows = [*at(1024, fa3=120, fa2=100, sdpa=50), *at(2048, fa3=140, fa2=100)]
    assert said(*rows) == "fa3 is fastest at both sizes, 20 to 40% ahead of fa2."
    assert verdicts(cases(*rows).measured)[0].winners == ("fa3",)


def test_ranks_of_a_cpu_are_no_gpus():
    rows = [
        cell("sdpa", 1024, tflops, strategy=name, cp_size=2, device="EPYC")
        for name, tflops in (("usp", 3.0), ("ulysses", 2.0))
    ]
    (said,) = verdicts(cases(*rows).measured)
    assert "at 2 CPU ranks (1K)" in said.text
    shaken = [replace(row, time_ms_ci_high=10 * row.time_ms_median) for row in rows]
    assert "causal, forward, 2 CPU ranks: interval is" in overview(cases(*shaken).measured)


def test_different_winners_by_size():
    rows = [*at(1024, fa2=120, fa3=100), *at(2048, fa3=250, fa2=100), *at(4096, fa3=350, sdpa=100)]
    assert said(*rows) == (
        "fa3 is fastest at 2K and 4K, 2.5 to 3.5 times as fast as the next; fa2 is fastest at 1K, 20% ahead of fa3."
    )


def test_intervals_that_meet_are_no_victory():
    assert said(*at(1024, fa3=101, fa2=100)) == "fa3 and fa2 are too close to call at 1K."
    assert said(*at(1024, fa3=102.1, fa2=100)) == "fa3 is fastest at 1K, 2% ahead of fa2."
    tied = [*at(1024, fa3=101, fa2=100), *at(2048, fa3=101, flex=100), *at(4096, fa3=201, fa2=200)]
    assert said(*tied) == ("fa3 and fa2 are too close to call at 1K and 4K; fa3 and flex are too close to call at 2K.")


def test_who_is_alone_and_where_nothing_is_ok():
    rows = [
        cell("fa3", 1024),
        cell("fa2", 1024, status="oom"),
        cell("fa3", 2048, status="oom"),
        cell("fa2", 4096, status="skipped"),
    ]
    assert said(*rows) == "only fa3 is ok at 1K; nothing that ran is ok at 2K."
    marks = [cell("fa2", status="oom"), cell("fa3", status="unsupported", reason_code="no_lowering")]
    assert said(*marks) == "No case is ok: 1 oom (device memory), 1 unsupported (no lowering)."
    assert said(cell(tflops=None), *marks[:1]).startswith("No case has a throughput: 1 ok (no samples), 1 ")


def test_what_was_left_out_is_not_judged():
    assert verdicts(cases(cell(status="skipped")).measured) == []
    assert standings(cases(cell(status="skipped")).measured) == []


def test_groups_are_apart_by_device_pass_shape_and_level():
    rows = [
        cell(),
        cell(pass_="bwd"),
        cell(head_dim=64),
        cell(device="NVIDIA B200"),
        cell(mask="full"),
        *distributed()[:1],
    ]
    assert len(verdicts(cases(*rows).measured)) == 6
    assert verdicts(cases(*distributed()).measured)[0].text.startswith("ring_p2p (fa3) is fastest at all 4 sizes")


def test_absences_are_counted_by_reason():
    rows = [
        *(cell("fa2", size, status="unsupported") for size in (1, 2, 3)),
        cell("fa3", status="oom", reason="first\nsecond"),
    ]
    assert [(one.label, one.status, one.reason, one.count) for one in absences(cases(*rows).measured)] == [
        ("fa2", "unsupported", "why it is unsupported", 3),
        ("fa3", "oom", "first", 1),
    ]
    told = "CUDA out of memory. Tried to allocate {} GiB. GPU 0 has {} GiB free."
    failed = [cell("sdpa", size, status="oom", reason=told.format(size, size + 7)) for size in (16, 64)]
    assert [one.reason for one in absences(cases(*failed).measured)] == [
        "CUDA out of memory. Tried to allocate 16 GiB (1 x), 64 GiB (1 x)"
    ]


def clocked(*given):
    """Rows of cells and of how much their clocks moved."""
    spreads = {("run", row.case_id): share for row, share in given if share is not None}
    return cases(*(row for row, _ in given), clock_spreads=spreads).measured


def test_wide_intervals_and_clocks_that_moved_are_doubted():
    wide = cell("fa2", time_ms_median=1.0, time_ms_ci_low=0.9, time_ms_ci_high=1.1)
    held = clocked(
        (wide, 0.01), (cell("fa3"), 0.07), (cell("fa4"), 0.05), (cell("flex", status="oom"), 0.2), (cell("ffa"), None)
    )
    assert [(row["kernel"], why) for row, why in shaky(held)] == [
        ("fa2", "interval is 20% of the median wide"),
        ("fa3", "SM clock moved by 7%"),
    ]


def test_a_chip_at_its_power_limit_is_no_doubt():
    held = clocked((cell("fa2", throttled=True, sm_clock_mhz=1500.0), 0.02), (cell("fa3", throttled=True), None))
    assert shaky(held) == []


def test_cases_whose_clock_alone_moved_are_one_line():
    wide = cell("ffa", time_ms_median=1.0, time_ms_ci_low=0.9, time_ms_ci_high=1.1)
    text = overview(clocked((cell("fa2"), 0.06), (cell("fa3"), 0.12), (wide, 0.3), (cell("fa4"), 0.01)))
    assert "<li>2 cases whose SM clock moved, by up to 12%, and nothing else.</li>" in text
    assert "interval is 20% of the median wide, SM clock moved by 30%" in text
    assert "<b>3</b><span>to read with care</span>" in text and "fa2</b>, causal" not in text


def test_a_case_whose_profile_shows_nothing_is_read_with_care():
    held = cases(cell("fa2", kernel_names=[]), cell("fa3", kernel_names=["flash_fwd"]), cell("sdpa")).measured
    assert [doubts(row) for row in held] == [["no profile shows which kernels ran"], [], []]


NO_INTERVAL = dict.fromkeys(("time_ms_ci_low", "time_ms_ci_high", "tflops_ci_low", "tflops_ci_high"))


def test_a_case_without_an_interval_is_read_with_care_first():
    wide = cell("fa2", time_ms_median=1.0, time_ms_ci_low=0.9, time_ms_ci_high=1.1)
    held = cases(wide, cell("fa3", **NO_INTERVAL)).measured
    assert [(row["kernel"], why) for row, why in shaky(held)] == [
        ("fa3", "no interval, for a pack has one round"),
        ("fa2", "interval is 20% of the median wide"),
    ]
    assert doubts(cases(cell("fa3", tflops=None)).measured[0]) == []


@pytest.mark.parametrize("without", ["fa3", "fa2", "sdpa"])
def test_a_case_without_an_interval_is_told_apart_from_none(without):
    speeds = {"fa3": 100.0, "fa2": 80.0, "sdpa": 50.0}
    rows = [cell(kernel, 1024, speed, **(NO_INTERVAL if kernel == without else {})) for kernel, speed in speeds.items()]
    other = "sdpa" if without == "sdpa" else "fa2"
    (place,) = standings(cases(*rows).measured)
    assert place.tied and place.rival["kernel"] == other
    assert verdicts(cases(*rows).measured)[0].text == f"fa3 and {other} are too close to call at 1K."


def test_two_cases_with_one_name_are_two_implementations():
    rows = [cell("sdpa", case_id=name, backend="flash", tflops=speed) for name, speed in (("b", 100.0), ("a", 50.0))]
    assert said(*rows) == "sdpa flash (1 of 2) is fastest at 1K, 2.0 times as fast as sdpa flash (2 of 2)."
    tied = [rows[0], replace(rows[1], tflops=99.0, tflops_ci_high=100.0)]
    assert said(*tied) == "sdpa flash (1 of 2) and sdpa flash (2 of 2) are too close to call at 1K."
    assert "<b>2</b><span>implementations</span>" in overview(cases(*rows).measured)


def beside(*rows):
    return pairs(cases(*rows, published=PUBLISHED))


def test_pairs_need_the_same_class_mask_pass_shape_size_and_kernel():
    point = {"mask": "full", "device": "NVIDIA H100 80GB HBM3"}
    (one,) = beside(cell("fa3", 32768, 701.5, **point))
    assert one.ratio == 1 and not one.notable and one.published["figure"] == 20
    for other in (
        {"device": "NVIDIA B200"},
        {"head_dim": 64},
        {"dtype": "float16"},
        {"pass_": "fwd_bwd"},
        {"mask": "causal_blockwise"},
    ):
        assert beside(cell("fa3", 32768, 701.5, **(point | other))) == []
    assert beside(cell("fa3", 65536, **point)) == beside(cell("reference", 32768, **point)) == []
    assert beside(cell("fa3", 32768, status="skipped", **point)) == []
    window = {"mask": "sliding_window_causal", "device": point["device"]}
    assert len(beside(cell("fa3", 32768, mask_params='{"window":1024}', **window))) == 1
    assert beside(cell("fa3", 32768, mask_params='{"window":1025}', **window)) == []


@pytest.mark.parametrize(("factor", "notable"), [(1.05, False), (0.95, False), (1.2, True), (0.8, True)])
def test_ten_percent_is_spoken_of(factor, notable):
    (one,) = beside(cell("fa3", 32768, 701.5 * factor, mask="full", device="NVIDIA H100 80GB HBM3"))
    assert one.notable == bool(one.text) == notable
    assert one.ratio == pytest.approx(factor)


def test_what_cannot_be_read_exactly_is_not_spoken_of():
    small = next(row for row in PUBLISHED if row["tflops"] is not None and row["tflops"] < 2)
    given = {name: small[name] for name in ("mask", "mask_params", "cp_size")}
    device = {"h100": "NVIDIA H100 80GB HBM3", "b200": "NVIDIA B200"}[small["device"]]
    (one,) = beside(
        cell(small["kernel"], small["seqlen"], small["tflops"] + 0.4, pass_=small["pass"], device=device, **given)
    )
    assert not one.notable


def test_marks_on_either_side_are_told():
    crossed = next(row for row in PUBLISHED if row["status"] != "ok" and row["device"] == "h100")
    given = {name: crossed[name] for name in ("mask", "mask_params")} | {
        "pass_": crossed["pass"],
        "device": "NVIDIA H200",
    }
    assert beside(cell(crossed["kernel"], crossed["seqlen"], **given))[0].text == "An X on the page; here it ran."
    (ours,) = beside(cell("fa3", 32768, status="oom", mask="full"))
    assert ours.text == "701.5 TFLOP/s on the page; oom here." and ours.ratio is None


def test_disagreements_are_gathered_and_say_what_differs():
    rows = [
        cell("flex", size, 400.0, mask="sliding_window_causal", mask_params='{"window":1024}', backend="TRITON")
        for size in (8192, 32768)
    ]
    rows += [
        cell("fa3", size, 100.0, mask="full", provider="xformers", provider_version="0.0.34") for size in (8192, 32768)
    ]
    found = disagreements(beside(*rows))
    assert [one.heading for one in found] == [
        "flex TRITON: sliding window causal (window 1024), forward",
        "fa3: full, forward",
    ]
    assert "dense score mod" in " ".join(found[0].differs) and "1,025 keys" in " ".join(found[0].differs)
    assert "fa3 runs from xformers 0.0.34 here" in " ".join(found[1].differs)
    assert found[1].text.startswith("8") and found[1].text.endswith("slower than published at 2 sizes from 8K to 32K")
    assert shared_differences(found)[0].startswith("NVIDIA H200 SXM in place of NVIDIA H100 SXM")


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        ("ulysses", "repeats K and V outside the timed region"),
        ("usp", "at 8 GPUs it equals ulysses"),
        ("hybrid_dcp", "does not re-shard"),
        ("magi_attn_a2av", "experimental features"),
    ],
)
def test_strategies_say_what_the_page_did(strategy, words):
    (row,) = cases(cell("fa3", 65536, strategy=strategy, cp_size=8, mask="varlen_full", pass_="bwd")).measured
    told = " ".join(differences(row))
    assert words in told and "projection gradients (about 3 percent" in told


def test_the_summary_counts():
    point = {"mask": "full", "device": "NVIDIA H100 80GB HBM3"}
    held = beside(cell("fa3", 32768, 701.5, **point), cell("fa2", 32768, status="oom", **point))
    assert summary(held) == (
        "2 cases match a published point. Measured over published: median 1.00, from 1.00 to 1.00; 1 within 10 percent."
    )
    assert "none has a throughput on both sides" in summary(held[1:])
