"""The two streams of a ring's forward, with streams that only write down what they are told."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from attnspec.exchange import lanes as module
from attnspec.exchange.lanes import Lanes, use


class Stream:
    def __init__(self, name, log):
        self.name, self.log = name, log

    def wait_stream(self, other):
        self.log.append(f"{self.name} waits for {other.name}")

    def record_event(self):
        made = f"event {len(self.log)} of {self.name}"
        self.log.append(made)
        return SimpleNamespace(wait=lambda: self.log.append(f"{self.cuda.now.name} waits for {made}"), made=made)


@pytest.fixture
def cuda(monkeypatch):
    log = []
    main, side = Stream("main", log), Stream("side", log)
    made = SimpleNamespace(now=main, log=log, current_stream=lambda device=None: made.now)
    main.cuda = side.cuda = made

    @contextmanager
    def stream(chosen):
        before, made.now = made.now, chosen
        yield
        made.now = before

    made.stream = stream
    monkeypatch.setattr(module, "torch", SimpleNamespace(cuda=made))
    monkeypatch.setattr(module, "_side_stream", lambda device: side)
    return made


def tensor(log=None):
    return SimpleNamespace(is_cuda=True, device="cuda:0", record_stream=lambda one: log.append(f"used on {one.name}"))


def test_steps_alternate_and_what_is_in_turn_waits_for_what_was_before(cuda):
    with Lanes(tensor(), overlapped=True) as lanes:
        for step in range(3):
            with lanes.on(step):
                cuda.log.append(f"compute {step} on {cuda.now.name}")
            if step:
                with lanes.in_turn(step - 1):
                    cuda.log.append(f"merge {step - 1} on {cuda.now.name}")
    assert cuda.now.name == "main"
    assert cuda.log == [
        "side waits for main",
        *("compute 0 on main", "compute 1 on side"),
        *("merge 0 on main", "event 4 of main"),
        "compute 2 on main",
        *("side waits for event 4 of main", "merge 1 on side", "event 8 of side"),
        "main waits for side",
    ]


def test_without_overlap_nothing_is_enqueued(cuda):
    with Lanes(tensor(), overlapped=False) as lanes, lanes.on(1), lanes.in_turn(1):
        assert cuda.now.name == "main"
    assert cuda.log == []


def test_memory_is_kept_for_the_lane_that_uses_it(cuda):
    with Lanes(tensor(), overlapped=True) as lanes, lanes.on(1):
        use(tensor(cuda.log))
    assert cuda.log[1:] == ["used on side", "main waits for side"]
