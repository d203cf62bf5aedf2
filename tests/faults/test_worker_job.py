"""The worker's job, run here: every case gets its one outcome, whatever its kernel does."""

from __future__ import annotations

import dataclasses
import time
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from worker_requests import QUICK, case, request, workload

from attnspec import plugins
from attnspec.errors import JournalError
from attnspec.exchange.groups import Ranks
from attnspec.execute.clock import CpuClock, Sample
from attnspec.execute.joint import Agreement
from attnspec.record.journal import JournalWriter, read_journal
from attnspec.record.keys import result_key
from attnspec.shape import Shape
from attnspec.support import KernelNames
from attnspec.wire import Measure, WorkloadRequest
from attnspec.worker.control import Stop
from attnspec.worker.environment import look_around
from attnspec.worker.failures import failure_of
from attnspec.worker.job import run_job
from attnspec.worker.lost_device import DeviceLostError
from attnspec.worker.reporter import Reporter

HERE = Path(__file__).parent
TORCH = version("torch")
"""Of the distribution: torch.__version__ of a CUDA build has a suffix."""
ALONE = Agreement(Ranks.alone(), failure_of)


@pytest.fixture(autouse=True)
def faulty(monkeypatch):
    monkeypatch.setattr(plugins, "_extra", {kind: {} for kind in plugins.KINDS})
    plugins.load_file(HERE / "faulty.py")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Heard:
    """An event stream that keeps what is sent."""

    def __init__(self):
        self.events = []

    def send(self, event):
        self.events.append(event)


class Ran:
    """A job that ran here, and what it left."""

    def __init__(self, folder, asked, clock=None, rank=0, variables=()):
        self.heard = Heard()
        environment = look_around(asked, 0, dict(variables))
        with JournalWriter(folder / "journal", f"{asked.job_id}-rank{rank}", asked.attempt) as journal:
            reporter = Reporter(self.heard, journal, Stop(), environment, rank=rank)
            run_job(asked, environment, clock or CpuClock(), reporter, ALONE)
        self.journal = read_journal(folder / "journal")
        self.outcomes = {one.case_id: one for one in self.journal.outcomes if one.attempt == asked.attempt}

    def status(self, name):
        one = self.outcomes[name]
        return one.status, one.reason_code

    def samples(self, name, pack=0):
        rows = self.journal.timings.to_pylist()
        return [row for row in rows if row["case_id"] == name and row["pack"] == pack]

    def kinds(self, name):
        return [event.phase or event.kind for event in self.heard.events if event.case_id == name]


def faulty_case(fault, pass_="fwd", name=None):
    return case("faulty", pass_, name=name or f"{fault} {pass_}", kernel_params={"fault": fault})


@pytest.mark.parametrize(
    ("fault", "pass_", "status", "code", "words"),
    [
        ("no_lowering", "fwd", "unsupported", "no_lowering", "no call expresses these slices"),
        ("bind", "fwd", "error", "exception", "ImportError: libfoo.so: undefined symbol: bar"),
        ("raise:forward", "fwd", "error", "exception", "RuntimeError: the library says no in forward"),
        ("raise:backward", "bwd", "error", "exception", "RuntimeError: the library says no in backward"),
        ("oom:forward", "fwd", "oom", "host_memory", "MemoryError: no memory in forward"),
        ("huge:forward", "fwd", "oom", "host_memory", "can't allocate memory"),
        ("late:raise", "fwd", "error", "exception", "RuntimeError: later"),
        ("late:oom", "fwd", "oom", "host_memory", "MemoryError: later"),
        ("wrong", "fwd", "wrong", "mask_probe", "expected"),
        ("nan", "bwd", "wrong", "not_finite", "the first at row 3, head 0"),
    ],
)
def test_a_fault_is_its_own_case_and_no_other(tmp_path, fault, pass_, status, code, words):
    bad = faulty_case(fault, pass_)
    good = case("reference", name="good")
    ran = Ran(tmp_path, request(tmp_path, workload(tmp_path, [bad, good])))
    assert ran.status(bad.case_id) == (status, code)
    assert words in ran.outcomes[bad.case_id].reason
    assert ran.status("good") == ("ok", None)
    assert len(ran.samples("good")) >= QUICK.min_iters
    assert sorted(event.case_id for event in ran.heard.events if event.kind == "outcome") == sorted(
        [bad.case_id, "good"]
    )
    assert ran.heard.events[0].kind == "hello"
    assert ran.heard.events[-1].kind == "bye"


def test_a_backward_that_fails_leaves_the_forward(tmp_path):
    cases = [faulty_case("raise:backward", one) for one in ("fwd", "bwd", "fwd_bwd")]
    ran = Ran(tmp_path, request(tmp_path, workload(tmp_path, cases)))
    assert [ran.status(one.case_id)[0] for one in cases] == ["ok", "error", "error"]


def test_out_of_memory_beside_others_is_tried_alone_after_them(tmp_path):
    bad, others = faulty_case("oom:forward"), [case("reference", name="a"), case("reference", "bwd", name="b")]
    ran = Ran(tmp_path, request(tmp_path, workload(tmp_path, [bad, *others])))
    assert ran.status(bad.case_id) == ("oom", "host_memory")
    assert ran.kinds(bad.case_id).count("setup") >= 3  # chosen, beside the others, alone
    order = [event.case_id for event in ran.heard.events if event.kind == "outcome"]
    assert order[-1] == bad.case_id
    assert any("trying alone" in event.text for event in ran.heard.events if event.kind == "message")
    assert ran.status("a") == ran.status("b") == ("ok", None)


MANY_ROUNDS = dataclasses.replace(QUICK, min_iters=100)


def test_rounds_of_a_second_try_are_counted_on(tmp_path):
    once = case("faulty", name="once", kernel_params={"fault": "once", "folder": str(tmp_path)})
    asked = request(tmp_path, workload(tmp_path, [once, case("reference", name="a")]), measure=MANY_ROUNDS)
    ran = Ran(tmp_path, asked)
    assert ran.status("once") == ("ok", None)
    assert any("trying alone: once" in event.text for event in ran.heard.events if event.kind == "message")
    samples = [(row["round"], row["iteration"]) for row in ran.samples("once")]
    assert len(set(samples)) == len(samples)
    rounds = {number for number, _ in samples}
    assert rounds == set(range(len(rounds)))


@pytest.mark.parametrize("place", ["verify", "measure"])
def test_a_call_that_ran_out_of_memory_holds_none_when_others_go_on(tmp_path, place):
    """Its tensors hang on the frames of its exception and of what that was raised from."""
    hoarded = plugins.load("kernels", "faulty").HOARDED
    cases = [faulty_case(f"hoards:{place}"), faulty_case("witnesses"), faulty_case("witnesses", "bwd")]
    later = workload(tmp_path, [faulty_case("witnesses", name="later")], docs=((32,),))
    ran = Ran(tmp_path, request(tmp_path, workload(tmp_path, cases), later))
    assert ran.status(cases[0].case_id) == ("oom", "host_memory")
    assert "no room for the workspace" in ran.outcomes[cases[0].case_id].reason
    assert len(hoarded) == 2  # beside the others, and alone
    for name in (cases[1].case_id, cases[2].case_id, "later"):
        assert ran.status(name) == ("ok", None), ran.outcomes[name].reason


def test_what_has_no_backward_keeps_its_forward(tmp_path):
    cases = [faulty_case("forward_only", one) for one in ("fwd", "bwd", "fwd_bwd")]
    ran = Ran(tmp_path, request(tmp_path, workload(tmp_path, cases)))
    found = [ran.status(one.case_id) for one in cases]
    assert found == [("ok", None), ("unsupported", "direction"), ("unsupported", "direction")]
    assert len(ran.samples(cases[0].case_id)) >= QUICK.min_iters


def test_compiling_has_a_column_of_its_own(tmp_path):
    """Once for each pack, since each may have another mask."""
    compile_s = plugins.load("kernels", "faulty").COMPILE_S
    bad = faulty_case("compiles")
    ran = Ran(tmp_path, request(tmp_path, workload(tmp_path, [bad], mask="varlen_causal", docs=((40, 24), (10, 54)))))
    one = ran.outcomes[bad.case_id]
    assert one.status == "ok"
    assert 1.9 * compile_s < one.compile_s < one.setup_s


BROKEN = {
    "absent": (None, "missing_package", "ModuleNotFoundError: No module named 'package_of_absent'"),
    "needy": ("import nothing_of_that_name", "broken_package", "No module named 'nothing_of_that_name'"),
    "unlinked": (
        "raise ImportError('fa2.so: undefined symbol: _ZN3c105ErrorC2')",
        "broken_package",
        "ImportError: fa2.so: undefined symbol: _ZN3c105ErrorC2",
    ),
    "driverless": (
        "raise OSError('libcuda.so.1: cannot open shared object file')",
        "broken_package",
        "OSError: libcuda.so.1: cannot open shared object file",
    ),
}


def test_packages_that_do_not_load_cost_their_own_cases(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    for name, (source, *_) in BROKEN.items():
        if source is not None:
            (tmp_path / f"package_of_{name}.py").write_text(source)
        (tmp_path / f"{name}.py").write_text(
            'PLUGIN_KIND = "kernels"\n'
            "from attnspec.kernels.reference import SUPPORT, Params, bind, lower\n"
            "from attnspec.support import Provider\n"
            f'PROVIDERS = (Provider(name="p", distribution="none", module="package_of_{name}", fix="install it"),)\n'
        )
        plugins.load_file(tmp_path / f"{name}.py")
    cases = [case(name, pass_, name=f"{name} {pass_}") for name in BROKEN for pass_ in ("fwd", "bwd")]
    ran = Ran(tmp_path, request(tmp_path, workload(tmp_path, [*cases, case("sdpa", name="good")])))
    for one in cases:
        _, code, words = BROKEN[one.implementation.kernel]
        assert ran.status(one.case_id) == ("unsupported", code)
        assert words in ran.outcomes[one.case_id].reason
        assert "(install it)" in ran.outcomes[one.case_id].reason
    assert ran.status("good") == ("ok", None)
    assert len(ran.samples("good")) >= QUICK.min_iters


def test_small_too_big_small(tmp_path):
    """A size that does not fit in memory takes nothing from the sizes around it."""
    wide = Shape(batch=1, num_heads_q=2, num_heads_kv=1, head_dim=16, dtype="float32")
    workloads = [
        workload(tmp_path, [case("reference", name="small")], docs=((64,),)),
        workload(tmp_path, [faulty_case("huge:forward", name="too big")], docs=((96,),), shape=wide),
        workload(tmp_path, [case("reference", name="small again")], docs=((80,),)),
    ]
    ran = Ran(tmp_path, request(tmp_path, *workloads))
    assert [ran.outcomes[name].status for name in ("small", "too big", "small again")] == ["ok", "oom", "ok"]


def test_tensors_that_do_not_fit_are_every_cases_outcome(tmp_path):
    shape = Shape(batch=2**30, num_heads_q=2**10, num_heads_kv=1, head_dim=64, dtype="float32")
    ran = Ran(tmp_path, request(tmp_path, workload(tmp_path, [case("reference", name="a")], shape=shape)))
    assert ran.status("a") == ("oom", "host_memory")


def test_missing_slices_are_an_error_of_their_cases(tmp_path):
    asked = workload(tmp_path, [case("reference", name="a")])
    (tmp_path / asked.slices).unlink()
    ran = Ran(tmp_path, request(tmp_path, asked, workload(tmp_path, [case("reference", name="b")], docs=((32,),))))
    assert ran.status("a") == ("error", "exception")
    assert "slices cannot be read" in ran.outcomes["a"].reason
    assert ran.status("b") == ("ok", None)


def test_slices_of_another_size_are_refused(tmp_path):
    asked = workload(tmp_path, [case("reference", name="a")])
    wrong = WorkloadRequest(**{**{name: getattr(asked, name) for name in asked.__slots__}, "seqlen_q": 128})
    ran = Ran(tmp_path, request(tmp_path, wrong))
    assert "slices are not over 128 x 64 tokens" in ran.outcomes["a"].reason


def test_one_outcome_over_all_packs(tmp_path):
    asked = workload(tmp_path, [case("reference", name="a")], mask="varlen_causal", docs=((40, 24), (10, 54), (64,)))
    ran = Ran(tmp_path, request(tmp_path, asked))
    assert [len(ran.samples("a", pack)) >= QUICK.min_iters for pack in range(3)] == [True] * 3
    one = ran.outcomes["a"]
    assert one.status == "ok"
    assert 0 < one.verified_error <= one.verified_bound
    assert one.setup_s > one.lower_s + one.verify_s > 0
    assert (one.provider, one.provider_version) == ("torch", TORCH)
    assert one.kernel_names is None
    assert one.peak_memory_bytes is None


def test_a_profile_that_shows_nothing_is_recorded_as_such(tmp_path, monkeypatch):
    monkeypatch.setattr("attnspec.worker.workload_run.device_kernels", lambda step, device: ())
    ran = Ran(tmp_path, request(tmp_path, workload(tmp_path, [case("reference", name="a")])))
    assert ran.outcomes["a"].status == "ok"
    assert ran.outcomes["a"].kernel_names == []
    said = [event.text for event in ran.heard.events if event.kind == "message"]
    assert "a: the profiler saw no device kernel: which ones ran is not shown" in said


def test_a_fallback_in_the_backward_alone_is_an_error_where_there_is_a_backward(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "attnspec.kernels.reference.Reference.expected_kernels", KernelNames(fwd="own_forward", bwd="own_backward")
    )
    ran_kernels = ("own_forward_kernel", "softmax_backward")
    monkeypatch.setattr("attnspec.worker.workload_run.device_kernels", lambda step, device: ran_kernels)
    cases = [case("reference", pass_, name=pass_) for pass_ in ("fwd", "bwd", "fwd_bwd")]
    ran = Ran(tmp_path, request(tmp_path, workload(tmp_path, cases)))
    assert ran.status("fwd") == ("ok", None)
    assert ran.status("bwd") == ran.status("fwd_bwd") == ("error", "fallback")
    assert "no device kernel of fwd_bwd matched 'own_backward'" in ran.outcomes["fwd_bwd"].reason


def test_result_key_is_that_of_the_software_and_device_found(tmp_path):
    ran = Ran(tmp_path, request(tmp_path, workload(tmp_path, [case("reference", name="a")])))
    facts = ran.heard.events[0].data
    key = result_key("a", None, {"torch": TORCH}, facts["driver"], facts["device"], {})
    assert ran.outcomes["a"].result_key == key
    assert {row["result_key"] for row in ran.samples("a")} == {key}
    imaged = Ran(
        tmp_path, request(tmp_path, workload(tmp_path, [case("reference", name="a")]), attempt=2, image_id="i")
    )
    assert imaged.outcomes["a"].result_key not in (key, None)
    assert imaged.outcomes["a"].image_digest == "i"


def test_a_case_measured_under_other_variables_is_not_resumed(tmp_path):
    asked = workload(tmp_path, [case("reference", name="a")])
    variables = {"NCCL_ALGO": "Tree"}
    first = Ran(tmp_path, request(tmp_path, asked))
    assert first.heard.events[0].data["variables"] == {}
    done = (first.outcomes["a"].result_key,)
    second = Ran(tmp_path, request(tmp_path, asked, attempt=2, done=done), variables=variables)
    assert second.heard.events[0].data["variables"] == variables
    assert second.status("a") == ("ok", None)
    assert second.outcomes["a"].result_key not in done
    done = (*done, second.outcomes["a"].result_key)
    assert Ran(tmp_path, request(tmp_path, asked, attempt=3, done=done), variables=variables).outcomes == {}


def test_done_cases_are_resumed_and_journal_nothing(tmp_path):
    asked = workload(tmp_path, [case("reference", name="a"), case("reference", "bwd", name="b")])
    first = Ran(tmp_path, request(tmp_path, asked))
    key = first.outcomes["a"].result_key
    second = Ran(tmp_path, request(tmp_path, asked, attempt=2, done=(key,)))
    assert set(second.outcomes) == {"b"}
    (event,) = [event for event in second.heard.events if event.kind == "outcome" and event.case_id == "a"]
    assert (event.status, event.data) == ("ok", {"result_key": key, "resumed": True})
    assert len({row["attempt"] for row in second.samples("a")}) == 1


def test_interrupted_rounds_are_counted_on(tmp_path):
    asked = workload(tmp_path, [case("reference", name="a")])
    first = Ran(tmp_path, request(tmp_path, asked))
    key = first.outcomes["a"].result_key
    second = Ran(tmp_path, request(tmp_path, asked, attempt=2, rounds_done={key: {"0": 3}}))
    assert min(row["round"] for row in second.samples("a") if row["attempt"] == 2) == 3


def test_solo_cases_come_last_and_alone(tmp_path):
    asked = [
        workload(tmp_path, [case("reference", name="solo"), case("reference", "bwd", name="a")]),
        workload(tmp_path, [case("reference", name="b")], docs=((32,),)),
    ]
    ran = Ran(tmp_path, request(tmp_path, *asked, solo=("solo",)))
    assert [event.case_id for event in ran.heard.events if event.kind == "outcome"] == ["a", "b", "solo"]


def test_the_turn_is_known_at_every_step(tmp_path):
    asked = workload(tmp_path, [case("reference", name="a"), case("reference", "bwd", name="b")])
    ran = Ran(tmp_path, request(tmp_path, asked))
    turn = None
    for event in ran.heard.events:
        if event.kind == "phase":
            turn = event.case_id
        if event.kind == "round":
            assert event.case_id == turn
    assert ran.kinds("a")[:5] == ["choose", "setup", "verify", "setup", "verify"]
    assert "choose" not in ran.kinds("b")
    assert ran.kinds("a")[-1] == "outcome"


def test_anchor_is_noted_at_both_ends(tmp_path):
    asked = [
        workload(tmp_path, [case("reference", "bwd", name="anchor")]),
        workload(tmp_path, [case("reference", name="b")], docs=((32,),)),
    ]
    ran = Ran(tmp_path, request(tmp_path, *asked, anchor="anchor"))
    notes = [note.data for note in ran.journal.notes if note.kind == "anchor"]
    assert [note["when"] for note in notes] == ["start", "end"]
    assert all(note["median_ns"] > 0 and note["case_id"] == "anchor" for note in notes)
    assert ran.heard.events[-1].kind == "bye"


def again_ns(ran):
    return [note.data["again_ns"] for note in ran.journal.notes if note.kind == "anchor_again"]


@pytest.fixture
def cheap_anchor(monkeypatch):
    """On the slowest machine too, measuring it between workloads is cheap enough."""
    monkeypatch.setattr("attnspec.worker.anchor.FREE_SECONDS", 600.0)


@pytest.mark.usefixtures("cheap_anchor")
def test_anchor_is_measured_between_workloads_and_at_the_end(tmp_path):
    lengths = ((64,), (32,), (48,))
    asked = [
        workload(tmp_path, [case("reference", name="anchor" if number == 0 else f"case {number}")], docs=(docs,))
        for number, docs in enumerate(lengths)
    ]
    ran = Ran(tmp_path, request(tmp_path, *asked, anchor="anchor"))
    told = again_ns(ran)
    assert [len(times) for times in told] == [1, 2, 3]  # before the second, before the third, at the end
    assert told[1] == told[2][:2]  # every note tells all so far, so the newest stands for all
    assert all(len(rounds) == min(5, QUICK.min_iters) and min(map(min, rounds)) > 0 for rounds in told[-1])
    (end,) = [note.data for note in ran.journal.notes if note.kind == "anchor" and note.data["when"] == "end"]
    assert end["num_samples"] == sum(map(len, told[-1][-1]))
    assert {one.case_id: one.status for one in ran.journal.outcomes} == dict.fromkeys(
        ["anchor", "case 1", "case 2"], "ok"
    )


@pytest.mark.usefixtures("cheap_anchor")
def test_anchor_of_an_earlier_attempt_is_measured_again_where_anything_is_measured(tmp_path):
    """So that the drift between attempts shows."""
    lengths = {"anchor": (64,), "b": (32,), "c": (48,)}
    asked = [workload(tmp_path, [case("reference", name=name)], docs=(docs,)) for name, docs in lengths.items()]
    first = Ran(tmp_path, request(tmp_path, *asked[:2], anchor="anchor"))
    keys = {name: outcome.result_key for name, outcome in first.outcomes.items()}
    second = Ran(tmp_path, request(tmp_path, *asked, anchor="anchor", attempt=2, done=tuple(keys.values())))
    told = [note.data for note in second.journal.notes if note.kind == "anchor_again" and note.attempt == 2]
    assert [len(one["again_ns"]) for one in told] == [1, 2]  # before c, the only one that is left, and at the end
    assert {(one["case_id"], one["result_key"]) for one in told} == {("anchor", keys["anchor"])}
    assert [one.kind for one in second.heard.events if one.case_id == "anchor"].count("outcome") == 1
    assert second.status("c") == ("ok", None)
    done = (*keys.values(), second.outcomes["c"].result_key)
    third = Ran(tmp_path, request(tmp_path, *asked, anchor="anchor", attempt=3, done=done))
    assert not [note for note in third.journal.notes if note.attempt == 3 and note.kind.startswith("anchor")]


def test_anchor_that_costs_much_is_measured_at_the_end_only(tmp_path, monkeypatch):
    monkeypatch.setattr("attnspec.worker.anchor.FREE_SECONDS", 0.0)
    monkeypatch.setattr("attnspec.worker.anchor.MOST_SHARE", 0.0)
    asked = [
        workload(tmp_path, [case("reference", name=name)], docs=((size,),))
        for name, size in (("anchor", 64), ("b", 32))
    ]
    assert [len(times) for times in again_ns(Ran(tmp_path, request(tmp_path, *asked, anchor="anchor")))] == [1]


@pytest.mark.usefixtures("cheap_anchor")
def test_anchor_that_cannot_be_measured_again_is_told_once_and_ends_nothing(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("no memory for it")

    monkeypatch.setattr("attnspec.worker.anchor.open_benches", refuse)
    asked = [
        workload(tmp_path, [case("reference", name=name)], docs=((size,),))
        for name, size in (("anchor", 64), ("b", 32), ("c", 48))
    ]
    ran = Ran(tmp_path, request(tmp_path, *asked, anchor="anchor"))
    texts = [event.text for event in ran.heard.events if event.kind == "message"]
    assert texts == ["the anchor anchor could not be measured again: no memory for it"]
    assert {one.status for one in ran.journal.outcomes} == {"ok"}
    assert again_ns(ran) == []


def test_a_device_that_is_lost_at_the_anchor_is_no_other_cases_fault(tmp_path, monkeypatch):
    def lose(*_, **__):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr("attnspec.worker.anchor.open_benches", lose)
    asked = request(
        tmp_path,
        workload(tmp_path, [case("reference", name="anchor")], docs=((64,),)),
        workload(tmp_path, [case("reference", name="innocent")], docs=((32,),)),
        anchor="anchor",
    )
    heard = lost(tmp_path, asked, "illegal memory access")
    turns = [(event.case_id, event.phase) for event in heard.events if event.kind == "phase"]
    assert turns[-1] == ("anchor", "measure")  # whose turn it was is to blame


def test_wall_time_is_noted_by_activity(tmp_path):
    began = time.perf_counter()
    ran = Ran(tmp_path, request(tmp_path, workload(tmp_path, [case("reference", name="one")])))
    took_s = time.perf_counter() - began
    spent = [note.data for note in ran.journal.notes if note.kind == "spent"][-1]
    timed_s = spent.pop("timed")
    assert {"setup", "oracle", "verify", "measure"} <= set(spent)
    assert 0 < timed_s <= spent["measure"]
    assert 0.5 * took_s < sum(spent.values()) <= took_s


def test_wall_time_is_noted_on_the_way_for_who_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("attnspec.worker.reporter.SPENT_NOTED_EVERY_S", 0.0)
    ran = Ran(tmp_path, request(tmp_path, workload(tmp_path, [case("reference", name="one")])))
    noted = [note.data for note in ran.journal.notes if note.kind == "spent"]
    measured_s = [one.get("measure", 0.0) for one in noted]
    assert len(measured_s) > 2
    assert measured_s == sorted(measured_s)
    under_way = [one for one in noted if one.get("measure")]  # of what was measured, all but little was timed
    assert all(0 < one["timed"] <= one["measure"] for one in under_way[1:])


def test_environment_is_noted_and_said(tmp_path):
    ran = Ran(tmp_path, request(tmp_path, workload(tmp_path, [case("reference", name="a")])))
    (note,) = [note for note in ran.journal.notes if note.kind == "environment"]
    assert note.data == ran.heard.events[0].data
    assert note.data["versions"]["torch"] == TORCH
    again = Ran(tmp_path, request(tmp_path, workload(tmp_path, [case("reference", name="a")]), attempt=2))
    assert again.heard.events[0].data == ran.heard.events[0].data
    conditions = [note.data for note in ran.journal.notes if note.kind == "conditions"]
    assert [one["when"] for one in conditions] == ["start", "end"]
    assert {one["flush_bytes"] for one in conditions} == {0}  # nothing is flushed on the CPU, and that is said


def test_a_backward_that_frees_its_graph_gets_a_forward_before_each(tmp_path):
    cases = [faulty_case("frees_graph", one) for one in ("bwd", "fwd_bwd")]
    ran = Ran(tmp_path, request(tmp_path, workload(tmp_path, cases)))
    assert [ran.status(one.case_id)[0] for one in cases] == ["ok", "ok"]


class ZeroClock(CpuClock):
    """Gives no time at all to one step in two."""

    def __init__(self):
        super().__init__()
        self.made = 0

    def timer(self, step):
        self.made += 1
        timer = super().timer(step)
        if self.made == 1:
            timer.round = lambda iterations, ahead: [Sample(started_ns=1, elapsed_ns=0, host_ns=5)] * iterations
        if self.made == 2:
            timer.round = lambda iterations, ahead: []
        return timer


def test_impossible_times_and_no_samples_are_errors(tmp_path):
    cases = [case("reference", name="zero"), case("reference", "bwd", name="none"), case("sdpa", name="good")]
    ran = Ran(tmp_path, request(tmp_path, workload(tmp_path, cases)), clock=ZeroClock())
    assert ran.status("zero") == ("error", "invalid_time")
    assert ran.status("none") == ("error", "no_samples")
    assert ran.status("good") == ("ok", None)
    assert ran.samples("zero") == []


class DeadClock(CpuClock):
    """A device that stops answering with the first failure, as CUDA does after an illegal access."""

    def synchronize(self):
        import sys

        if sys.exc_info()[0] is not None:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")


def lost(tmp_path, asked, words):
    """What was heard of a job that ends with its device lost."""
    heard = Heard()
    environment = look_around(asked, 0, {})
    with JournalWriter(tmp_path / "journal", "w", 1) as journal:
        reporter = Reporter(heard, journal, Stop(), environment, rank=0)
        with pytest.raises(DeviceLostError, match=words):
            run_job(asked, environment, DeadClock(), reporter, ALONE)
    return heard


def test_a_lost_device_ends_the_worker_with_the_turn_at_the_culprit(tmp_path):
    asked = request(tmp_path, workload(tmp_path, [faulty_case("late:raise"), case("reference", name="good")]))
    heard = lost(tmp_path, asked, "the device does not answer after: later")
    assert [event for event in heard.events if event.kind == "outcome"] == []
    assert [event.case_id for event in heard.events if event.kind == "phase"][-1] == "late:raise fwd"


def test_a_journal_that_refuses_ends_the_job(tmp_path, monkeypatch):
    def full(self, rows):
        raise JournalError("no space left for the journal")

    monkeypatch.setattr(JournalWriter, "append_round", full)
    with pytest.raises(JournalError, match="no space left"):
        Ran(tmp_path, request(tmp_path, workload(tmp_path, [case("reference", name="a")])))


def test_other_ranks_journal_their_samples_and_say_nothing(tmp_path):
    ran = Ran(tmp_path, request(tmp_path, workload(tmp_path, [case("reference", name="a")])), rank=1)
    assert ran.heard.events == []
    assert ran.outcomes == {}
    assert {row["rank"] for row in ran.samples("a")} == {1}


def test_a_strategy_that_nobody_has_is_an_error_of_its_case(tmp_path):
    asked = workload(tmp_path, [case("reference", name="a", strategy="warp_drive"), case("reference", name="b")])
    ran = Ran(tmp_path, request(tmp_path, asked, measure=Measure(min_iters=2, max_seconds=0.01, ci=1.0)))
    assert "'warp_drive'" in ran.outcomes["a"].reason
    assert ran.status("b") == ("ok", None)
