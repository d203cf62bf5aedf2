"""On several streams every strategy waits for what it needs, and memory is not used again too early."""

from __future__ import annotations

import dataclasses
import itertools
import re

import numpy as np
import pytest
import torch
from fakes.streams import Device
from strategy_runs import CPU, implementation, mask_slices, tensors_of

from attnspec import plugins
from attnspec.exchange import accumulate, gathering, head_exchange, lanes, ring, transport
from attnspec.exchange.groups import Ranks
from attnspec.exchange.guard import Guard
from attnspec.exchange.transport import SilentTransport
from attnspec.execute.prepared import kernel_params
from attnspec.execute.strategy import plan_strategy
from attnspec.shape import Shape
from attnspec.sharding.calls import call_over
from attnspec.sharding.gathering import Gathering
from attnspec.slices import clip
from attnspec.support import Problem

TOKENS = 16
MESHES = {
    "ulysses": ("ulysses", {}),
    "gathering": ("ring_allgather", {}),
    "ring": ("ring_p2p", {}),
    "ring of heads": ("usp", {"ulysses_degree": 2}),
    "double ring": ("loongtrain", {"ulysses_degree": 1, "window": 2}),
    "double ring of heads": ("loongtrain", {"ulysses_degree": 2, "window": 1}),
}
QUICK = [("ulysses", 2), ("gathering", 2), ("ring", 2), ("ring", 4), ("ring of heads", 4), ("double ring", 4)]
SLOW = [("ulysses", 4), ("gathering", 4), ("ring of heads", 2), ("double ring", 2), ("double ring of heads", 4)]
BOTH = ("fwd", "bwd")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Way:
    """How a strategy is run. heads: of queries and of keys; 24:12 are two stages on 2 ranks and three on 4."""

    batch: int = 1
    heads: tuple[int, int] = (16, 8)
    mask: str = "full"
    dtype: str = "float32"
    overlaps: tuple[str, ...] = BOTH
    silent: bool = False


THREE_STAGES = Way(heads=(12, 6), batch=2, silent=True)
"""On 2 ranks; 4 do not divide it."""
WAYS = [
    Way(),
    Way(overlaps=()),
    Way(overlaps=("fwd",), dtype="bfloat16"),
    Way(overlaps=("bwd",), mask="causal", batch=2),
    Way(heads=(8, 1), mask="causal", batch=2),
    Way(heads=(24, 12), batch=2),
    Way(heads=(24, 12), batch=2, silent=True),
]


def run(device, strategy, params, way):
    """Forwards, steps and backwards whose results are dropped while the next are enqueued, and the results of one."""
    rank, size = device.transport.rank, device.transport.size
    network = SilentTransport(rank, size) if way.silent else device.transport
    slices, docs = mask_slices(way.mask, [TOKENS]), np.array([TOKENS])
    num_heads_q, num_heads_kv = way.heads
    shape = Shape(batch=way.batch, num_heads_q=num_heads_q, num_heads_kv=num_heads_kv, head_dim=4, dtype=way.dtype)
    problem = Problem(shape=shape, slices=slices, needs_backward=True, device=CPU)
    asked = implementation(strategy, "sdpa", params)
    plan = plan_strategy(asked, problem, docs, Ranks(rank, size, network))
    kernel, chosen = plugins.load("kernels", "sdpa"), kernel_params(asked)

    def bind(shape, slices):
        part = dataclasses.replace(problem, shape=shape, slices=slices)
        made = kernel.bind(kernel.lower(part, chosen, "torch"), part, chosen, "torch", CPU)
        made.overlaps = frozenset(way.overlaps)
        return made

    bound = plugins.load("strategies", strategy).bind(plan, bind, network, CPU, needs_backward=True)
    tensors = tensors_of(shape, slices, plan.q_tokens(rank), plan.k_tokens(rank))
    inputs = bound.load(tensors.q_BTND, tensors.k_BSGD, tensors.v_BSGD)
    dout = bound.load_dout(tensors.dout_BTND)
    guard = Guard()

    def forwards():
        return device.returned("the forward", bound.forward_with(inputs, guard))

    def backwards(forward):
        return device.returned("the backward", bound.backward_with(inputs, forward, dout, guard))

    with device.running():
        forwards()
        backwards(forwards())
        forward = forwards()
        backwards(forward)
        bound.canonical_grads(backwards(forward))
        bound.canonical_out(forward)
        del forward
        forwards()
    guard.finish()


@pytest.mark.parametrize(("mesh", "size"), [*QUICK, *(pytest.param(*one, marks=pytest.mark.slow) for one in SLOW)])
def test_nothing_is_used_too_early(mesh, size):
    for way in WAYS:
        with pytest.MonkeyPatch.context() as patch:
            device = Device(patch, size - 1, size)
            run(device, *MESHES[mesh], way)
            assert not device.faults, (way, *device.faults)
            assert way != Way() or device.side.now > 0


def forgotten(*_):
    """What is not done."""


FORGET = {
    "the first wait": lambda patch, device: patch.setattr(device.side, "wait_stream", forgotten),
    "join": lambda patch, device: patch.setattr(lanes.Lanes, "join", forgotten),
    "in turn": lambda patch, device: patch.setattr(lanes.Lanes, "in_turn", lanes.Lanes.on),
    "messages": lambda patch, device: patch.setattr(transport._Works, "wait", forgotten),
    "use in head_exchange": lambda patch, device: patch.setattr(head_exchange, "use", forgotten),
    "use in ring": lambda patch, device: patch.setattr(ring, "use", forgotten),
    "use in transport": lambda patch, device: patch.setattr(transport, "use", forgotten),
}


@pytest.mark.parametrize(
    ("what", "mesh", "size", "way", "fault"),
    [
        ("the first wait", "ulysses", 2, Way(), r"flash.* on side reads .*\(head_exchange.* early for main"),
        ("the first wait", "gathering", 2, Way(), r"flash.* on side reads .*\(gathering.* early for main"),
        ("join", "ulysses", 2, Way(), r"\(head_exchange.* on main reads .*flash.* early for side"),
        ("join", "gathering", 2, Way(), r"\(gathering.* on main gets .*\(gathering.* use on side"),
        ("join", "ring", 2, Way(), r"\(mailbox.* on main gets .*flash.* use on side"),
        ("join", "gathering", 2, Way(), r"^the forward returns too early for side"),
        ("messages", "ulysses", 2, Way(), r"^the backward returns too early for HEADS"),
        ("in turn", "ring", 2, Way(), r"\(merging.* on side writes .*flash.* early for main"),
        ("messages", "ulysses", 2, Way(overlaps=()), r"flash.* on main reads .*\(head_exchange.* early for HEADS"),
        ("messages", "ring", 2, Way(overlaps=()), r"flash.* on main reads .*\(mailbox.* early for INNER"),
        ("use in head_exchange", "ulysses", 2, THREE_STAGES, r" on main gets .*\(head_exchange.* use on side"),
        ("use in ring", "ring", 4, Way(silent=True), r" on main gets .*\(mailbox.* use on side"),
        ("use in transport", "double ring", 4, Way(), r" on main gets .*\(mailbox.* use on INNER"),
    ],
)
def test_what_is_forgotten_is_found(monkeypatch, what, mesh, size, way, fault):
    device = Device(monkeypatch, size - 1, size)
    FORGET[what](monkeypatch, device)
    run(device, *MESHES[mesh], way)
    assert any(re.search(fault, one) for one in device.faults), list(device.faults)


def four_calls(plan, rank):
    """As `Gathering.calls`, over quarters of the rows: more calls than a plan makes, so each lane has two."""
    (task,), bounds = plan.tasks(rank), np.linspace(0, plan.queries.num_slots, 5, dtype=int).tolist()
    clipped = (clip(task.slices, start, end, 0, plan.slices.seqlen_k) for start, end in itertools.pairwise(bounds))
    return tuple(call_over(one) for one in clipped)


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize(
    ("size", "way"), [(2, Way()), (2, Way(mask="causal", overlaps=("bwd",))), (4, Way(dtype="bfloat16"))]
)
def test_gradients_of_one_call_are_kept_from_the_next_on_its_lane(monkeypatch, size, way, kept):
    device = Device(monkeypatch, size - 1, size)
    monkeypatch.setattr(Gathering, "calls", four_calls)
    if not kept:
        monkeypatch.setattr(gathering, "use", forgotten)
    run(device, *MESHES["gathering"], way)
    assert bool(device.faults) is not kept, list(device.faults)
    assert all(re.search(r" on side gets memory of .*, still in use on main", one) for one in device.faults)


@pytest.mark.parametrize("kept", [True, False])
def test_an_output_that_the_other_lane_widens_is_kept(monkeypatch, kept):
    device = Device(monkeypatch, 0, 1)
    if not kept:
        monkeypatch.setattr(accumulate, "use", forgotten)
    q_BTND, rows = torch.zeros(1, 4, 2, 8, dtype=torch.bfloat16), slice(0, 4)
    outputs = accumulate.Outputs(q_BTND, many=True)
    with device.running(), lanes.Lanes(q_BTND, overlapped=True) as both:
        for step in range(2):
            with both.in_turn(step):
                outputs.add(q_BTND.clone(), torch.zeros(1, 4, 2), rows, whole=True)
        with both.on(2):  # a step later that does not wait, as its turn to be added has not come
            torch.empty_like(q_BTND)
    assert bool(device.faults) is not kept, list(device.faults)
