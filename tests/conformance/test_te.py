"""The adapter to TransformerEngine's context parallelism, with a stand-in for the library that needs no GPU."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from ranks import RankPool
from strategy_runs import expected, implementation, mask_slices, prepared_strategy, put_together

from attnspec import plugins
from attnspec.errors import UnsupportedError
from attnspec.shape import Shape
from attnspec.slices import AttnSlices

DOCS = [37, 5, 90, 1, 107]
SHAPE = Shape(batch=1, num_heads_q=4, num_heads_kv=4, head_dim=8, dtype="float64")
WAYS = ("te_p2p", "te_all_gather", "te_a2a", "te_a2a_p2p")


def run_te(ranks, cases):
    import fake_te

    fake_te.install()
    found = []
    for asked, slices in cases:
        prepared, _ = prepared_strategy(ranks, asked, SHAPE, slices, DOCS)
        bound = prepared.bound
        assert bound.frees_graph
        for _ in range(2):
            forward = bound.forward(prepared.inputs)
            out, lse = bound.canonical_out(forward)
            dq, dk, dv = bound.canonical_grads(bound.backward(prepared.inputs, forward, prepared.dout))
        assert lse is None
        values = {"out": out, "dq": dq, "dk": dk, "dv": dv}
        rows = prepared.q_rows, prepared.k_rows
        found.append((rows, {name: value.detach().numpy() for name, value in values.items()}))
    return found


def test_its_layout_and_results_come_back_right():
    masks = [mask_slices(name, DOCS) for name in ("varlen_causal", "varlen_full", "causal", "full")]
    window = mask_slices("sliding_window_causal", DOCS, window=20)
    cases = [(implementation(way, "cudnn"), slices) for way in WAYS for slices in masks]
    cases += [(implementation(way, "cudnn"), window) for way in ("te_all_gather", "te_a2a")]
    with RankPool(4) as pool:
        of_ranks = pool.run(run_te, cases)
    for number, (asked, slices) in enumerate(cases):
        wanted = expected(SHAPE, slices)
        found = put_together([results[number] for results in of_ranks], slices)
        for name, right in found.items():
            assert np.allclose(right, wanted[name], rtol=0, atol=1e-9), (asked.strategy, name)


def shard(way, slices, shape=SHAPE, cp_size=4):
    module = plugins.load("strategies", way)
    module.check(module.Params(), shape, cp_size)
    return module.shard(module.Params(), slices, np.array([slices.seqlen_q]), shape, cp_size)


@pytest.mark.parametrize("way", WAYS)
def test_masks_that_it_cannot_express_are_unsupported(way):
    seqlen = sum(DOCS)
    uncovered = AttnSlices.from_rows([(0, 8, 0, 8, 1)], seqlen_q=seqlen, seqlen_k=seqlen)
    for slices in (mask_slices("share_question", DOCS), mask_slices("causal", DOCS, seqlen_k=300), uncovered):
        with pytest.raises(UnsupportedError) as error:
            shard(way, slices)
        assert error.value.reason_code == "no_lowering"
    window = mask_slices("sliding_window_causal", DOCS, window=20)
    if way in ("te_p2p", "te_a2a_p2p"):
        with pytest.raises(UnsupportedError, match="only causal ones, by all_gather and a2a"):
            shard(way, window)
    else:
        assert shard(way, window).left == 19


def test_heads_must_split_for_all_to_all():
    few = dataclasses.replace(SHAPE, num_heads_q=8, num_heads_kv=2)
    with pytest.raises(UnsupportedError, match="8 query and 2 key/value heads cannot be split over 4 ranks"):
        shard("te_a2a", mask_slices("full", DOCS), few)


def test_facts_are_those_of_the_layout():
    plan = shard("te_p2p", mask_slices("varlen_causal", DOCS))
    assert plan.padding_tokens == sum(-length % 8 for length in DOCS)
    assert sum(len(plan.q_tokens(rank)) for rank in range(4)) == sum(DOCS)
    assert plan.mesh == {"ulysses_degree": 1, "ring_degree": 4}
    assert sum(plan.areas) == sum(n * (n + 1) // 2 for n in DOCS) * 4
