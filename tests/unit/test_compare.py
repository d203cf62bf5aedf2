"""`attnspec compare`: pairs, verdicts, refusals, what is told, exit codes."""

from __future__ import annotations

import io
import json
import math
import random
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from rich.console import Console

from attnspec.cli.main import cli, exit_code
from attnspec.errors import InputError
from attnspec.report.comparison import Verdict, compare_runs
from attnspec.report.comparison_text import as_json, headline, markdown, rest, terminal
from attnspec.report.methods import methods_text
from attnspec.report.run import open_run
from attnspec.report.run_drift import same_conditions

RECORDED = Path(__file__).parents[2] / "data" / "measured" / "h200_quickstart"


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RECORDED, tmp_path / "new"))


def case_ids(run: Path = RECORDED) -> list[str]:
    return pq.read_table(run / "cells.parquet")["case_id"].to_pylist()


def scale(run: Path, factors: dict[str, float]) -> None:
    """Make cases slower or faster."""
    timings = pq.read_table(run / "timings.parquet")
    columns = zip(timings["case_id"].to_pylist(), timings["elapsed_ns"].to_pylist(), strict=True)
    scaled = [round(ns * factors.get(case_id, 1)) for case_id, ns in columns]
    place = timings.column_names.index("elapsed_ns")
    pq.write_table(timings.set_column(place, timings.schema.field(place), [scaled]), run / "timings.parquet")


def change(run: Path, case_id: str, **values: object) -> None:
    """Set columns of one case."""
    cells = pq.read_table(run / "cells.parquet")
    rows = cells.to_pylist()
    for row in rows:
        if row["case_id"] == case_id:
            row |= values
    pq.write_table(pa.Table.from_pylist(rows, schema=cells.schema), run / "cells.parquet")


@pytest.mark.parametrize("side", ["base", "new"])
def test_of_a_rehearsal_only_how_cases_ended_is_compared(tmp_path: Path, new: Path, side: str) -> None:
    ids = case_ids()
    scale(new, dict.fromkeys(ids, 2.0))
    change(new, ids[0], status="wrong", reason_code="mask_probe", reason="a key too many")
    sides = {"base": Path(shutil.copytree(RECORDED, tmp_path / "base")), "new": new}
    provenance = json.loads((sides[side] / "provenance.json").read_text())
    provenance["settings"] = {"rehearse": True}
    (sides[side] / "provenance.json").write_text(json.dumps(provenance))
    found = compare_runs(sides["base"], sides["new"])
    assert (found.pairs, found.untimed, found.regressions, found.exit_code) == ([], 95, 1, 1)
    assert headline(found) == "95 cases measured in both: 1 no longer ok, 95 ok in both"
    assert list(found.notes) == ["times of a rehearsal say nothing: only how cases ended is compared"]
    assert "a key too many" in markdown(found)
    assert as_json(found)["untimed"] == 95


def test_a_run_is_the_same_as_itself() -> None:
    found = compare_runs(RECORDED, RECORDED)
    assert {pair.verdict for pair in found.pairs} == {Verdict.SAME}
    assert {tuple(pair.ratio) for pair in found.pairs} == {(1.0, 1.0, 1.0)}
    assert (len(found.pairs), found.regressions, found.exit_code) == (96, 0, 0)
    assert not found.environment


def test_that_both_are_one_run_is_told_however_it_is_spelled(
    new: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(new.parent)
    Path("link").symlink_to("new")
    assert exit_code(["export", "new", "--out", "one.zip"]) == 0
    Path("other.zip").symlink_to("one.zip")
    capsys.readouterr()
    told = "BASE and NEW are the same run"
    same = [("new", "new"), ("new", "./new/"), ("new", str(new)), ("new", "link"), ("one.zip", "other.zip")]
    for base, other in same:
        assert exit_code(["compare", base, other]) == 0
        assert f"note: {told}" in capsys.readouterr().out
        assert exit_code(["compare", base, other, "--json"]) == 0
        assert [told in note for note in json.loads(capsys.readouterr().out)["notes"]] == [True]
    shutil.copytree("new", "copy")
    assert exit_code(["compare", "new", "copy"]) == 0
    assert told not in capsys.readouterr().out


def test_slower_and_faster_cases_are_found_and_no_others(new: Path) -> None:
    ids = case_ids()
    scale(new, {ids[30]: 1.1, ids[60]: 0.9, ids[64]: 1.01})
    found = compare_runs(RECORDED, new)
    verdicts = {pair.case_id: pair for pair in found.pairs}
    assert {case_id for case_id, pair in verdicts.items() if pair.verdict is not Verdict.SAME} == {ids[30], ids[60]}
    slower = verdicts[ids[30]]
    assert slower.verdict is Verdict.SLOWER
    assert slower.ratio.ratio == pytest.approx(1.1, rel=1e-4)
    assert 1 < slower.ratio.low < 1.1 < slower.ratio.high
    assert slower.new_ms == pytest.approx(1.1 * slower.base_ms, rel=1e-4)
    assert verdicts[ids[60]].verdict is Verdict.FASTER
    assert (found.regressions, found.exit_code) == (1, 1)
    assert compare_runs(RECORDED, new, threshold=0.2).exit_code == 0


def test_ratio_is_that_of_the_tables(new: Path) -> None:
    """Several packs: sums of medians, as in cells.parquet."""
    cells = pq.read_table(RECORDED / "cells.parquet")
    medians = dict(zip(cells["case_id"].to_pylist(), cells["time_ms_median"].to_pylist(), strict=True))
    for pair in compare_runs(RECORDED, RECORDED).pairs:
        assert pair.base_ms == pytest.approx(medians[pair.case_id])


def test_a_case_that_is_not_ok_any_more_is_a_regression(new: Path) -> None:
    ids = case_ids()
    change(new, ids[0], status="wrong", reason_code="out", reason="out of bound\nmore")
    change(new, ids[1], status="skipped", reason_code="not_run", reason="left out")
    found = compare_runs(RECORDED, new)
    assert [(one.case_id, one.status) for one in found.broken] == [(ids[0], "wrong")]
    assert (found.regressions, found.exit_code, found.not_run, len(found.pairs)) == (1, 1, 1, 94)
    back = compare_runs(new, RECORDED)
    assert [one.case_id for one in back.mended] == [ids[0]]
    assert back.exit_code == 0
    assert headline(back) == "94 cases measured in both: 94 same, 1 ok now"


def test_two_cases_with_one_name_have_two_titles(new: Path) -> None:
    rows = pq.read_table(RECORDED / "cells.parquet").to_pylist()
    first = next(row for row in rows if row["kernel"] == "sdpa")
    same = ("mask", "mask_params", "pass", "seqlen")
    other = next(
        row for row in rows if row["case_id"] != first["case_id"] and all(row[name] == first[name] for name in same)
    )
    names = ("kernel", "backend", "provider", "kernel_params")
    change(new, other["case_id"], **{name: first.get(name) for name in names})
    titles = {pair.case_id: pair.title for pair in compare_runs(new, new).pairs}
    pair = sorted(titles[row["case_id"]] for row in (first, other))
    assert "(1 of 2), " in pair[0] and "(2 of 2), " in pair[1]
    assert len(set(titles.values())) == len(titles)


@pytest.mark.parametrize(
    ("column", "value"), [("mask_params", '{"window":7}'), ("head_dim", 32), ("num_packs", 9), ("mask_area", 5)]
)
def test_a_case_that_asks_for_something_else_is_refused(new: Path, column: str, value: object) -> None:
    case_id = case_ids()[8]
    change(new, case_id, **{column: value})
    with pytest.raises(InputError, match=rf"case {case_id} .*: {column} is .* in one run and .* in the other"):
        compare_runs(RECORDED, new)


def test_runs_without_a_common_case_are_refused_with_what_differs() -> None:
    with pytest.raises(InputError, match="have no case in common: .*num_heads_q is 4 and 64; .*head_dim is 64 and 128"):
        compare_runs(RECORDED, RECORDED.parent / "h200_check")


def test_other_packs_are_refused(new: Path, tmp_path: Path) -> None:
    base = Path(shutil.copytree(RECORDED, tmp_path / "base"))
    for run, length in ((base, 3), (new, 4)):
        (run / "artifacts").mkdir()
        table = pa.table({"pack": [0], "doc": [0], "length": [length]})
        with pa.ipc.new_file(run / "artifacts" / "packs-ab.arrow", table.schema) as writer:
            writer.write_table(table)
    with pytest.raises(InputError, match="artifacts/packs-ab.arrow of .*base and of .*new differ: .* other packs"):
        compare_runs(base, new)
    shutil.copy(base / "artifacts" / "packs-ab.arrow", new / "artifacts")
    assert compare_runs(base, new).exit_code == 0


def test_missing_samples_are_refused(new: Path) -> None:
    case_id = case_ids()[3]
    timings = pq.read_table(new / "timings.parquet")
    pq.write_table(timings.filter(pc.not_equal(timings["case_id"], case_id)), new / "timings.parquet")
    with pytest.raises(InputError, match=f"case {case_id} is ok and has no samples"):
        compare_runs(RECORDED, new)


def test_every_state_of_the_code_is_told(new: Path) -> None:
    held = json.loads((new / "provenance.json").read_text())
    before = held["code_sha256"]
    measured_by(held, "a", "b")
    held["git_commit"] = "1"
    (new / "provenance.json").write_text(json.dumps(held))
    told = compare_runs(RECORDED, new).environment
    assert f"attnspec.code_sha256: {before} -> ['a', 'b']" in told
    assert not any("git_commit" in line for line in told)  # that of the last run only


def test_environment_and_drift_are_told(new: Path) -> None:
    path = new / "provenance.json"
    provenance = json.loads(path.read_text())
    for facts in provenance["workers"]["environment"].values():
        facts["driver"] = "999.1"
        facts["versions"]["torch"] = "3.0"
    for anchor in provenance["workers"]["anchor"].values():
        anchor["median_ns"] *= 2
    path.write_text(json.dumps(provenance))
    scale(new, dict.fromkeys(case_ids(), 1.06))
    found = compare_runs(RECORDED, new)
    assert "worker.driver: 580.159.04 -> 999.1" in found.environment
    assert any(line.startswith("worker.versions.torch: ") and line.endswith(" -> 3.0") for line in found.environment)
    assert any("all 3 kernels are 6.0 % slower or more" in note for note in found.notes)
    (note,) = (one for one in found.notes if "anchor case of NEW" in one)
    assert note.endswith(
        "so conditions changed within that run: repeat it when nobody else uses the machine before a "
        "difference of that size counts"
    )


def test_variables_that_workers_saw_are_told_once(new: Path, tmp_path: Path) -> None:
    base = Path(shutil.copytree(RECORDED, tmp_path / "base"))
    for run, algorithm in ((base, "Ring"), (new, "Tree")):
        provenance = json.loads((run / "provenance.json").read_text())
        for facts in provenance["workers"]["environment"].values():
            facts["env"] = {"NCCL_ALGO": algorithm, "OWN": algorithm}
            facts["variables"] = {"NCCL_ALGO": algorithm, "NCCL_PROTO": "LL"}
        (run / "provenance.json").write_text(json.dumps(provenance))
    told = [line for line in compare_runs(base, new).environment if line.startswith(("worker.env", "worker.var"))]
    assert told == ["worker.env.OWN: Ring -> Tree", "worker.variables.NCCL_ALGO: Ring -> Tree"]
    assert same_conditions(open_run(base), open_run(base))
    assert not same_conditions(open_run(base), open_run(new))


def test_variables_of_every_attempt_are_told(new: Path, tmp_path: Path) -> None:
    base = Path(shutil.copytree(RECORDED, tmp_path / "base"))
    provenance = json.loads((new / "provenance.json").read_text())
    ((writer, facts),) = provenance["workers"]["environment"].items()
    facts["variables"] = {}
    (base / "provenance.json").write_text(json.dumps(provenance))
    seen = [{"variables": one} for one in ({"NCCL_ALGO": "Tree"}, {})]
    provenance["workers"]["variables"] = {f"{writer}-{number}": one for number, one in enumerate(seen)}
    (new / "provenance.json").write_text(json.dumps(provenance))
    told = [line for line in compare_runs(base, new).environment if line.startswith("worker.var")]
    assert told == ["worker.variables.NCCL_ALGO: unset -> ['Tree', 'unset']"]
    assert "Environment variables: NCCL_ALGO=Tree or unset." in methods_text(open_run(new))


def measured_by(provenance: dict, *states: str) -> None:
    """Let workers have had these states of the code."""
    provenance["code_sha256"] = states[-1]
    (writer,) = provenance["workers"]["environment"]
    provenance["workers"]["code"] = {f"{writer}-{number}": {"code_sha256": one} for number, one in enumerate(states)}


def anchored(run: Path, *, again: tuple[float, ...], code: tuple[str, ...] = ("same",)) -> None:
    """Let the anchor be measured again so many times, each so much slower than at first."""
    path = run / "provenance.json"
    held = json.loads(path.read_text())
    (end,) = held["workers"]["anchor"].values()
    rounds = [[end["median_ns"] * (1 + 1e-4 * number)] for number in range(5)]
    series = [[[one * factor for one in taken] for taken in rounds] for factor in again]
    told = {name: end[name] for name in ("case_id", "result_key", "pack")}
    held["workers"]["anchor_again"] = {"job-rank0-1": {**told, "again_ns": series}}
    measured_by(held, *code)
    path.write_text(json.dumps(held))


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RECORDED, tmp_path / "base"))


def test_a_machine_that_drifted_within_a_run_is_no_regression(base: Path, new: Path) -> None:
    """As on a machine that others use: the anchor moves by some ten percent, and so does everything."""
    ids = case_ids()
    scale(new, {ids[30]: 1.1, ids[60]: 0.9, ids[64]: 3.0})
    anchored(base, again=(1.0, 1.1, 0.95, 1.08))
    anchored(new, again=(1.05, 0.9, 1.1, 1.0))
    found = compare_runs(base, new)
    pairs = {pair.case_id: pair for pair in found.pairs}
    assert {pairs[one].verdict for one in (ids[30], ids[60])} == {Verdict.AMBIGUOUS}
    assert pairs[ids[64]].verdict is Verdict.SLOWER  # more than any drift
    assert pairs[ids[30]].ratio.ratio == pytest.approx(1.1, rel=1e-4)  # never corrected
    assert {pair.case_id for pair in found.drowned} == {ids[30], ids[60]}
    assert found.exit_code == 1
    scale(new, {ids[64]: 1 / 3})
    found = compare_runs(base, new)
    assert (found.regressions, found.exit_code) == (0, 0)
    told = as_json(found)["drift"]
    assert told["case_ids"] == [pair.case_id for pair in found.drowned]
    assert 0.05 < told["spread"] < 0.2 < told["most"]
    (note,) = [line for line in rest(found) if "the machine itself drifted" in line]
    assert note.startswith("2 cases are ambiguous only because the machine itself drifted: that alone may have ")
    assert headline(found).endswith("2 ambiguous (2 for the machine's drift), 94 same")
    assert "the machine itself drifted" in markdown(found)


def anchor_case() -> str:
    provenance = json.loads((RECORDED / "provenance.json").read_text())
    return next(iter(provenance["workers"]["anchor"].values()))["case_id"]


def test_a_machine_that_is_slower_on_another_day_is_no_regression(base: Path, new: Path) -> None:
    """All cases and the anchor, in which nothing else changed, by the same."""
    scale(new, dict.fromkeys(case_ids(), 1.2))
    anchored(base, again=(1.0, 1.001, 0.999))
    anchored(new, again=(1.2, 1.201, 1.199))
    found = compare_runs(base, new)
    assert {pair.verdict for pair in found.pairs} == {Verdict.AMBIGUOUS}
    assert len(found.drowned) == len(found.pairs)
    assert found.exit_code == 0
    assert any("the machine was 20." in note and "slower in NEW, by an anchor case" in note for note in found.notes)
    ids = case_ids()
    scale(new, {ids[30]: 1.3})
    found = compare_runs(base, new)
    assert [pair.case_id for pair in found.pairs if pair.verdict is Verdict.SLOWER] == [ids[30]]
    assert found.exit_code == 1


@pytest.mark.parametrize("codes", [(("same",), ("other",)), (("one", "two"), ("one", "two"))])
def test_an_anchor_whose_code_changed_excuses_nothing(base: Path, new: Path, codes) -> None:
    """It may be slower for that; who regresses all cases alike must not go free."""
    scale(new, dict.fromkeys(case_ids(), 1.2))
    anchored(base, again=(1.0, 1.001, 0.999), code=codes[0])
    anchored(new, again=(1.2, 1.201, 1.199), code=codes[1])
    found = compare_runs(base, new)
    assert {pair.verdict for pair in found.pairs} == {Verdict.SLOWER}
    assert (found.drift.low, found.drift.high) == (0, 0)
    assert any("nobody can tell whether that is the machine" in note for note in found.notes)


def set_to(run: Path, where: tuple[str, ...], value: object) -> None:
    """Change something in a run's provenance; `worker` stands for every worker's environment."""
    path = run / "provenance.json"
    held = json.loads(path.read_text())
    tops = list(held["workers"]["environment"].values()) if where[0] == "worker" else [held]
    for one in tops:
        for name in where[where[0] == "worker" : -1]:
            one = one.setdefault(name, {})
        one[where[-1]] = value
    path.write_text(json.dumps(held))


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("workers", "code", "job-rank0-1"), {"code_sha256": "other"}),
        (("plugins",), {"my_kernel.py": "other"}),
        (("settings", "plugins"), ["/home/me/my_kernel.py"]),  # as versions told it that did not look into them
        (("worker", "env", "OMP_NUM_THREADS"), "7"),
        (("worker", "versions", "torch"), "9.9"),
        (("worker", "versions", "triton"), "9.9"),
        (("worker", "cuda", "runtime"), "99"),
        (("worker", "cuda", "cudnn"), 99999),
        (("worker", "cuda", "nccl"), "9.9"),
    ],
    ids=lambda one: one[-1] if isinstance(one, tuple) else "",
)
def test_an_anchor_that_something_else_may_have_changed_excuses_nothing(base, new, where, value) -> None:
    scale(new, dict.fromkeys(case_ids(), 1.2))
    anchored(base, again=(1.0, 1.001, 0.999))
    anchored(new, again=(1.2, 1.201, 1.199))
    assert compare_runs(base, new).drift.high > 0.1
    set_to(new, where, value)
    found = compare_runs(base, new)
    assert (found.drift.low, found.drift.high) == (0, 0)
    assert (found.regressions, found.exit_code) == (96, 1)


def test_the_anchor_of_an_attempt_that_no_longer_stands_says_nothing(base: Path, new: Path) -> None:
    """After another driver was installed a run goes on under another result_key, and the notes of both are kept."""
    scale(new, {case_ids()[30]: 1.1})
    anchored(base, again=(1.0, 1.001, 0.999))
    anchored(new, again=(1.0, 1.001, 0.999))
    before = compare_runs(base, new)
    held = json.loads((new / "provenance.json").read_text())["workers"]["anchor_again"]
    (note,) = held.values()
    series = [[[1.2 * one for one in taken] for taken in rounds] for rounds in note["again_ns"]]
    older = {**note, "result_key": "of another driver", "again_ns": series}
    set_to(new, ("workers", "anchor_again", "job-rank0-2"), older)
    after = compare_runs(base, new)
    assert (after.drift, after.exit_code) == (before.drift, 1)


def test_runs_without_a_case_that_both_measured_are_told_in_json_too(base: Path, new: Path) -> None:
    anchored(base, again=(1.0, 1.1, 0.95))
    for case_id in case_ids():
        change(new, case_id, status="crashed", reason_code="signal", reason="SIGSEGV")
    found = compare_runs(base, new)
    assert found.exit_code == 1
    assert len(as_json(found)["broken"]) == 96


def test_ten_percent_is_found_beside_an_anchor_that_stays_within_one(base: Path, new: Path) -> None:
    ids = case_ids()
    scale(new, {ids[30]: 1.1, ids[50]: 1.1})
    anchored(base, again=(1.004, 0.997, 1.006, 0.998))
    anchored(new, again=(0.996, 1.004, 1.0, 1.007))
    found = compare_runs(base, new)
    assert {pair.case_id for pair in found.pairs if pair.verdict is Verdict.SLOWER} == {ids[30], ids[50]}
    assert found.exit_code == 1


def test_an_anchor_that_ranks_noted_alike_counts_once(base: Path, new: Path) -> None:
    for run in (base, new):
        anchored(run, again=(1.0, 1.1))
    once = compare_runs(base, new).drift
    path = new / "provenance.json"
    held = json.loads(path.read_text())
    series = held["workers"]["anchor_again"]
    series["job-rank1-1"] = series["job-rank0-1"]
    path.write_text(json.dumps(held))
    assert compare_runs(base, new).drift == once
    series["job-rank0-2"] = {**series["job-rank0-1"], "again_ns": [[[9e4], [9e4]]]}
    path.write_text(json.dumps(held))
    assert compare_runs(base, new).drift.dof == once.dof + 1
    for damaged in ([[None, [9e4]]], [[[{"a": None}], [9e4]]], [None], [[["1"]]]):
        series["job-rank0-2"] = {**series["job-rank0-1"], "again_ns": damaged}
        path.write_text(json.dumps(held))
        assert compare_runs(base, new).drift == once


def test_a_run_without_anchors_says_so(base: Path, new: Path) -> None:
    scale(new, {case_ids()[30]: 1.1})
    for run in (base, new):
        path = run / "provenance.json"
        held = json.loads(path.read_text())
        del held["workers"]["anchor"]
        path.write_text(json.dumps(held))
    found = compare_runs(base, new)
    assert found.regressions == 1
    assert any("no anchor case was measured again" in note for note in found.notes)


def attempt(run: Path, number: int, *again: float, measured_s: float = 9.0) -> None:
    """One more attempt of a run, in which the anchor took so many times what it took as recorded; () for not again."""
    path = run / "provenance.json"
    held = json.loads(path.read_text())
    workers = held["workers"]
    (end,) = workers["anchor"].values()
    timings = pq.read_table(RECORDED / "timings.parquet")
    times = timings.filter(pc.and_(pc.equal(timings["case_id"], end["case_id"]), pc.equal(timings["pack"], 0)))
    first_ns = float(np.median(times["elapsed_ns"].to_numpy()))
    workers.setdefault("spent", {})[f"job-rank0-{number}"] = {"start": 1.0, "measure": measured_s}
    if again:
        told = {name: end[name] for name in ("case_id", "result_key", "pack")}
        series = [[[first_ns * factor * (1 + 1e-4 * one)] for one in range(5)] for factor in again]
        workers.setdefault("anchor_again", {})[f"job-rank0-{number}"] = {**told, "again_ns": series}
    measured_by(held, "same")
    path.write_text(json.dumps(held))


def test_what_widens_intervals_is_told_where_the_anchor_ended_as_it_began(base: Path, new: Path) -> None:
    """Another run came and went meanwhile: no case is drowned, and none can be called the same."""
    scale(new, dict.fromkeys(case_ids(), 1.001))
    attempt(base, 1, 1.0, 1.6, 1.0)
    attempt(new, 1, 1.0, 1.0)
    found = compare_runs(base, new)
    assert {pair.verdict for pair in found.pairs} == {Verdict.AMBIGUOUS}
    assert not found.drowned
    assert min(pair.ratio.low for pair in found.pairs) < 0.5
    (note,) = found.notes
    factor = math.exp(found.drift.reach(len(found.pairs)))
    assert note == (
        "the machine moved while it was measured: anchor cases took 1.00 to 1.60 times their first time in BASE (3 x "
        "measured again) and 1.00 to 1.00 times their first time in NEW (2 x measured again), more than their rounds "
        f"explain; that widens every interval by a factor of {factor:.3g} either way, so no case can be called the same"
    )
    assert found.notes[0] in markdown(found).replace("&#8203;", "")


def test_nothing_is_told_of_a_machine_that_stood_still_nor_of_a_run_beside_itself(base: Path, new: Path) -> None:
    attempt(base, 1, 1.0, 1.6, 1.0)
    shutil.copy(base / "provenance.json", new)
    assert not compare_runs(base, new).notes  # the very same samples
    scale(new, dict.fromkeys(case_ids(), 1.001))
    for run in (base, new):
        attempt(run, 1, 1.0005, 0.9995, 1.0005, 0.9995)
    found = compare_runs(base, new)
    assert Verdict.SAME in {pair.verdict for pair in found.pairs}
    assert not found.notes


def test_a_resumed_run_that_met_another_machine_widens_and_claims_no_change_from_run_to_run(
    base: Path, new: Path
) -> None:
    """BASE's first attempt ran beside another run, its second one alone, and so did NEW."""
    ids = case_ids()
    assert ids[0] == anchor_case()
    scale(new, dict.fromkeys(ids[:40], 1 / 1.4) | dict.fromkeys(ids[40:], 1.001))
    attempt(base, 1, 1.0, 1.01)
    attempt(base, 2, 1 / 1.4, 1 / 1.41, 1 / 1.39)
    attempt(new, 1, 1 / 1.4, 1 / 1.4, 1 / 1.4)
    found = compare_runs(base, new)
    assert (found.drift.low, found.drift.high) == (0, 0)
    assert {pair.verdict for pair in found.pairs} == {Verdict.AMBIGUOUS}
    assert {pair.case_id for pair in found.drowned} == set(ids[:40])
    assert (found.regressions, found.exit_code) == (0, 0)
    assert not any("in NEW, by an anchor case" in note for note in found.notes)
    assert any("took 0.71 to 1.01 times their first time in BASE (5 x measured again)" in one for one in found.notes)


def test_attempts_that_nobody_watched_are_told(base: Path, new: Path) -> None:
    """As where an earlier version resumed a run: it did not measure the anchor again there."""
    scale(new, dict.fromkeys(case_ids(), 1.001))
    attempt(base, 1, 1.0, 1.0005)
    attempt(base, 2)
    attempt(base, 3, measured_s=0.0)  # all was measured already
    attempt(new, 1, 1.0, 1.0005)
    (note,) = compare_runs(base, new).notes
    assert note == (
        "BASE was measured in 2 attempts, and in 1 of these no anchor case was measured again, so how the machine moved "
        "there is not known"
    )
    attempt(base, 2, 1.0005)
    assert not compare_runs(base, new).notes


def test_json_is_the_contract(new: Path) -> None:
    scale(new, {case_ids()[30]: 1.1})
    answer = CliRunner().invoke(cli, ["compare", str(RECORDED), str(new), "--json"], standalone_mode=False)
    told = json.loads(answer.stdout)
    assert answer.return_value == 1
    assert told["regressions"] == 1
    assert {tuple(pair) for pair in told["pairs"]} == {("case_id", "ratio", "ci_low", "ci_high", "verdict")}
    assert [pair["case_id"] for pair in told["pairs"] if pair["verdict"] == "slower"] == [case_ids()[30]]
    assert told == json.loads(json.dumps(as_json(compare_runs(RECORDED, new))))


def test_markdown_names_the_cases_and_lets_nothing_through(new: Path) -> None:
    ids = case_ids()
    scale(new, {ids[30]: 1.1})
    change(new, ids[0], status="error", reason_code="exception", reason="<script> | [x](y)")
    text = markdown(compare_runs(RECORDED, new))
    assert text.startswith("### attnspec compare: 2 regressed\n")
    (line,) = [line for line in text.splitlines() if "**slower**" in line]
    assert line.count("|") == 7
    assert "10.0 % slower" in line
    assert r"error: \<script\> \| \[x\](y)" in text


@pytest.mark.parametrize("width", ["40", "80", "120"])
def test_terminal_text_fits_and_lists_what_changed(new: Path, width: str, capfd, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", width)
    monkeypatch.setenv("FORCE_COLOR", "1")
    scale(new, {case_ids()[30]: 1.1})
    assert exit_code(["compare", str(RECORDED), str(new)]) == 1
    lines = capfd.readouterr().out.splitlines()
    assert any("+10.0 % (+" in line for line in lines)
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines]
    assert "slower" in plain
    assert max(map(len, plain)) <= int(width)
    assert " ".join(" ".join(plain).split()).endswith("96 cases measured in both: 1 slower, 95 same")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--threshold", "5"], "--threshold: got '5'"),
        (["--json", "--markdown"], "give --json or --markdown"),
    ],
)
def test_bad_options(arguments: list[str], message: str, capfd) -> None:
    assert exit_code(["compare", str(RECORDED), str(RECORDED), *arguments]) == 2
    assert message in capfd.readouterr().err


def on_two_ranks(run: Path, factor: float, case_id: str) -> None:
    """Give one case a second rank that is slower by a factor, its samples in any order."""
    change(run, case_id, cp_size=2)
    timings = pq.read_table(run / "timings.parquet")
    rows = [row for row in timings.to_pylist() if row["case_id"] == case_id]
    rows += [{**row, "rank": 1, "elapsed_ns": round(row["elapsed_ns"] * factor)} for row in rows]
    random.Random(3).shuffle(rows)
    pq.write_table(pa.Table.from_pylist(rows, schema=timings.schema), run / "timings.parquet")
    cells = pq.read_table(run / "cells.parquet")
    pq.write_table(cells.filter(pc.equal(cells["case_id"], case_id)), run / "cells.parquet")


def test_the_slowest_rank_counts(new: Path, tmp_path: Path) -> None:
    base = Path(shutil.copytree(RECORDED, tmp_path / "base"))
    case_id = case_ids()[65]
    on_two_ranks(base, 0.5, case_id)
    on_two_ranks(new, 1.2, case_id)
    (pair,) = compare_runs(base, new).pairs
    assert pair.ratio.ratio == pytest.approx(1.2, rel=1e-4)
    assert pair.verdict is Verdict.SLOWER
    change(new, case_id, cp_size=4)
    change(base, case_id, cp_size=4)
    with pytest.raises(InputError, match="are not whole rounds of 4 ranks"):
        compare_runs(base, new)


def set_samples(run: Path, **columns: list | pa.Array) -> None:
    """Put other columns into timings.parquet, of whatever type."""
    timings = pq.read_table(run / "timings.parquet")
    for name, values in columns.items():
        timings = timings.set_column(timings.column_names.index(name), name, pa.array(values))
    pq.write_table(timings, run / "timings.parquet")


def keep_samples(run: Path, kept: pa.Array) -> None:
    """Drop rows of timings.parquet."""
    pq.write_table(pq.read_table(run / "timings.parquet").filter(kept), run / "timings.parquet")


def test_a_case_that_lost_a_pack_is_refused_and_not_called_faster(tmp_path: Path) -> None:
    base = RECORDED.parent / "h200_check"
    new = Path(shutil.copytree(base, tmp_path / "new"))
    timings = pq.read_table(new / "timings.parquet")
    keep_samples(new, pc.not_equal(timings["pack"], 3))
    for pair in ((base, new), (new, base)):
        with pytest.raises(
            InputError, match=r"new: the samples of case \w+ .* whole rounds of 1 rank in each of 4 packs"
        ):
            compare_runs(*pair)


@pytest.mark.parametrize("fault", ["lost", "repeated", "shifted"])
def test_samples_that_are_not_each_ranks_once_are_refused(tmp_path: Path, fault: str) -> None:
    base = RECORDED.parent / "h200_distributed"
    new = Path(shutil.copytree(base, tmp_path / "new"))
    timings = pq.read_table(new / "timings.parquet")
    ranks = timings["rank"].to_pylist()
    row = ranks.index(1)
    if fault == "lost":
        timings = pa.concat_tables([timings.slice(0, row), timings.slice(row + 1)])
    elif fault == "repeated":
        timings = pa.concat_tables([timings, timings])
    else:
        shifted = pc.add(timings["iteration"], timings["rank"])
        place = timings.column_names.index("iteration")
        timings = timings.set_column(place, timings.schema.field(place), shifted)
    pq.write_table(timings, new / "timings.parquet")
    with pytest.raises(InputError, match=r"are not whole rounds of \d ranks in"):
        compare_runs(base, new)


def test_a_table_without_samples_is_refused(new: Path) -> None:
    pq.write_table(pq.read_table(new / "timings.parquet").slice(0, 0), new / "timings.parquet")
    with pytest.raises(InputError, match="is ok and has no samples in timings.parquet"):
        compare_runs(RECORDED, new)


def test_a_case_that_stands_twice_is_refused(new: Path) -> None:
    cells = pq.read_table(new / "cells.parquet")
    pq.write_table(pa.concat_tables([cells, cells]), new / "cells.parquet")
    with pytest.raises(InputError, match=r"case \w+ stands in cells.parquet more than once"):
        compare_runs(RECORDED, new)


def test_tables_in_the_types_of_other_tools_are_read(new: Path) -> None:
    """As pandas writes them: floats for whole numbers, categories for text."""
    timings = pq.read_table(new / "timings.parquet")
    set_samples(
        new,
        elapsed_ns=timings["elapsed_ns"].cast(pa.float64()).combine_chunks(),
        pack=timings["pack"].cast(pa.int64()).combine_chunks(),
        case_id=timings["case_id"].combine_chunks().dictionary_encode(),
    )
    found = compare_runs(RECORDED, new)
    assert {tuple(pair.ratio) for pair in found.pairs} == {(1.0, 1.0, 1.0)}


@pytest.mark.parametrize(
    ("first", "message"),
    [
        (float("nan"), r"column elapsed_ns is no int64: .*nan"),
        ("soon", r"column elapsed_ns is no int64: "),
        (None, r"column elapsed_ns has 1 nulls; allowed: none"),
        (0, r"has samples in timings.parquet that took no time"),
        (-7, r"has samples in timings.parquet that took no time"),
    ],
)
def test_damaged_times_are_refused(new: Path, first: float | str | None, message: str) -> None:
    times = pq.read_table(new / "timings.parquet")["elapsed_ns"].to_pylist()
    rest = [str(one) if isinstance(first, str) else one for one in times[1:]]
    set_samples(new, elapsed_ns=[first, *(map(float, rest) if isinstance(first, float) else rest)])
    with pytest.raises(InputError, match=message):
        compare_runs(RECORDED, new)


def test_swapped_runs_give_reciprocal_ratios_and_opposite_verdicts(new: Path) -> None:
    ids = case_ids()
    dice = random.Random(5)
    scale(new, {one: dice.choice((0.9, 0.98, 1.001, 1.02, 1.1)) for one in ids})
    opposite = {Verdict.SLOWER: Verdict.FASTER, Verdict.FASTER: Verdict.SLOWER}
    back = {pair.case_id: pair for pair in compare_runs(new, RECORDED).pairs}
    for pair in compare_runs(RECORDED, new).pairs:
        other = back[pair.case_id]
        assert other.verdict is opposite.get(pair.verdict, pair.verdict)
        assert 1 / other.ratio.ratio == pytest.approx(pair.ratio.ratio, rel=1e-12)
        assert 1 / other.ratio.high == pytest.approx(pair.ratio.low, rel=1e-9)


def test_markdown_and_terminal_show_a_librarys_message_as_it_stands(new: Path) -> None:
    reason = "\x1b[31m@team #12 &lt;b&gt; ~~s~~ $x$ **b**\x1b[0m"
    change(new, case_ids()[0], status="crashed", reason_code="exit", reason=reason)
    found = compare_runs(RECORDED, new)
    shown = "@&#8203;team #&#8203;12 &amp;lt;b&amp;gt; \\~\\~s\\~\\~ \\$x\\$ \\*\\*b\\*\\*"
    assert f": crashed: {shown}\n" in markdown(found)
    console = Console(width=160, record=True, file=io.StringIO())
    for part in terminal(found):
        console.print(part)
    text = console.export_text()
    assert "\x1b" not in text
    assert not [line for line in text.splitlines() if line.startswith("  ") and line != line.rstrip()]
