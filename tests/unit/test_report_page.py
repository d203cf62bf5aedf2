"""The page without a browser: complete, escaped, of one file, and with the third-party code that it says it holds."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from report_cells import cases, cell, distributed, timings, write_run

from attnspec.cli.main import exit_code
from attnspec.drawing.look import Drawing
from attnspec.record.schema import Timing, arrow_schema
from attnspec.report import page as report_page
from attnspec.report.page import drawings_of, write_report
from attnspec.report.payload import payload, script_json
from attnspec.report.run_facts import run_facts
from attnspec.report.samples import series_by_case, thinned
from attnspec.report.sections import overview
from attnspec.report.verdicts import verdicts

VENDOR = Path(report_page.__file__).parent / "vendor" / "echarts"


class Elements(HTMLParser):
    """Every element with its attributes, and the text of the body."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_page, "save", lambda *_: None)


def held_in(text: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="payload">(.*?)</script>', text)[1])


def test_a_report_is_one_page_and_its_figures(tmp_path):
    folder = write_run(tmp_path / "run", [cell("fa2", 1024), cell("fa3", 1024, 200.0), cell("fa3", 2048, status="oom")])
    assert exit_code(["report", str(folder), "--published"]) == 0
    out = folder / "report"
    text = (out / "index.html").read_text()
    linked = set(re.findall(r'href="(figures/[^"]+)"', text))
    assert linked == {f"figures/{path.name}" for path in (out / "figures").iterdir()} and len(linked) == 4
    for target in re.findall(r'href="(\.\./[^"]+)"', text):
        assert (out / target).is_file()
    assert "../timings.parquet" in text and "Beside the published page" in text


@pytest.mark.usefixtures("no_figures")
def test_the_page_asks_for_nothing_else(tmp_path):
    text = write_report([write_run(tmp_path / "run", [cell()])], tmp_path / "out").read_text()
    for tag, attributes in Elements(text).found:
        assert tag not in ("iframe", "object", "embed", "img") and "src" not in attributes, tag
        if tag == "link":
            assert attributes["href"] == "data:,"
    style = text[: text.index("</style>")]
    assert "url(" not in style and "@import" not in style


@pytest.mark.usefixtures("no_figures")
def test_no_text_of_a_run_becomes_markup(tmp_path):
    bad = "</script><img src=x onerror=alert(1)>\"'<!--\x00\u2028"
    rows = [cell("fa2", backend=bad, device=bad, mask=bad), cell("fa3", status="error", reason=bad, reason_code=bad)]
    folder = write_run(tmp_path / "r&<b>", rows, {"command": [bad], "host": {"name": bad}, "runner": bad})
    text = write_report([folder], tmp_path / "out", with_published=True).read_text()
    elements = Elements(text)
    assert not [one for one in elements.found if one[0] in ("img", "b>")]
    assert held_in(text)["columns"]["reason"]["texts"] == [bad]
    assert "&lt;img src=x" in text


def test_script_json_survives_any_text():
    value = {"<!--<script>": "&amp;</script>\u2028\u2029\ud800", "n": [1, None, 0.5]}
    text = script_json(value)
    assert not set("<&\u2028\u2029") & set(text)
    assert json.loads(text) == {"<!--<script>": "&amp;</script>\u2028\u2029?", "n": [1, None, 0.5]}


def test_the_payload_holds_every_case_and_number():
    held = cases(cell("fa2", 1024, 123.4567), cell("fa3", 2048, status="oom"), cell("sdpa", status="skipped"))
    made = payload(held.measured, verdicts(held.measured), [], thinned([None] * 3))
    assert made["columns"]["rank"]["texts"] == ["GPU"]
    assert made["rows"] == 3 and made["groups"] == [{"rows": [0, 1, 2], "peak": 989.4}]
    assert made["columns"]["tflops"]["values"] == [123.4567, None, None]
    statuses = made["columns"]["status"]
    assert [statuses["texts"][place] for place in statuses["places"]] == ["ok", "oom", "skipped"]
    assert made["columns"]["reason"]["places"][0] == -1
    assert set(made["looks"]) == {"fa2", "fa3", "sdpa"}
    json.loads(script_json(made))
    profiled = cases(cell("fa2", kernel_names=["one", "two"]), cell("fa3", kernel_names=[]), cell("sdpa")).measured
    names = payload(profiled, [], [], thinned([None] * 3))["columns"]["kernel_names"]
    assert names == {"texts": ["one\ntwo", "none seen by the profiler"], "places": [0, 1, -1]}
    wide = cases(cell(flops=10**25, tflops=float("inf"), sm_clock_mhz=float("nan")))
    numbers = payload(wide.measured, [], [], thinned([None]))["columns"]
    assert numbers["flops"]["values"] == [1e25] and numbers["tflops"]["values"] == numbers["sm_clock_mhz"][
        "values"
    ] == [None]


def test_a_reason_of_any_length_leaves_the_overview_short():
    text = overview(cases(cell(status="error", reason="why " * 4000)).measured)
    assert len(text) < 4000 and "whole in cells.parquet" in text


def test_samples_are_the_slowest_ranks_in_order():
    table = pa.table(
        {
            "case_id": ["a"] * 8 + ["b"], "pack": [0, 0, 1, 1] * 2 + [0], "rank": [0] * 4 + [1] * 4 + [0], "round": [1, 0, 1, 0] * 2 + [0],
            "iteration": [0] * 9, "started_ns": range(9), "elapsed_ns": [10, 20, 30, 40, 15, 15, 35, 35, 7],
            "sm_clock_mhz": [None] * 9, "throttled": [None] * 9,
        }
    ).cast(arrow_schema(Timing))  # fmt: skip
    found = series_by_case(table)
    assert found["a"].elapsed_ns.tolist() == [20, 40, 15, 35] and found["a"].pack.tolist() == [0, 1, 0, 1]
    assert found["b"].elapsed_ns.tolist() == [7]
    assert series_by_case(table.slice(0, 0)) == {}


def test_samples_are_thinned_evenly_to_a_budget():
    rows = [cell("fa2", case_id=f"{index}") for index in range(3)]
    found = series_by_case(timings(rows, samples=2000))
    made = thinned([found["0"], None, found["2"]])
    assert made["totals"] == [2000, 0, 2000] and made["counts"] == [600, 0, 600]
    ms = np.frombuffer(base64.b64decode(made["ms"]), "<f4")
    assert len(ms) == 1200 and ms[0] == pytest.approx(found["0"].elapsed_ns[0] / 1e6)
    assert ms[599] == pytest.approx(found["0"].elapsed_ns[-1] / 1e6)
    assert len(base64.b64decode(made["packs"])) == 2 * 1200
    many = thinned([found["0"]] * 10_000)
    assert sum(many["counts"]) <= 400_000


REHEARSAL = {"settings": {"rehearse": True}}
TIMES = ("tflops", "tflops_per_gpu", "tflops_ci_low", "time_ms_median", "time_ms_p80", "lower_s", "setup_s", "host_ms")


def visible(text: str) -> str:
    return " ".join(Elements(text[text.index("<body>") : text.index('<script type="application/json"')]).texts)


def test_the_page_of_a_rehearsal_holds_no_times_and_names_no_winners(tmp_path):
    rows = [cell("fa2", 1024), cell("fa3", 1024, 200.0), cell("fa2", 2048, status="oom"), cell("fa3", 2048)]
    text = write_report([write_run(tmp_path / "run", rows + distributed(), REHEARSAL)], tmp_path / "out").read_text()
    said = visible(text)
    assert said.index("This is a rehearsal") < said.index("At a glance") and "no winners are named" in said
    glance = said[said.index("At a glance") : said.index("Environment and provenance")]
    assert "why it is oom" in glance
    for word in ("fastest", "wins", "ahead", "close to call", "TFLOP", "only", "to read with care", "Charts", " ms"):
        assert word not in glance, word
    held = held_in(text)
    assert held["rows"] == 52 and held["groups"] == []
    assert not [name for name in TIMES if any(held["columns"][name]["values"])]
    assert sum(held["samples"]["counts"]) == 0 and sum(held["columns"]["verified_error"]["values"][:2]) > 0
    assert list((tmp_path / "out" / "figures").iterdir()) == []


@pytest.mark.usefixtures("no_figures")
def test_a_rehearsal_beside_other_runs_takes_part_in_no_comparison(tmp_path):
    first = write_run(
        tmp_path / "first", [cell("fa2", 1024, 900.0, case_id="r"), cell("fa3", 512, case_id="s")], REHEARSAL
    )
    second = write_run(tmp_path / "second", [cell("fa2", 1024), cell("fa3", 1024, 200.0)])
    text = write_report([first, second], tmp_path / "out").read_text()
    said = visible(text)
    assert "first is a rehearsal" in said and "winners are named among the other runs alone" in said
    assert "of 1 workload that can be compared, fa3 is fastest on 1" in said
    held = held_in(text)
    assert held["groups"] == [{"rows": [2, 3], "peak": 989.4}]
    assert held["columns"]["tflops"]["values"] == [None, None, 100.0, 200.0]
    assert held["samples"]["counts"] == [0, 0, 20, 20]
    alone = visible(write_report([second], tmp_path / "alone").read_text())
    assert "rehears" not in alone and "Who wins where" in alone and "Charts" in alone


@pytest.mark.usefixtures("no_figures")
def test_runs_of_one_name_are_told_apart(tmp_path):
    folders = [
        write_run(tmp_path / place / "run", [cell(tflops=speed)]) for place, speed in (("old", 90.0), ("new", 100.0))
    ]
    text = write_report(folders, tmp_path / "out").read_text()
    assert list(held_in(text)["looks"]) == ["sdpa (new/run)", "sdpa (old/run)"]
    assert "<h3>old/run</h3>" in text
    twice = write_report([folders[0], folders[0]], tmp_path / "twice").read_text()
    assert held_in(twice)["rows"] == 1


def test_pictures_of_one_name_are_apart(monkeypatch):
    one = Drawing(stem="same", title="t", caption="c.", draw=lambda: pytest.fail("not drawn"))
    monkeypatch.setattr(report_page.plugins, "names", lambda kind: ("a", "b"))
    monkeypatch.setattr(
        report_page.plugins,
        "load",
        lambda kind, name: type("Figure", (), {"drawings": staticmethod(lambda cases: [one])}),
    )
    assert [made.stem for made in drawings_of(cases())] == ["same", "same_2"]


def test_facts_of_a_damaged_record_are_left_out(tmp_path):
    for content in (
        {},
        {"found": None, "runs": [None, {"started_ns": "x"}], "command": "x", "workers": {"environment": {"w": None}}},
    ):
        run_facts("run", tmp_path, tmp_path, content)
    told = run_facts("run", tmp_path, tmp_path, {"record": "x" * 200_000}, "packs are damaged")
    assert ("packs", "not drawn: packs are damaged") in told.facts
    assert len(told.record) < 101_000 and told.record.endswith("whole in provenance.json")


def test_no_commit_stands_for_a_folder_of_several_states_of_the_code(tmp_path):
    last = {"code_sha256": "b", "git_commit": "2"}
    assert run_facts("run", tmp_path, tmp_path, last).facts == (("git commit", "2"), ("sha256 of the code", "b"))
    seen = {"environment": {"x": {"env": {"OWN": "1"}, "variables": {"NCCL_ALGO": "Tree"}}, "y": {"variables": {}}}}
    assert run_facts("run", tmp_path, tmp_path, {"workers": seen}).facts == (
        ("environment variables", "NCCL_ALGO=Tree or unset, OWN=1"),
    )
    content = {**last, "workers": {"environment": {"x": {"code_sha256": "a"}, "y": {"code_sha256": "b"}}}}
    assert run_facts("run", tmp_path, tmp_path, content).facts == (("sha256 of the code, 2 states", "a, b"),)
    content["runs"] = [{"code_sha256": "a", "git_commit": "1"}]
    assert run_facts("run", tmp_path, tmp_path, content).facts == (("sha256 of the code, 2 states", "a (commit 1), b"),)


def test_the_charting_library_is_the_released_build_with_its_licences():
    said = json.loads((VENDOR / "NOTICE.json").read_text())
    code = (VENDOR / said["file"]).read_bytes()
    assert hashlib.sha256(code).hexdigest() == said["sha256"]
    assert said["version"].encode() in code and b"Licensed to the Apache Software Foundation" in code[:200]
    for name in said["licence_files"]:
        assert (VENDOR / name).stat().st_size > 50
    assert {path.name for path in VENDOR.iterdir()} == {said["file"], "NOTICE.json", *said["licence_files"]}
    assert said["version"] in (VENDOR.parents[1] / "assets" / "foot.html").read_text()


def test_distributed_cases_are_on_the_page_too(tmp_path, no_figures):
    text = write_report([write_run(tmp_path / "run", distributed())], tmp_path / "out").read_text()
    assert "context parallelism" in text and held_in(text)["rows"] == 48


@pytest.mark.usefixtures("no_figures")
def test_peaks_and_shapes_are_named_with_their_sources(tmp_path):
    rows = [cell(), cell(head_dim=64), cell(device="Some CPU")]
    text = write_report([write_run(tmp_path / "run", rows)], tmp_path / "out").read_text()
    assert "NVIDIA H200 SXM: 989.4 TFLOP/s in bfloat16" in text
    assert 'href="https://www.nvidia.com/en-us/data-center/h200/"' in text
    assert "head_dim 64" in text and text.count("<h3>Peaks</h3>") == 1


def test_a_report_needs_no_torch(tmp_path):
    folder = write_run(tmp_path / "run", [cell("fa2"), cell("fa3", 2048)])
    program = (
        "import sys; sys.modules['torch'] = None; from pathlib import Path; from attnspec.report.page import write_report; "
        "print(write_report([Path(sys.argv[1])], Path(sys.argv[2])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, folder, tmp_path / "out"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "out" / "figures").glob("*.svg"))
