"""Ranks that hold no tokens, where documents have fewer tokens than ranks, are verified like any other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from planted_kernels import FlashLike
from strategy_runs import implementation, mask_slices, tensors_of, verify_strategies
from test_library_strategies import LIBRARIES, TE, asked
from test_strategies import meshes

from attnspec import plugins
from attnspec.errors import UnsupportedError
from attnspec.execute.prepared import Prepared
from attnspec.execute.verify import Checks, verify
from attnspec.shape import Shape
from attnspec.slices import AttnSlices, dense

SIZE = 4
SHAPE = Shape(batch=1, num_heads_q=8, num_heads_kv=4, head_dim=16, dtype="float32")
DOCUMENTS = ([2] * 20, [2])


def leaves_a_rank_empty(one, slices, docs):
    """None where the strategy does not take this mask or shape."""
    module = plugins.load("strategies", one.strategy)
    params = plugins.make_params(module, one.strategy_params)
    try:
        module.check(params, SHAPE, SIZE)
        plan = module.shard(params, slices, np.array(docs), SHAPE, SIZE)
    except UnsupportedError:
        return None
    return any(len(plan.q_tokens(rank)) == 0 or len(plan.k_tokens(rank)) == 0 for rank in range(SIZE))


def cases(implementations, masks):
    """Those that leave a rank without tokens. masks: (mask, documents)."""
    held = [(one, mask_slices(mask, docs), docs) for mask, docs in masks for one in implementations]
    return [(one, SHAPE, slices, docs) for one, slices, docs in held if leaves_a_rank_empty(one, slices, docs)]


def check(pools, run, held, strategies):
    assert {one.strategy for one, *_ in held} == strategies
    of_ranks = pools(SIZE).run(run, held)
    for (one, _, slices, docs), *found in zip(held, *of_ranks, strict=True):
        assert min(num_tokens for num_tokens, *_ in found) == 0
        assert {tuple(result) for _, *result in found} == {("ok", None)}, (one.strategy, docs, slices.rows())


def verify_library_strategies(ranks, held):
    from fakes import libraries

    libraries.install()
    return verify_strategies(ranks, held)


def own_strategies(kernel):
    return [implementation(name, kernel, params) for name, params in meshes(SIZE)]


def test_every_strategy_that_leaves_a_rank_empty_is_verified(pools):
    first_meshes = {one.strategy: one for one in reversed(own_strategies("sdpa"))}
    check(pools, verify_strategies, cases(first_meshes.values(), [("varlen_causal", [2])]), set(first_meshes))


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["reference", "sdpa"])
@pytest.mark.parametrize("mask", ["varlen_causal", "varlen_full", "causal"])
def test_so_it_is_on_every_mesh(pools, kernel, mask):
    held = cases(own_strategies(kernel), [(mask, docs) for docs in DOCUMENTS])
    check(pools, verify_strategies, held, {one.strategy for one in own_strategies(kernel)})


@pytest.mark.parametrize("docs", [pytest.param(DOCUMENTS[0], marks=pytest.mark.slow), DOCUMENTS[1]])
def test_so_are_those_of_libraries(pools, docs):
    held = cases(map(asked, LIBRARIES), [("varlen_causal", docs)])
    check(pools, verify_library_strategies, held, {*TE, "ring_flash_attn_zigzag"})


def unseen(held):
    """A mask of 64 rows and keys of which the last 4 take part in nothing; `held` of each are this rank's."""
    slices = AttnSlices.from_rows([(0, 60, 0, 60, 1)], seqlen_q=64, seqlen_k=64)
    q_rows, k_rows = (np.arange(64 - count, 64, dtype=np.int64) for count in held)
    return slices, q_rows, k_rows


@pytest.mark.parametrize("held", [(0, 0), (0, 4), (4, 0)], ids=["nothing", "no queries", "no keys"])
def test_a_rank_without_queries_or_keys_is_verified(held):
    slices, q_rows, k_rows = unseen(held)
    mask = torch.from_numpy(np.ascontiguousarray(dense(slices)[np.ix_(q_rows, k_rows)]))
    prepared = Prepared(
        bound=FlashLike(mask_TS=mask, scale=0.25), needs_backward=True, lower_s=0.0, q_rows=q_rows, k_rows=k_rows
    )
    checks = Checks.of("workload-of-tests", SHAPE, slices, tensors_of(SHAPE, slices))
    checks = checks.over(q_rows, k_rows, lambda partial: partial)
    found = verify(prepared, checks, tensors_of(SHAPE, slices, q_rows, k_rows))
    assert (found.status, found.reason, found.error) == ("ok", None, 0.0)
