"""Supervision without processes: inputs in, instructions out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnspec.launch.supervision import (
    Ended,
    EndWorker,
    Finish,
    Instruction,
    Interrupted,
    RecordOutcome,
    Said,
    StartWorker,
    Supervision,
    Tell,
    Tick,
    Verdict,
)
from attnspec.record.status import REASON_CODES, Status
from attnspec.wire import EXIT_JOURNAL, EXIT_MISSING, Event, Measure

MEASURE = Measure(setup_timeout_s=100, measure_timeout_s=10)
DONE = Finish(verdict=Verdict.DONE)


def hello() -> Said:
    return Said(event=Event(kind="hello"))


def turn(case_id: str, phase: str) -> Said:
    return Said(event=Event(kind="phase", case_id=case_id, phase=phase))


def nobody() -> Said:
    return Said(event=Event(kind="phase"))


def outcome(case_id: str, status: str = "ok", **data) -> Said:
    return Said(event=Event(kind="outcome", case_id=case_id, status=status, data=data))


def bye() -> Said:
    return Said(event=Event(kind="bye"))


def machine(*groups: list[str]) -> Supervision:
    return Supervision(groups, MEASURE)


def feed(held: Supervision, *inputs, now: float = 0) -> list[Instruction]:
    """What the last input led to; nothing else may lead to anything."""
    *first, last = inputs
    for one in first:
        assert held.handle(one, now) == []
    return held.handle(last, now)


def records(instructions: list[Instruction]) -> list[RecordOutcome]:
    return [one for one in instructions if isinstance(one, RecordOutcome)]


def test_a_job_in_good_order() -> None:
    held = machine(["a", "b"], ["c"])
    assert held.begin(0) == [StartWorker(case_ids=("a", "b", "c"))]
    inputs = [hello(), turn("a", "setup"), outcome("a"), turn("b", "measure"), outcome("b", "oom"), outcome("c"), bye()]
    assert feed(held, *inputs, Ended(returncode=0)) == [DONE]


def test_a_crash_after_the_last_outcome_changes_nothing() -> None:
    held = machine(["a"])
    held.begin(0)
    assert feed(held, hello(), turn("a", "measure"), outcome("a"), Ended(returncode=-11)) == [DONE]


def test_no_cases_no_worker() -> None:
    assert machine().begin(0) == [DONE]


def test_the_culprit_of_a_group_is_tried_alone_after_the_others() -> None:
    held = machine(["a", "b"], ["c"])
    held.begin(0)
    told, again = feed(held, hello(), turn("a", "setup"), turn("b", "measure"), Ended(returncode=-11))
    assert isinstance(told, Tell) and "case b" in told.text and "SIGSEGV" in told.text
    assert again == StartWorker(case_ids=("a", "c", "b"), solo=("b",))
    assert feed(held, hello(), outcome("a"), outcome("c"), turn("b", "measure"), outcome("b"), bye()) == []
    assert held.handle(Ended(returncode=0), 0) == [DONE]


def test_what_is_verified_by_the_same_calls_is_set_aside_with_the_culprit() -> None:
    mates = {name: ["bwd", "fwd_bwd"] for name in ("bwd", "fwd_bwd")}
    held = Supervision([["fwd", "bwd", "fwd_bwd"], ["c"]], MEASURE, mates)
    held.begin(0)
    told, again = feed(held, hello(), turn("bwd", "verify"), Ended(returncode=1))
    assert isinstance(told, Tell)
    assert told.text.endswith("tried once more, alone, after the others, and so is fwd_bwd, which does the same")
    assert again == StartWorker(case_ids=("fwd", "c", "bwd", "fwd_bwd"), solo=("bwd", "fwd_bwd"))
    recorded, again = feed(held, hello(), outcome("fwd"), outcome("c"), turn("bwd", "verify"), Ended(returncode=1))
    assert isinstance(recorded, RecordOutcome)
    assert (recorded.case_id, again) == ("bwd", StartWorker(case_ids=("fwd_bwd",), solo=("fwd_bwd",)))


def test_a_case_that_ends_the_worker_while_it_is_timed_has_no_mates() -> None:
    held = Supervision([["bwd", "fwd_bwd", "other"]], MEASURE, {"bwd": ["bwd", "fwd_bwd"]})
    held.begin(0)
    _, again = feed(held, hello(), turn("bwd", "measure"), Ended(returncode=1))
    assert again == StartWorker(case_ids=("fwd_bwd", "other", "bwd"), solo=("bwd",))


def test_several_that_do_the_same_are_told_in_the_plural() -> None:
    held = Supervision([["a", "b", "c", "d"]], MEASURE, {"a": ["a", "b", "c"]})
    held.begin(0)
    told, _ = feed(held, hello(), turn("a", "setup"), Ended(returncode=1))
    assert isinstance(told, Tell)
    assert told.text.endswith(", and so are b, c, which do the same")


def choosing(case_id: str, *alike: str) -> Said:
    return Said(event=Event(kind="phase", case_id=case_id, phase="choose", data={"alike": [case_id, *alike]}))


def test_a_package_that_ends_the_worker_costs_two_for_all_cases_that_need_it() -> None:
    held = machine(["a", "x"], ["b", "y"], ["c"])
    held.begin(0)
    told, again = feed(held, hello(), choosing("x"), nobody(), choosing("a", "b", "c"), Ended(returncode=-6))
    assert told == Tell(
        text="case a: the worker was ended by SIGABRT while importing and trying the packages of case a; it is tried "
        "once more with the 2 cases that need the same, after the others"
    )
    assert again == StartWorker(case_ids=("x", "y", "a", "b", "c"), solo=("a", "b", "c"))
    feed(held, hello(), choosing("x"), nobody(), outcome("x"), outcome("y"))
    *recorded, last = feed(held, choosing("a", "b", "c"), Ended(returncode=-6))
    assert [(one.case_id, one.status, one.reason_code) for one in records(recorded)] == [
        (name, Status.CRASHED, "signal") for name in "abc"
    ]
    assert {one.reason for one in records(recorded)} == {
        "the worker was ended by SIGABRT while importing and trying the packages of case a"
    }
    assert last == DONE


def test_a_package_that_all_cases_need_is_not_tried_twice() -> None:
    held = machine(["a", "b"], ["c"])
    held.begin(0)
    *recorded, last = feed(held, hello(), choosing("a", "b", "c"), Ended(returncode=7))
    assert [(one.case_id, one.reason_code) for one in records(recorded)] == [(name, "exit") for name in "abc"]
    assert last == DONE


def test_a_package_that_loads_the_second_time_costs_no_case() -> None:
    held = machine(["a", "x"])
    held.begin(0)
    feed(held, hello(), choosing("a"), Ended(returncode=-6))
    inputs = [choosing("x"), nobody(), outcome("x"), choosing("a"), nobody(), turn("a", "measure"), outcome("a"), bye()]
    assert feed(held, hello(), *inputs, Ended(returncode=0)) == [DONE]


def test_an_import_that_hangs_is_ended_at_the_limit_of_a_set_up() -> None:
    held = machine(["a", "b"])
    held.begin(0)
    feed(held, hello(), choosing("a", "b"))
    assert held.handle(Tick(), 100) == [
        Tell(text="importing and trying the packages of case a passed its limit of 100 s"),
        EndWorker(),
    ]
    *recorded, _ = held.handle(Ended(returncode=-15), 101)
    assert [(one.case_id, one.status, one.reason_code) for one in records(recorded)] == [
        (name, Status.TIMEOUT, "setup") for name in "ab"
    ]


def test_a_worker_that_dies_in_no_cases_turn_is_a_stray() -> None:
    held = machine(["a"], ["b"])
    held.begin(0)
    told, _ = feed(held, hello(), choosing("a"), nobody(), Ended(returncode=-9))
    assert told == Tell(text="the worker was ended by SIGKILL while between cases; starting a fresh worker")


def test_a_culprit_that_crashes_alone_is_recorded() -> None:
    held = machine(["a", "b"], ["c"])
    held.begin(0)
    feed(held, hello(), turn("b", "measure"), Ended(returncode=-11))
    words = "line\nillegal memory access"
    inputs = [hello(), outcome("a"), outcome("c"), turn("b", "measure"), Ended(returncode=-6, last_lines=words)]
    recorded, finish = feed(held, *inputs)
    assert finish == DONE
    assert recorded == RecordOutcome(
        case_id="b",
        status=Status.CRASHED,
        reason_code="signal",
        reason=f"the worker was ended by SIGABRT while in measure of case b; its last words: {words}",
    )


def test_a_case_without_neighbours_is_not_tried_twice() -> None:
    held = machine(["a"], ["b"])
    held.begin(0)
    recorded, again = feed(held, hello(), turn("a", "setup"), Ended(returncode=7, last_lines="boom"))
    assert (recorded.status, recorded.reason_code) == (Status.CRASHED, "exit")
    assert recorded.reason == "the worker ended with exit code 7 while in setup of case a; its last words: boom"
    assert again == StartWorker(case_ids=("b",))


def test_the_last_of_a_group_stands_alone() -> None:
    held = machine(["a", "b"])
    held.begin(0)
    recorded, finish = feed(held, hello(), outcome("a"), turn("b", "measure"), Ended(returncode=-9))
    assert recorded.case_id == "b"
    assert finish == DONE


@pytest.mark.parametrize(("phase", "limit"), [("setup", 100), ("verify", 100), ("measure", 10)])
def test_each_phase_has_its_limit(phase: str, limit: float) -> None:
    held = machine(["a"])
    held.begin(0)
    feed(held, hello(), turn("a", phase), now=1000)
    assert held.deadline == 1000 + limit
    assert held.handle(Tick(), 1000 + limit - 0.1) == []
    told, end = held.handle(Tick(), 1000 + limit)
    assert told == Tell(text=f"in {phase} of case a passed its limit of {limit} s")
    assert end == EndWorker()
    assert held.deadline is None
    recorded, finish = held.handle(Ended(returncode=-15), 1001 + limit)
    assert (recorded.status, recorded.reason_code) == (Status.TIMEOUT, phase)
    assert recorded.reason == f"in {phase} of case a passed its limit of {limit} s and was ended"
    assert finish == DONE


def test_a_round_restarts_the_limit() -> None:
    held = machine(["a"])
    held.begin(0)
    feed(held, hello(), turn("a", "measure"), now=0)
    held.handle(Said(event=Event(kind="round", case_id="a")), 9)
    assert held.deadline == 19


def test_a_worker_that_never_greets_is_ended_and_started_once_more() -> None:
    held = machine(["a"], ["b"])
    held.begin(0)
    assert EndWorker() in held.handle(Tick(), 100)
    _, again = held.handle(Ended(returncode=-15), 101)
    assert again == StartWorker(case_ids=("a", "b"))
    held.handle(Tick(), 201)
    *recorded, finish = held.handle(Ended(returncode=-15), 202)
    assert [(one.case_id, one.status, one.reason_code) for one in recorded] == [
        ("a", Status.TIMEOUT, "setup"),
        ("b", Status.TIMEOUT, "setup"),
    ]
    assert finish == DONE


def test_a_worker_that_dies_twice_before_it_greets_ends_the_job() -> None:
    held = machine(["a"], ["b"])
    held.begin(0)
    assert StartWorker(case_ids=("a", "b")) in held.handle(Ended(returncode=1, last_lines="no"), 0)
    *recorded, finish = held.handle(Ended(returncode=1, last_lines="no"), 0)
    assert {one.reason for one in recorded} == {
        "the worker ended with exit code 1 while starting up; its last words: no"
    }
    assert len(recorded) == 2
    assert finish == DONE


@pytest.mark.parametrize("code", [125, 126, 127, 255])
def test_a_worker_that_cannot_be_started_is_no_case_of_anybody(code: int) -> None:
    held = machine(["a"], ["b"])
    held.begin(0)
    words = "sh: 1: exec: apptainer: not found"
    assert StartWorker(case_ids=("a", "b")) in held.handle(Ended(returncode=code, last_lines=words), 0)
    assert held.handle(Ended(returncode=code, last_lines=words), 0) == [
        Finish(
            verdict=Verdict.MISSING,
            text=f"the worker could not be started: the worker ended with exit code {code} while starting up; its last "
            f"words: {words}",
        )
    ]


def test_a_command_that_ran_nowhere_is_told_in_the_words_of_what_should_have_started_it() -> None:
    held = machine(["a"])
    held.begin(0)
    end = Ended(returncode=1, last_lines="", not_started="srun: error: Invalid MPI type\nask for another")
    text = "the worker could not be started: srun: error: Invalid MPI type\nask for another"
    again = [Tell(text=f"{text}; starting a fresh worker"), StartWorker(case_ids=("a",))]
    assert held.handle(end, 0) == again
    assert held.handle(end, 0) == [Finish(verdict=Verdict.MISSING, text=text)]


@pytest.mark.parametrize("code", [-11, 139, 134, 1])
def test_a_crash_before_the_greeting_is_a_crash(code: int) -> None:
    held = machine(["a"])
    held.begin(0)
    held.handle(Ended(returncode=code), 0)
    recorded, finish = held.handle(Ended(returncode=code), 0)
    assert (recorded.status, finish) == (Status.CRASHED, DONE)


def test_a_worker_that_greeted_was_started_whatever_is_said_of_it() -> None:
    held = machine(["a"])
    held.begin(0)
    end = Ended(returncode=255, not_started="srun: error: Task launch failed")
    recorded, finish = feed(held, hello(), turn("a", "setup"), end)
    assert (recorded.status, finish) == (Status.CRASHED, DONE)


@pytest.mark.parametrize(("code", "verdict"), [(EXIT_MISSING, Verdict.MISSING), (EXIT_JOURNAL, Verdict.JOURNAL)])
def test_exit_codes_with_a_meaning_end_the_job_without_records(code: int, verdict: Verdict) -> None:
    held = machine(["a"])
    held.begin(0)
    words = "no module named torch"
    assert held.handle(Ended(returncode=code, last_lines=words), 0) == [Finish(verdict=verdict, text=words)]


def test_strays_between_cases_end_the_job_at_the_second() -> None:
    held = machine(["a"], ["b"])
    held.begin(0)
    assert StartWorker(case_ids=("a", "b")) in feed(held, hello(), Ended(returncode=-9))
    *recorded, finish = feed(held, hello(), Ended(returncode=-9))
    assert [one.case_id for one in recorded] == ["a", "b"]
    assert finish == DONE


def test_an_outcome_forgives_a_stray() -> None:
    held = machine(["a"], ["b"], ["c"])
    held.begin(0)
    for case_id in "abc":
        instructions = feed(held, hello(), Ended(returncode=-9))
        assert any(isinstance(one, StartWorker) for one in instructions)
        feed(held, hello(), outcome(case_id))
    assert held.handle(Ended(returncode=-9), 0) == [DONE]


def test_cases_that_a_worker_forgot_are_lost() -> None:
    held = machine(["a"], ["b"])
    held.begin(0)
    recorded, finish = feed(held, hello(), outcome("a"), bye(), Ended(returncode=0))
    assert (recorded.case_id, recorded.status, recorded.reason_code) == ("b", Status.CRASHED, "lost_worker")
    assert finish == DONE


def test_the_kernel_killing_for_memory_is_told_from_a_crash() -> None:
    held = machine(["a"])
    held.begin(0)
    recorded, _ = feed(held, hello(), turn("a", "setup"), Ended(returncode=-9, oom_killed=True))
    assert (recorded.status, recorded.reason_code) == (Status.OOM, "host_memory")


def test_the_result_key_that_a_worker_told_is_kept() -> None:
    held = machine(["a"])
    held.begin(0)
    said = Said(event=Event(kind="phase", case_id="a", phase="measure", data={"result_key": "k"}))
    recorded, _ = feed(held, hello(), said, Ended(returncode=-11))
    assert recorded.result_key == "k"


def test_an_interruption_ends_the_worker_and_the_second_kills_it() -> None:
    held = machine(["a"], ["b"])
    held.begin(0)
    assert feed(held, hello(), turn("a", "measure"), Interrupted()) == [EndWorker()]
    assert held.deadline is None
    assert held.handle(outcome("a"), 0) == []  # it came while the worker was ending
    assert held.handle(Interrupted(), 0) == [EndWorker(force=True)]
    assert held.handle(Ended(returncode=-15), 0) == [Finish(verdict=Verdict.INTERRUPTED)]


def test_an_outcome_that_comes_while_a_late_worker_ends_counts() -> None:
    held = machine(["a"], ["b"])
    held.begin(0)
    feed(held, hello(), turn("a", "measure"), now=0)
    held.handle(Tick(), 10)
    held.handle(outcome("a"), 10)
    instructions = held.handle(Ended(returncode=-15), 11)
    assert records(instructions) == []
    assert instructions[-1] == StartWorker(case_ids=("b",))


behaviours = st.sampled_from(["ok", "crash", "crash in company", "hang", "oom", "forget", "die before greeting"])


@settings(max_examples=200, deadline=None)
@given(groups=st.lists(st.lists(behaviours, min_size=1, max_size=3), max_size=4), start_ok=st.lists(st.booleans()))
def test_every_job_ends_with_one_outcome_per_case(groups: list[list[str]], start_ok: list[bool]) -> None:
    """Against a simulated worker with any mixture of faults."""
    named = [[f"{row}{column}:{what}" for column, what in enumerate(group)] for row, group in enumerate(groups)]
    ended: dict[str, list[str]] = {case_id: [] for group in named for case_id in group}
    held = Supervision(named, MEASURE)
    starts = iter(start_ok)
    num_starts = 0
    now = 0.0

    def act(instructions: list[Instruction]) -> StartWorker | None:
        start = None
        for one in instructions:
            if isinstance(one, RecordOutcome):
                assert one.reason_code in REASON_CODES[one.status]
                ended[one.case_id].append(one.status.value)
            elif isinstance(one, StartWorker):
                start = one
            elif isinstance(one, Finish):
                assert one == DONE
                return None
        return start

    start = act(held.begin(now))
    while start is not None:
        num_starts += 1
        start = act(_simulate(held, start, named, ended, next(starts, True)))
    assert all(len(outcomes) == 1 for outcomes in ended.values()), ended
    assert num_starts <= 2 * len(ended) + 2 * sum(not good for good in start_ok) + 2
    for case_id, (status,) in ended.items():
        if "crash" in case_id or "hang" in case_id:
            continue
        if all(start_ok) and not any("die" in one or "forget" in one for group in named for one in group):
            assert status in ("ok", "oom"), (case_id, ended)


def _simulate(
    held: Supervision, start: StartWorker, named: list[list[str]], ended: dict[str, list[str]], good: bool
) -> list[Instruction]:
    if not good:
        return held.handle(Ended(returncode=1), 0)
    held.handle(hello(), 0)
    together = [[one for one in group if one in start.case_ids and one not in start.solo] for group in named]
    for group in [*together, *([one] for one in start.solo)]:
        for case_id in group:
            held.handle(turn(case_id, "setup"), 0)
            held.handle(turn(case_id, "measure"), 0)
            what = case_id.split(":")[1]
            if what == "crash" or (what == "crash in company" and len(group) > 1):
                return held.handle(Ended(returncode=-11), 0)
            if what == "hang":
                assert EndWorker() in held.handle(Tick(), 1e9)
                return held.handle(Ended(returncode=-15), 0)
            if what != "forget":
                ended[case_id].append("oom" if what == "oom" else "ok")
                held.handle(outcome(case_id, ended[case_id][-1]), 0)
    held.handle(bye(), 0)
    return held.handle(Ended(returncode=0), 0)
