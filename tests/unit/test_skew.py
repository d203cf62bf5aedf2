"""How far apart ranks end."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from report_cells import cell, write_run

from attnspec.report import page as report_page
from attnspec.report.methods import methods_text
from attnspec.report.page import write_report
from attnspec.report.run import open_run
from attnspec.report.skew import Skew, skew_by_case


def samples(*rows):
    names = ("case_id", "pack", "rank", "round", "iteration", "elapsed_ns")
    return pa.table(dict(zip(names, zip(*rows, strict=True), strict=True)))


def test_medians_over_iterations_are_averaged_over_packs():
    elapsed = {0: [(10, 13), (10, 11), (30, 10)], 1: [(40, 45), (41, 40), (50, 40)]}  # ranks of three iterations
    rows = [
        ("c", pack, rank, place // 2, place % 2, ms * 10**6)
        for pack, iterations in elapsed.items()
        for place, ranks in enumerate(iterations)
        for rank, ms in enumerate(ranks)
    ]
    rows += [("alone", 0, 0, 0, place, 5) for place in range(3)]
    np.random.default_rng(0).shuffle(rows)
    rows = [(case_id, *map(int, others)) for case_id, *others in rows]
    assert skew_by_case(samples(*rows)) == {"c": Skew(skew_ms=(3 + 5) / 2, share=pytest.approx((3 + 5) / (13 + 45)))}


def test_one_rank_has_none():
    assert skew_by_case(samples(("c", 0, 0, 0, 0, 5))) == {}


def test_page_and_methods_tell_of_it(tmp_path, monkeypatch):
    monkeypatch.setattr(report_page, "save", lambda *_: None)
    one = cell("fa3", 16384, 900.0, cp_size=2, strategy="usp", mesh='{"ring":2}')
    alone = cell("fa2", 1024)
    folder = write_run(tmp_path / "run", [one, alone])
    assert "Rank skew" not in write_report([folder], tmp_path / "before").read_text()
    timings = pq.read_table(folder / "timings.parquet")
    rows = [
        {**row, "rank": 1, "elapsed_ns": 5 * row["elapsed_ns"]}
        for row in timings.to_pylist()
        if row["case_id"] == one.case_id
    ]
    slower = pa.Table.from_pylist(rows, schema=timings.schema)
    pq.write_table(pa.concat_tables([timings, slower]), folder / "timings.parquet")
    page = write_report([folder], tmp_path / "after").read_text()
    assert "<summary>1 case of several ranks</summary>" in page
    assert "<td class=n>80%</tr>" in page
    assert "ended apart by 80 percent of it in the median case and 80 at most." in methods_text(open_run(folder))
