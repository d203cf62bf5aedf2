"""Terminals of any width are filled and never overrun; logs get whole plain lines."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from attnspec.cli._console import show, wrapped
from attnspec.cli._progress import watching
from attnspec.launch.happenings import CaseEnded, JobBegan, TurnBegan
from attnspec.plan import Plan, compile_plan
from attnspec.report.run import open_run
from attnspec.report.summary import summary_tables, winners
from attnspec.spec import load_spec
from attnspec.support import Device

ROOT = Path(__file__).parents[2]
WORDS = st.text("abc ()-", max_size=120)


@given(WORDS, st.integers(10, 80))
def test_wrapping_loses_no_word_and_overruns_for_long_words_only(line: str, width: int) -> None:
    parts = wrapped(line, width)
    assert " ".join(parts).split() == line.split()
    for part in parts:
        assert len(part) <= width or " " not in part.strip() or part.rstrip() != part or len(parts) == 1


def test_what_does_not_fit_goes_on_below_its_column() -> None:
    line = "  no   fa2  flash-attn: not installed; torch: runs on cuda, not on cpu"
    assert wrapped(line, 40) == [
        "  no   fa2  flash-attn: not installed;",
        "            torch: runs on cuda, not on",
        "            cpu",
    ]


def console(width: int, *, terminal: bool = True) -> Console:
    return Console(width=width, file=io.StringIO(), force_terminal=terminal, color_system=None, highlight=False)


def test_logs_get_lines_as_they_are(capsys) -> None:
    line = "word " * 60
    show([line, "[not markup]"], [("word", "good")], console=console(40, terminal=False))
    assert capsys.readouterr().out == f"{line}\n[not markup]\n"


@pytest.fixture(scope="module")
def plan() -> Plan:
    return compile_plan(load_spec(ROOT / "specs" / "quickstart.yaml"), device=Device(type="cpu"))


def watched(plan: Plan, width: int, seconds: list[float]) -> list[str]:
    """Every line that a terminal shows while three cases end."""
    place = console(width)
    clock = iter([*seconds, *[seconds[-1]] * 1000])
    first, second, third, fourth = plan.cases[:4]
    with watching(place, plan.cases, now_s=lambda: next(clock)) as watch:
        watch(JobBegan(job=plan.jobs[0], number=1, num_jobs=2, cases=plan.cases))
        watch(CaseEnded(case=first, status="ok", reason=None, resumed=False))
        watch(CaseEnded(case=second, status="unsupported", reason="a reason of many words " * 5, resumed=False))
        watch(CaseEnded(case=third, status="crashed", reason="signal", resumed=False))
        watch(TurnBegan(case=fourth, phase="measure"))
        place.print(watch)
    return [line.rstrip() for line in place.file.getvalue().replace("\r", "\n").splitlines()]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_progress_fits_and_counts(plan: Plan, width: int, monkeypatch) -> None:
    for name in ("CI", "NO_COLOR", "GITHUB_ACTIONS", "TERM"):
        monkeypatch.delenv(name, raising=False)
    lines = watched(plan, width, [0.0, 1.0, 2.0, 3.0, 3.0])
    text = "\n".join(lines)
    assert "3/96 1 ok 1 X 1 failed" in text
    assert "job 1/2  measure sdpa, full 256" in text
    assert any("unsupported  reference, full 256 bwd: a" in line for line in lines)
    shown = [line for line in lines if "\x1b" not in line]
    assert max(map(len, shown)) <= width
    # 144 packs in all, three done at one a second
    assert ("about 2 min left" in text) == (width >= 80)


@pytest.mark.parametrize(("name", "value"), [("CI", "true"), ("NO_COLOR", "1"), ("TERM", "dumb")])
def test_logs_that_look_like_terminals_get_lines(plan: Plan, name: str, value: str, monkeypatch) -> None:
    monkeypatch.setenv(name, value)
    place = console(120)
    with watching(place, plan.cases) as watch:
        watch(JobBegan(job=plan.jobs[0], number=1, num_jobs=1, cases=plan.cases))
        watch(CaseEnded(case=plan.cases[0], status="ok", reason=None, resumed=False))
    lines = [line.rstrip() for line in place.file.getvalue().splitlines()]
    assert lines == ["job 1 of 1: 96 cases, 1 rank", "         ok  reference, full 256 fwd  1/96"]


@pytest.mark.parametrize("width", [40, 80, 160])
def test_summary_keeps_numbers_whole_at_any_width(width: int) -> None:
    cells = open_run(ROOT / "data" / "measured" / "h200_check").cells
    cells = cells.filter(pc.is_in(cells["status"], pa.array(["ok", "unsupported"])))
    place = console(width)
    for table in summary_tables(cells, width=width):
        place.print(table)
    text = place.file.getvalue()
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    assert text.count("*") >= len(
        {(row["mask"], row["seqlen"], row["pass"]) for row in cells.to_pylist() if row["tflops"]}
    )
    assert "111~" in text  # fa3 and cudnn at 1K: their intervals meet


def test_winners_are_counted() -> None:
    rows = open_run(ROOT / "data" / "measured" / "h200_check").cells.to_pylist()
    (line,) = winners(rows)
    assert line.startswith("fastest, of 26 comparisons: ")
    assert sum(int(part.split()[-1]) for part in line.partition(": ")[2].split(", ")) == 26
    assert winners([]) == []
