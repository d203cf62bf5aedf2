"""What provenance keeps of the workers' notes."""

from __future__ import annotations

import json

from attnspec.launch.provenance import facts_of_workers
from attnspec.record.entries import Note


def note(kind, data, *, attempt, writer="job-rank0"):
    return Note(kind=kind, created_ns=attempt, json=json.dumps(data), writer=writer, attempt=attempt)


def test_the_newest_facts_stand_and_what_adds_up_is_kept_of_every_attempt():
    notes = [
        note("environment", {"driver": "2"}, attempt=2),
        note("environment", {"driver": "1"}, attempt=1),
        note("spent", {"measure": 1.0}, attempt=1),
        note("spent", {"measure": 2.0}, attempt=2),
        note("message", {"text": "for people"}, attempt=2),
    ]
    assert facts_of_workers(notes) == {
        "environment": {"job-rank0": {"driver": "2"}},
        "spent": {"job-rank0-1": {"measure": 1.0}, "job-rank0-2": {"measure": 2.0}},
    }
