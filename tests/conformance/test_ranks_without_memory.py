"""One rank has no memory for a tensor, whichever it is: all ranks end alike, in time, and go on together."""

from __future__ import annotations

import itertools
from contextlib import contextmanager

import pytest
import torch
from ranks import RankPool
from strategy_runs import implementation, mask_slices, prepared_strategy
from test_strategies import meshes, shape_of

from attnspec.exchange.bound import BoundStrategy
from attnspec.execute import joint
from attnspec.execute.joint import Agreement, JointFailure

DOCS = [9, 16, 30, 3]
LIMIT_S = 60
QUICK = ("contiguous", "to", "copy_")
SLOW = ("new_empty", "new_full", "index_select", "sum", "repeat_interleave", "masked_fill")
FUNCTIONS = ("torch.stack", "torch.zeros_like", "torch.index_select")
WORDS = "no memory here"


@pytest.mark.parametrize(
    ("size", "operation"),
    [
        *((2, operation) for operation in QUICK),
        *(pytest.param(2, operation, marks=pytest.mark.slow) for operation in (*SLOW, *FUNCTIONS)),
        *(pytest.param(4, operation, marks=pytest.mark.slow) for operation in (*QUICK, *SLOW, *FUNCTIONS, "torch.cat")),
    ],
)
def test_a_rank_without_memory_for_a_tensor_ends_all(pools, size, operation):
    """Those of the all-to-all are among them, with heads that ranks share, and within a batch of 2 on arrival."""
    pool, slices, found = pools(size), mask_slices("varlen_causal", DOCS), 0
    for name, params in meshes(size):
        if size == 2 and name in ("usp", "loongtrain"):
            continue  # over two ranks the objects of ring_p2p, or of ulysses
        for heads in ((8, 4), (8, 1)) if name == "ulysses" else ((8, 4),):
            shape = shape_of("bfloat16", *heads, batch=2)
            case = implementation(name, strategy_params=params), shape, slices, DOCS
            pool.start(run_out_of_memory, operation, case)
            first, *others = pool.results(timeout_s=LIMIT_S)
            assert all(other == first for other in others), (name, params, first, others)
            kind, ends = first
            assert kind == "returned", ends
            assert set(ends) <= {f"rank 1: {WORDS}"}, (name, params, ends)
            found += len(ends)
    assert found


def run_out_of_memory(ranks, operation, case):
    """What this rank ended with as the first, second, ... operation of rank 1 failed, up to the last."""
    prepared, _ = prepared_strategy(ranks, *case)
    agreement, ends = Agreement(ranks, str), []
    for number in itertools.count():
        with failing(operation, {number} if ranks.rank == 1 else set()):
            try:
                agreement.together(everything, prepared)
            except JointFailure as error:
                ends.append(str(error))
            else:
                break
    return ends


def everything(prepared):
    """As verification and timing call a strategy."""
    bound = prepared.bound
    forward = bound.forward(prepared.inputs)
    bound.canonical_out(forward)
    bound.backward(prepared.inputs, forward, prepared.dout)


@contextmanager
def failing(operation, numbers):
    """The operations of those numbers find no memory, counted inside a strategy's own calls."""
    counted, inside = itertools.count(), []
    owner, name = (torch, operation[6:]) if operation.startswith("torch.") else (torch.Tensor, operation)
    right = getattr(owner, name)

    def operate(*args, **kwargs):
        if inside and next(counted) in numbers:
            raise torch.OutOfMemoryError(WORDS)
        return right(*args, **kwargs)

    def within(method):
        def call(*args, **kwargs):
            inside.append(True)
            try:
                return method(*args, **kwargs)
            finally:
                inside.pop()

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, operate)
        for method in ("forward_with", "backward_with", "canonical_out"):
            patch.setattr(BoundStrategy, method, within(getattr(BoundStrategy, method)))
        yield


@pytest.mark.parametrize("strategy", ["hybrid_dcp", "ring_allgather"])
def test_ranks_that_all_have_none_for_messages_end_alike(pools, strategy):
    pool = pools(2)
    case = implementation(strategy), shape_of("bfloat16", batch=2), mask_slices("varlen_causal", DOCS), DOCS
    found = pool.run(run_without_room, [0, 1], case)
    assert found[0] == found[1] == [f"rank 0: {WORDS}", "nothing"]


def test_a_rank_that_alone_has_none_for_messages_ends_its_process():
    case = implementation("ring_p2p"), shape_of("bfloat16", batch=2), mask_slices("varlen_causal", DOCS), DOCS
    with RankPool(2) as pool:
        pool.start(run_without_room, [1], case)
        first, second = pool.results(timeout_s=LIMIT_S)
    assert second == ("died", 1)
    assert first[0] in ("died", "raised")  # what it waits for is gone


def run_without_room(ranks, without, case):
    """What this rank ended with, there being no memory for messages at first, then enough."""
    prepared, _ = prepared_strategy(ranks, *case)
    agreement, ends = Agreement(ranks, str), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joint, "MEET_S", 1.0)
        for numbers in (range(1000), ()):
            with failing("new_empty", numbers if ranks.rank in without else ()):
                try:
                    agreement.together(everything, prepared)
                except JointFailure as error:
                    ends.append(str(error))
                else:
                    ends.append("nothing")
    return ends
