"""A ring's steps on two streams give bit for bit what they give on one, whatever the allocator does meanwhile."""

import dataclasses

import numpy as np
import pytest
import torch

from attnspec import plugins
from attnspec.exchange.guard import Guard
from attnspec.exchange.transport import SilentTransport
from attnspec.shape import Shape
from attnspec.slices import AttnSlices
from attnspec.support import Device, Problem

# Libraries and compilers warn of their own affairs, which the suite would turn into failures.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]
RANKS, ROWS = 8, 512
SHAPE = Shape(batch=1, num_heads_q=8, num_heads_kv=8, head_dim=128, dtype="bfloat16")


class Arriving:
    """A batch under way on the stream that it was posted on."""

    def __init__(self):
        self._arrived = torch.cuda.current_stream().record_event() if torch.cuda.is_available() else None

    def wait(self):
        if self._arrived is not None:
            self._arrived.wait()


class Recorded(SilentTransport):
    """The first rank of a ring: what others would send comes from memory, one message after another."""

    def __init__(self, messages):
        super().__init__(0, RANKS)
        self._messages, self._next = messages, 0

    def post(self, channel, sends, receives):
        for parcel in receives:
            message = self._messages[self._next % len(self._messages)]
            parcel.tensor.copy_(message.view(-1)[: parcel.tensor.numel()].view_as(parcel.tensor))
            self._next += 1
        return Arriving()


def forward(kernel, provider, device, messages):
    """(out, lse) of the first rank of a ring over one document, as ring_p2p makes them."""
    seqlen = RANKS * ROWS
    slices = AttnSlices.from_rows([(0, seqlen, 0, seqlen, 1)], seqlen_q=seqlen, seqlen_k=seqlen)
    strategy, module = plugins.load("strategies", "ring_p2p"), plugins.load("kernels", kernel)
    params = plugins.make_params(module, {})
    problem = Problem(shape=SHAPE, slices=slices, needs_backward=True, device=device)

    def bind(shape, part):
        asked = dataclasses.replace(problem, shape=shape, slices=part)
        return module.bind(module.lower(asked, params, provider), asked, params, provider, device)

    plan = strategy.shard(strategy.Params(), slices, np.array([seqlen]), SHAPE, RANKS)
    bound = strategy.bind(plan, bind, Recorded(messages), device, needs_backward=True)
    own = messages[0].view(3, 1, ROWS, SHAPE.num_heads_q, SHAPE.head_dim)
    guard = Guard()
    made = bound.forward_with(bound.load(*own), guard)
    assert guard.error is None
    return bound.canonical_out(made)


def messages_on(device):
    generator = torch.Generator(device).manual_seed(0)
    size = (RANKS, 3 * ROWS * SHAPE.num_heads_q * SHAPE.head_dim)
    return torch.randn(size, generator=generator, device=device).bfloat16()


def on_lanes(monkeypatch, number):
    monkeypatch.setattr("attnspec.exchange.ring.overlap", lambda kernels, pass_: number == 2)


def test_two_streams_give_what_one_gives(monkeypatch):
    major, minor = torch.cuda.get_device_capability()
    device = Device(type="cuda", capability=(major, minor), model=torch.cuda.get_device_name())
    messages = messages_on("cuda")
    on_lanes(monkeypatch, 1)
    wanted = [one.clone() for one in forward("fa2", "torch", device, messages)]
    assert all(bool(one.isfinite().all()) for one in wanted)
    on_lanes(monkeypatch, 2)
    for _ in range(30):
        got = forward("fa2", "torch", device, messages)
        assert all(torch.equal(one, other) for one, other in zip(got, wanted, strict=True))
