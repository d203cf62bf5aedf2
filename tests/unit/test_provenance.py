"""What provenance keeps of the workers' notes."""

from __future__ import annotations

import json

import pytest

from attnspec.launch.measured_code import measured_code, measured_versions
from attnspec.launch.provenance import facts_of_workers
from attnspec.launch.recorded import workers_drift
from attnspec.record.entries import Note, Outcome, Sample
from attnspec.record.journal import Journal
from attnspec.record.schema import to_table
from attnspec.report.environment import variables


def note(kind, data, *, attempt, writer="job-rank0"):
    return Note(kind=kind, created_ns=attempt, json=json.dumps(data), writer=writer, attempt=attempt)


def taken(*samples):
    """One sample of each (attempt, case_id, result_key)."""
    place = {"pack": 0, "round": 0, "iteration": 0, "rank": 0, "elapsed_ns": 1, "started_ns": 1}
    rows = [Sample(**place, attempt=attempt, case_id=case, result_key=key) for attempt, case, key in samples]
    return to_table(Sample, rows)


def ended(attempt, case, key, status="ok"):
    return Outcome(case_id=case, result_key=key, status=status, attempt=attempt, ended_ns=attempt)


def test_the_newest_facts_stand_and_what_adds_up_is_kept_of_every_attempt():
    notes = [
        note("environment", {"driver": "2"}, attempt=2),
        note("environment", {"driver": "1"}, attempt=1),
        note("spent", {"measure": 1.0}, attempt=1),
        note("spent", {"measure": 2.0}, attempt=2),
        note("message", {"text": "for people"}, attempt=2),
    ]
    assert facts_of_workers(Journal(notes=tuple(notes))) == {
        "environment": {"job-rank0": {"driver": "2"}},
        "spent": {"job-rank0-1": {"measure": 1.0}, "job-rank0-2": {"measure": 2.0}},
    }


def test_the_code_of_every_attempt_that_took_samples_is_kept():
    notes = tuple(
        note("environment", {"attnspec": "0.1", "code_sha256": code, "driver": "1"}, attempt=number)
        for number, code in ((1, "a"), (2, "b"), (3, "c"))
    )
    kept = facts_of_workers(Journal(notes=notes, timings=taken((1, "a", "k"), (1, "b", "k"), (2, "c", "k"))))
    assert kept["environment"]["job-rank0"]["code_sha256"] == "c"  # the newest, which found all measured
    assert {name: one["code_sha256"] for name, one in kept["code"].items()} == {"job-rank0-1": "a", "job-rank0-2": "b"}
    assert measured_code({"code_sha256": "c", "git_commit": "3", "workers": kept}) == {"a": None, "b": None}


def under(outcomes, timings):
    """What provenance keeps of an attempt with NCCL_ALGO=Tree and a second one without."""
    seen = {1: {"NCCL_ALGO": "Tree"}, 2: {}}
    facts = {"driver": "1", "device": "d", "versions": {}, "env": {}}
    notes = [note("environment", {**facts, "variables": one}, attempt=number) for number, one in seen.items()]
    return {"workers": facts_of_workers(Journal(notes=tuple(notes), outcomes=outcomes, timings=timings))}


def test_the_variables_of_every_attempt_whose_samples_stand_are_kept():
    mixed = under((ended(1, "a", "tree"), ended(2, "b", "none")), taken((1, "a", "tree"), (2, "b", "none")))
    assert variables(mixed) == ["NCCL_ALGO=Tree or unset"]
    first = under((ended(1, "a", "tree"),), taken((1, "a", "tree")))
    assert variables(first) == ["NCCL_ALGO=Tree"]  # the second attempt found all measured
    anew = (ended(1, "a", "tree"), ended(2, "a", "none"))
    again = under(anew, taken((1, "a", "tree"), (2, "a", "none")))
    assert variables(again) == []  # all was measured again without
    assert workers_drift(first, mixed) == ["variable NCCL_ALGO: Tree -> Tree, none"]
    failed = under((ended(1, "a", "tree", "error"), ended(2, "b", "none")), taken((1, "a", "tree"), (2, "b", "none")))
    assert variables(failed) == []


LAST = {"code_sha256": "b", "git_commit": "2", "attnspec": "0.2"}
TWO = {"environment": {"x": {"code_sha256": "a", "attnspec": "0.1"}, "y": {"code_sha256": "b", "attnspec": "0.2"}}}


@pytest.mark.parametrize(
    ("held", "code"),
    [
        ({}, {}),
        ({"git_commit": "2"}, {}),
        (LAST, {"b": "2"}),
        ({**LAST, "git_commit": None}, {"b": None}),
        ({**LAST, "runs": [{"command": []}], "workers": TWO}, {"a": None, "b": None}),
        ({**LAST, "runs": [{"code_sha256": "a", "git_commit": "1"}, LAST]}, {"a": "1", "b": "2"}),
        ({**LAST, "runs": [{"code_sha256": "a", "git_commit": "1"}], "workers": TWO}, {"a": "1", "b": None}),
        ({**LAST, "runs": [{"code_sha256": "b", "git_commit": None}]}, {"b": "2"}),
        ({**LAST, "runs": [None, {"code_sha256": ["a"]}], "workers": {"code": 3, "environment": {"x": 1}}}, {"b": "2"}),
    ],
)
def test_states_of_the_code_and_their_commits(held, code):
    assert measured_code(held) == code


def test_versions_are_those_of_the_workers():
    assert measured_versions({**LAST, "workers": TWO}) == ["0.1", "0.2"]
    assert measured_versions(LAST) == ["0.2"]
    assert measured_versions({}) == []
