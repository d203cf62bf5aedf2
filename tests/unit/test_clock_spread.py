"""How much the SM clock moved while a case was measured."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from report_cells import cell, write_run

from attnspec.report import page as report_page
from attnspec.report.clock_spread import clock_spread_by_case
from attnspec.report.page import write_report
from attnspec.resources import shipped


def samples(*rows) -> pa.Table:
    """Rows of case_id, pack, rank and clock."""
    names = ("case_id", "pack", "rank", "sm_clock_mhz")
    return pa.table({name: [row[place] for row in rows] for place, name in enumerate(names)})


def spread(share: float, *, case_id: str = "c", pack: int = 0, rank: int = 0, middle: float = 1500.0) -> list:
    """Eleven samples whose 20th and 80th percentiles are `share` of their median apart."""
    return [(case_id, pack, rank, middle * (1 + share * place / 6)) for place in range(-5, 6)]


@pytest.mark.parametrize(
    ("rows", "share"),
    [
        (spread(0.06), 0.06),
        (spread(0.0), 0.0),
        ([*spread(0.02), *spread(0.08, pack=1)], 0.05),
        ([*spread(0.02), *spread(0.08, rank=1, middle=1900.0)], 0.08),
        ([*spread(0.0, middle=1500.0), *spread(0.0, pack=1, middle=1900.0)], 0.0),
        ([*spread(0.06), ("c", 0, 0, None)], 0.06),
        ([*spread(0.06), ("c", 0, 0, 750.0)], pytest.approx(0.06, abs=0.01)),
    ],
    ids=["moved", "steady", "packs", "ranks", "clock by pack", "no reading", "outlier"],
)
def test_the_spread_within_packs_of_the_rank_where_it_is_largest(rows, share) -> None:
    found = clock_spread_by_case(samples(*rows, *spread(0.3, case_id="other")))
    assert found == {"c": pytest.approx(share), "other": pytest.approx(0.3)}


def test_where_no_clock_was_read_nothing_is_said() -> None:
    assert clock_spread_by_case(samples(("c", 0, 0, None)).cast(pa.schema([
        ("case_id", pa.string()), ("pack", pa.int32()), ("rank", pa.int32()), ("sm_clock_mhz", pa.float64())
    ]))) == {}  # fmt: skip


def test_the_page_tells_of_clocks_that_moved_and_of_no_power_limit(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(report_page, "save", lambda *_: None)
    held = [cell("fa2", throttled=True), cell("fa3", 2048, throttled=True)]
    folder = write_run(tmp_path / "run", held)
    timings = pq.read_table(folder / "timings.parquet")
    clocks = [
        1500.0 + (100.0 * (place % 20 > 10) if case_id == held[1].case_id else 0.0)
        for place, case_id in enumerate(timings["case_id"].to_pylist())
    ]
    column = timings.schema.get_field_index("sm_clock_mhz")
    timings = timings.set_column(column, timings.schema.field(column), pa.array(clocks, pa.float32()))
    pq.write_table(timings, folder / "timings.parquet")
    text = write_report([folder], tmp_path / "out").read_text()
    assert "<b>1</b><span>to read with care</span>" in text
    assert "1 case whose SM clock moved, by up to 7%" in text


@pytest.mark.parametrize("name", ["h200_kernel", "h200_distributed"])
def test_of_measured_runs_at_their_power_limit_a_part_is_to_be_read_with_care(name: str) -> None:
    """Of these most cases are throttled, so that this alone would single out nobody."""
    folder = Path(shipped("data") / "measured" / name)
    found = clock_spread_by_case(pq.read_table(folder / "timings.parquet"))
    throttled = sum(bool(one) for one in pq.read_table(folder / "cells.parquet")["throttled"].to_pylist())
    moved = sum(share > 0.05 for share in found.values())
    assert throttled > len(found) / 2 and 0 < moved < len(found) / 5
