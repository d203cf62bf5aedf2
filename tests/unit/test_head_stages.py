"""In which order stages of heads are sent, computed and sent back."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from attnspec.exchange.alone import Alone, AloneForward
from attnspec.exchange.guard import Guard
from attnspec.exchange.head_exchange import HeadExchange
from attnspec.exchange.head_ring import HeadStages
from attnspec.shape import Shape
from attnspec.sharding.heads import split_heads
from tests.mask_examples import example

SHAPE = Shape(batch=1, num_heads_q=8, num_heads_kv=4, head_dim=4, dtype="float32")
TOKENS = 3


class Log:
    """A transport of rank 0 of 2 whose peer holds the same as it does, and a kernel that gives its queries."""

    def __init__(self):
        self.lines = []

    def post(self, channel, sends, receives):
        number = sum(line.startswith("post") for line in self.lines)
        self.lines.append(f"post {number}")
        for sent, received in zip(sends, receives, strict=True):
            received.tensor.copy_(sent.tensor)
        return SimpleNamespace(wait=lambda: self.lines.append(f"wait {number}"))


class Kernel(Alone):
    def __init__(self, log):
        super().__init__(SimpleNamespace())
        self.log = log

    def forward(self, q_BTND, kv, transport, guard):
        self.log.lines.append("compute")
        return AloneForward(out_BTND=q_BTND.clone(), inputs=None, forward=None)

    def backward(self, q_BTND, kv, forward, dout_BTND, transport, guard):
        self.log.lines.append("compute")
        return dout_BTND.clone(), kv[0].clone(), kv[1].clone()


def stages():
    log, split = Log(), split_heads(SHAPE, 2, example("full", [2 * TOKENS]))
    assert split.stages == 2
    return log, HeadStages(Kernel(log), HeadExchange(split, [0, 1], 0))


def tensors():
    generator = torch.Generator().manual_seed(0)
    q_BTND = torch.randn(1, TOKENS, 8, 4, generator=generator)
    return q_BTND, torch.randn(2, 1, TOKENS, 4, 4, generator=generator)


ORDER = "post 0, post 1, wait 0, compute, post 2, wait 1, compute, post 3, wait 2, wait 3"


def test_a_stage_is_computed_while_the_next_comes_and_the_one_before_goes_back():
    log, work = stages()
    q_BTND, kv = tensors()
    guard = Guard()
    out_BTND, saved = work.forward(q_BTND, kv, log, guard)
    guard.finish()
    assert ", ".join(log.lines) == ORDER
    assert len(saved) == 2
    # The peer sends what this rank sends to it: the heads of rank 1.
    assert torch.equal(out_BTND[:, :, :4], q_BTND[:, :, :4])
    assert torch.equal(saved[1].q_BTHD[:, TOKENS:], q_BTND[:, :, 6:8])


def test_a_backward_overlaps_as_well():
    log, work = stages()
    q_BTND, kv = tensors()
    guard = Guard()
    out_BTND, saved = work.forward(q_BTND, kv, log, guard)
    log.lines.clear()
    work.backward(q_BTND, kv, SimpleNamespace(saved=saved), out_BTND, log, guard)
    guard.finish()
    assert ", ".join(log.lines) == ORDER
