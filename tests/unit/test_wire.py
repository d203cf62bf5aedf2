"""Host and worker understand each other, or say clearly that they do not."""

from __future__ import annotations

import json

import pytest

from attnspec.errors import WireError
from attnspec.shape import Shape
from attnspec.wire import CaseRequest, Event, Implementation, JobRequest, Measure, WorkloadRequest, dumps, loads

REQUEST = JobRequest(
    job_id="job",
    attempt=2,
    run_dir="runs/a b'ü",
    device="cpu",
    world_size=1,
    env={"NCCL_DEBUG": "INFO"},
    measure=Measure(min_iters=5),
    workloads=(
        WorkloadRequest(
            workload_id="w",
            level="kernel",
            mask="slices",
            mask_params={"slices": [[0, 4, 0, 4, "full"]]},
            seqlen_q=4,
            seqlen_k=4,
            shape=Shape(batch=1, num_heads_q=2, num_heads_kv=1, head_dim=8, dtype="float32"),
            seed=0,
            packs="artifacts/packs-x.arrow",
            slices="artifacts/slices-x.arrow",
            cases=(
                CaseRequest(case_id="c", implementation=Implementation(kernel="sdpa", backend="math"), pass_="fwd"),
            ),
        ),
    ),
    done=("r1",),
    rounds_done={"r2": {"0": 3}},
    image_id="sha256:1",
)


def test_a_request_survives_the_wire():
    assert loads(JobRequest, dumps(REQUEST)) == REQUEST


def test_an_event_survives_the_wire_and_is_one_line():
    event = Event(kind="message", text="two\nlines", data={"x": [1, None]})
    assert "\n" not in dumps(event)
    assert loads(Event, dumps(event)) == event


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda held: held.update(wire_version=99), "wire version 99, this worker speaks 1: update the older side"),
        (lambda held: held.update(extra=1), "unknown field 'extra': host and worker differ in version"),
        (lambda held: held.pop("device"), "JobRequest: .*device"),
        (lambda held: held.update(device="tpu"), r"JobRequest.device: got 'tpu', allowed \('cpu', 'cuda'\)"),
        (lambda held: held.update(attempt="2"), "JobRequest.attempt: expected int, got '2'"),
        (lambda held: held.update(attempt=True), "JobRequest.attempt: expected int, got True"),
        (
            lambda held: held["workloads"][0]["shape"].update(head_dim=None),
            r"workloads\[0\].shape.head_dim: expected int",
        ),
        (lambda held: held.update(workloads={}), r"JobRequest.workloads: expected a list"),
    ],
)
def test_damage_is_named(change, message):
    held = json.loads(dumps(REQUEST))
    change(held)
    with pytest.raises(WireError, match=message):
        loads(JobRequest, json.dumps(held))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"x"', b"\xff"])
def test_what_is_no_request_is_refused(text):
    with pytest.raises(WireError):
        loads(JobRequest, text)
