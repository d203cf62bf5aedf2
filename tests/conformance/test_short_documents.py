"""Documents of few tokens: where one key takes nearly all of a row, roundings show that long rows hide."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from planted_kernels import right_kernel, slices_of
from ranks import RankPool
from strategy_runs import implementation, mask_slices, prepared_strategy, verify_strategies
from test_verify_kernels import verified

from attnspec.execute.identities import Identities
from attnspec.execute.tensors import make_tensors
from attnspec.record.status import Status
from attnspec.shape import Shape

CPU = torch.device("cpu")


def lengths(seed, longest=3, num_docs=40):
    return np.random.default_rng(seed).integers(1, longest + 1, num_docs).tolist()


def shape_of(head_dim):
    return Shape(batch=1, num_heads_q=4, num_heads_kv=2, head_dim=head_dim, dtype="bfloat16")


@pytest.mark.parametrize("head_dim", [8, 64])
@pytest.mark.parametrize(
    ("kernel", "backend", "dtype"), [("reference", None, "bfloat16"), ("sdpa", "flash", "bfloat16")]
)
def test_right_kernels_verify(kernel, backend, dtype, head_dim):
    for seed in range(4):
        for mask in ("varlen_full", "varlen_causal"):
            slices = mask_slices(mask, lengths(seed))
            found = verified(kernel, backend, dtype, slices, seed, head_dim=head_dim)
            assert found.status is Status.OK, found.reason


@pytest.mark.parametrize("heads", [(1, 1), (2, 1), (4, 2)])
@pytest.mark.parametrize("length", [2, 3])
def test_few_heads_do_not_average_what_rounding_does_to_delta(length, heads):
    """One number per row and head: of hundreds of rows of one head some stray far."""
    for seed in range(2):
        for head_dim in (8, 64):
            slices = mask_slices("varlen_causal", [length] * 300)
            found = verified("reference", None, "bfloat16", slices, seed, heads, head_dim)
            assert found.status is Status.OK, found.reason


@pytest.mark.parametrize("size", [2, pytest.param(5, marks=pytest.mark.slow)])
def test_right_strategies_verify(size):
    held = [
        (implementation(name, kernel), shape_of(head_dim), mask_slices(mask, docs), docs)
        for seed in range(2)
        for longest in ((3, 40) if size == 5 else (3,))
        for docs in [lengths(seed, longest)]
        for mask in ("varlen_full", "varlen_causal")
        for head_dim in ((8, 64) if size == 5 else (64,))
        for name in ("ring_p2p", "ring_allgather")
        for kernel in ("reference", "sdpa")
    ]
    with RankPool(size) as pool:
        for one, *found in zip(held, *pool.run(verify_strategies, held), strict=True):
            assert {tuple(result) for _, *result in found} == {("ok", None)}, one


def test_rows_are_bounded_by_the_kernels_that_computed_them():
    """Ranks 2 and 3 compute nothing; the log-sum-exps of their rows come from others, with these kernels' error."""
    shape, docs = Shape(batch=1, num_heads_q=8, num_heads_kv=4, head_dim=16, dtype="bfloat16"), [1] * 12
    case = implementation("hybrid_dcp", "sdpa"), shape, mask_slices("share_question", docs), docs
    with RankPool(4) as pool:
        assert pool.run(verify_strategies, [case]) == [[(3, "ok", None)]] * 4
        (of_all,) = set(pool.run(bounds_of, case))
    assert of_all[0] > 0


def bounds_of(ranks, case):
    prepared, _ = prepared_strategy(ranks, *case)
    return prepared.lse_tolerance, prepared.kernel_partials


def of_short_documents(mask, head_dim, seed, *, out_by=1.0, lse_by=0.0, key_by=1.0):
    """A kernel that takes rounded outputs; its backward may get wrong ones, or give one key's gradient wrong."""
    docs, shape = lengths(seed), shape_of(head_dim)
    slices = slices_of(mask, sum(docs), docs)
    sizes = {"seqlen_q": sum(docs), "seqlen_k": sum(docs), "needs_backward": True, "device": CPU}
    tensors, kernel = make_tensors(f"w{seed}", shape, **sizes), right_kernel(slices, head_dim)
    inputs = kernel.load(tensors.q_BTND, tensors.k_BSGD, tensors.v_BSGD)
    forward = kernel.forward(inputs)
    out = forward.out
    given = kernel.load_forward((out * out_by).to(out.dtype), forward.lse + lse_by)
    _, dk, dv = kernel.backward(inputs, given, tensors.dout_BTND)
    dk[:, dk.square().sum(dim=(0, 2, 3)).argmax()] *= key_by
    return Identities(shape, slices, CPU).check(tensors, out, dk, dv)


@pytest.mark.parametrize("head_dim", [8, 64])
@pytest.mark.parametrize("mask", ["varlen_full", "varlen_causal"])
@pytest.mark.parametrize("seed", range(4))
def test_what_rounding_does_to_short_documents_is_not_accused(mask, head_dim, seed):
    assert of_short_documents(mask, head_dim, seed).error < 4


@pytest.mark.parametrize("head_dim", [8, 64])
@pytest.mark.parametrize("mask", ["varlen_full", "varlen_causal"])
@pytest.mark.parametrize("wrong", [{"out_by": 1.05}, {"lse_by": 0.05}, {"key_by": 1.2}])
def test_small_errors_in_short_documents_are_caught(mask, head_dim, wrong):
    for seed in range(4):
        assert of_short_documents(mask, head_dim, seed, **wrong).failed
