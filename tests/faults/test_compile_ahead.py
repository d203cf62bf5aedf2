"""Compiling ahead: which cases are called, that each is called once, and that what goes wrong there only tells."""

from __future__ import annotations

import dataclasses
import os
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
from worker_requests import case, request, workload

from attnspec import plugins
from attnspec.support import Device
from attnspec.worker import compile_ahead as module
from attnspec.worker.compile_ahead import call_all, cases_of, compile_ahead
from attnspec.worker.environment import look_around, set_defaults
from attnspec.worker.identity import identify

HERE = Path(__file__).parent
PLUGIN = str(HERE / "compiled.py")


@pytest.fixture(autouse=True)
def compiled(monkeypatch):
    monkeypatch.setattr(plugins, "_extra", {kind: {} for kind in plugins.KINDS})
    plugins.load_file(PLUGIN)


def compiled_case(folder, name, pass_="fwd", fault=""):
    return case("compiled", pass_, name, provider="torch", kernel_params={"folder": str(folder), "fault": fault})


def asked_for(folder, fault="", passes=("fwd", "bwd", "fwd_bwd")):
    """Two masks at one length, one at another; `reference` compiles nothing."""
    workloads = []
    for index, (mask, seqlen) in enumerate([("full", 32), ("causal", 32), ("causal", 48)]):
        cases = [compiled_case(folder, f"{pass_} {index}", pass_, fault) for pass_ in passes]
        workloads.append(workload(folder, [*cases, case("reference")], mask=mask, docs=((seqlen,),)))
    return request(folder, *workloads, plugins=(PLUGIN,))


def chosen(asked):
    return list(cases_of(asked, look_around(asked, 0, {})))


def test_the_longest_come_first_and_masks_of_one_length_not_at_once(tmp_path):
    asked = asked_for(tmp_path)
    assert chosen(asked) == ["bwd 2", "bwd 0", "fwd 2", "fwd 0", "bwd 1", "fwd 1"]
    bwd, fwd = asked.workloads[2].cases[1::-1]
    *_, done = identify(asked, bwd, look_around(asked, 0, {}))
    assert chosen(dataclasses.replace(asked, done=(done,)))[0] == "fwd_bwd 2"
    assert fwd.case_id == "fwd 2"
    unknown = workload(tmp_path, [case("nowhere_at_all")])
    distributed = dataclasses.replace(workload(tmp_path, [compiled_case(tmp_path, "far")]), level="distributed")
    assert chosen(request(tmp_path, unknown, distributed)) == []


def test_where_lengths_share_what_is_compiled_a_mask_is_called_at_its_greatest_length(tmp_path, monkeypatch):
    asked = asked_for(tmp_path)
    monkeypatch.setattr(plugins.load("kernels", "compiled"), "COMPILES_AHEAD", "any_length")
    assert chosen(asked) == ["fwd 0", "bwd 0", "fwd 2", "bwd 2"]


def test_variables_that_a_library_wants_are_set_unless_somebody_set_them(monkeypatch):
    kernel = plugins.load("kernels", "compiled")
    monkeypatch.setattr(kernel, "ENVIRONMENT", {"LIBRARY_CACHE": "1", "LIBRARY_PATH": "here"}, raising=False)
    monkeypatch.delenv("LIBRARY_CACHE", raising=False)
    monkeypatch.setenv("LIBRARY_PATH", "there")
    set_defaults(["nowhere_at_all", "compiled", "compiled"])
    assert (os.environ["LIBRARY_CACHE"], os.environ["LIBRARY_PATH"]) == ("1", "there")


@pytest.mark.slow
def test_every_case_is_called_once_by_some_process(tmp_path):
    asked = asked_for(tmp_path)
    facts, compiled = call_all(asked, chosen(asked), 2, limit_s=60)
    calls = [line.split(maxsplit=1) for line in (tmp_path / "calls").read_text().splitlines()]
    assert Counter(what for _, what in calls) == {
        "32 forward forward": 2, "48 forward forward": 1,
        "32 both forward": 2, "32 both backward": 2, "48 both forward": 1, "48 both backward": 1,
    }  # fmt: skip
    assert len({pid for pid, _ in calls}) == 2
    assert facts.pop("wall_s") > 0
    assert facts == {"cases": 6, "answered": 6, "failed": {}, "processes": 2}
    assert sorted(compiled) == sorted(chosen(asked))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "answered", "failed"),
    [("raise", 3, {f"fwd {index}": "RuntimeError: nvcc is not there" for index in range(3)}), ("die", 0, {})],
)
def test_a_failure_is_told_and_a_death_ends_one_process_only(tmp_path, fault, answered, failed):
    asked = asked_for(tmp_path, fault, passes=("fwd",))
    facts, compiled = call_all(asked, chosen(asked), 1, limit_s=60)
    assert (facts["answered"], facts["failed"], compiled) == (answered, failed, [])


@pytest.mark.slow
def test_a_compiler_that_hangs_is_ended_in_time(tmp_path):
    asked = asked_for(tmp_path, "hang", passes=("fwd",))
    started = time.monotonic()
    facts, _ = call_all(asked, chosen(asked), 1, limit_s=1.5)
    assert time.monotonic() - started < 10
    assert facts["answered"] == 0


class Heard:
    def __init__(self):
        self.said, self.notes = [], {}

    def message(self, text):
        self.said.append(text)

    def note(self, kind, data):
        self.notes[kind] = data


@pytest.fixture
def on_cuda(monkeypatch, tmp_path):
    """An environment that looks like one GPU with room for `gib`, and `cores` cores. No process is started."""

    def make(gib, cores):
        found = look_around(request(tmp_path), 0, {})
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (gib * 2**30, gib * 2**30))
        monkeypatch.setattr(module, "usable_cores", lambda: cores)
        monkeypatch.setattr(
            module, "call_all",
            lambda asked, case_ids, count, *, limit_s: (
                {"failed": {case_ids[0]: "b"}, "wall_s": 2.6, "processes": count, "limit_s": limit_s}, case_ids[1:]
            ),
        )  # fmt: skip
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
        return dataclasses.replace(found, device=torch.device("cuda"), support=Device(type="cuda"))

    return make


@pytest.mark.parametrize(("gib", "cores", "processes"), [(100, 16, 6), (100, 4, 3), (3, 16, 2)])
def test_as_many_processes_as_cases_cores_and_memory_allow(tmp_path, on_cuda, gib, cores, processes):
    heard = Heard()
    compile_ahead(asked_for(tmp_path), on_cuda(gib, cores), heard)
    assert heard.notes["compile_ahead"]["processes"] == processes
    assert heard.notes["compile_ahead"]["limit_s"] == 450
    assert heard.said == [
        f"compiling 6 cases ahead in {processes} processes", "compiled ahead in 3 s; 1 failed so far"
    ]  # fmt: skip


def test_what_an_earlier_worker_compiled_is_not_called_again(tmp_path, on_cuda, monkeypatch):
    monkeypatch.setattr(module, "LEAST_CASES", 1)
    monkeypatch.setattr(module, "usable_cores", lambda: 16)
    asked, environment, heard = asked_for(tmp_path), on_cuda(100, 16), Heard()
    told = "compiled ahead in 3 s; 1 failed so far"
    compile_ahead(asked, environment, heard)
    assert heard.said == ["compiling 6 cases ahead in 6 processes", told]
    first, *others = asked.workloads
    fewer = dataclasses.replace(first, cases=first.cases[2:])  # bwd is measured: fwd_bwd needs the same
    later = dataclasses.replace(asked, attempt=2, workloads=(fewer, *others))
    compile_ahead(later, environment, heard)
    assert heard.said[2:] == []  # one case is left, and no two processes pay for it
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "elsewhere"))
    compile_ahead(later, environment, heard)
    assert heard.said[2:] == ["compiling 5 cases ahead in 5 processes", told]
    compile_ahead(dataclasses.replace(later, code_sha256="another"), environment, heard)
    assert heard.said[4:] == ["compiling 5 cases ahead in 5 processes", told]


def test_a_library_that_runs_out_of_memory_when_tried_is_its_cases_own_outcome(tmp_path, monkeypatch, on_cuda):
    def no_room(*_):
        raise torch.OutOfMemoryError("no room for a tiny call")

    monkeypatch.setattr(module, "identify", no_room)
    heard = Heard()
    compile_ahead(asked_for(tmp_path), on_cuda(100, 16), heard)
    assert (heard.said, heard.notes) == ([], {})


@pytest.mark.parametrize(("gib", "cores", "more"), [(100, 2, {}), (1, 16, {}), (100, 16, {"world_size": 2})])
def test_nothing_is_done_where_it_would_not_pay(tmp_path, on_cuda, gib, cores, more):
    heard = Heard()
    compile_ahead(dataclasses.replace(asked_for(tmp_path), **more), on_cuda(gib, cores), heard)
    assert (heard.said, heard.notes) == ([], {})


def test_few_cases_and_the_cpu_are_left_to_the_worker(tmp_path, on_cuda):
    heard, environment = Heard(), on_cuda(100, 16)
    few = request(tmp_path, workload(tmp_path, [compiled_case(tmp_path, "one")]))
    compile_ahead(few, environment, heard)
    asked = asked_for(tmp_path)
    compile_ahead(asked, look_around(asked, 0, {}), heard)
    assert (heard.said, heard.notes) == ([], {})
