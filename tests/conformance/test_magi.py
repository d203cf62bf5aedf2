"""The adapter to MagiAttention's context parallelism, with a stand-in for the library that needs no GPU."""

from __future__ import annotations

import numpy as np
import pytest
from ranks import RankPool
from strategy_runs import CPU, expected, mask_slices, put_together, tensors_of

from attnspec import plugins
from attnspec.errors import UnsupportedError
from attnspec.shape import Shape

DOCS = [37, 5, 90, 1, 107]
SHAPE = Shape(batch=1, num_heads_q=4, num_heads_kv=2, head_dim=8, dtype="float64")


def run_magi(ranks, masks):
    import fake_magi

    from attnspec.exchange.guard import Guard

    fake_magi.install()
    module = plugins.load("strategies", "magi_attn_a2av")
    params, found = module.Params(chunk_size=16), []
    for slices in masks:
        plan = module.dispatch(params, "ffa", slices, SHAPE, ranks, CPU)
        bound = module.bind(plan, None, ranks.transport, CPU, needs_backward=True)
        rows = plan.q_tokens(ranks.rank), plan.k_tokens(ranks.rank)
        tensors = tensors_of(SHAPE, slices, *rows)
        inputs = bound.load(tensors.q_BTND, tensors.k_BSGD, tensors.v_BSGD)
        forward = bound.forward_with(inputs, Guard())
        dout = bound.load_dout(tensors.dout_BTND)
        out, lse = bound.canonical_out(forward)
        for _ in range(2):
            grads = bound.canonical_grads(bound.backward_with(inputs, forward, dout, Guard()))
        values = {"out": out, "lse": lse.transpose(1, 2), **dict(zip(("dq", "dk", "dv"), grads, strict=True))}
        facts = plan.padding_tokens, dict(plan.mesh), plan.areas, [one.num_bytes for one in plan.messages(0, "fwd")]
        found.append(((rows, {name: value.double().numpy() for name, value in values.items()}), facts))
    return found


@pytest.mark.slow
def test_its_layout_and_results_come_back_right():
    masks = [mask_slices(name, DOCS) for name in ("varlen_causal", "full", "share_question")]
    with RankPool(2) as pool:
        of_ranks = pool.run(run_magi, masks)
    for number, slices in enumerate(masks):
        wanted = expected(SHAPE, slices)
        found = put_together([results[number][0] for results in of_ranks], slices)
        for name, right in wanted.items():
            assert np.allclose(found[name], right, rtol=0, atol=1e-5), name
        padding, mesh, areas, sent = of_ranks[0][number][1]
        assert (padding, mesh) == (-240 % 30, {"chunk_size": 15, "overlap_degree": 2})
        assert len(areas) == 2
        assert sent == [2 * (3 + 5) * 2 * 2 * 8 * 8, 2 * 5 * 2 * 2 * 8 * 8]


@pytest.mark.parametrize(
    ("kernel", "native", "env", "words"),
    [
        ("ffa", True, {}, 'needs env: {MAGI_ATTENTION_NATIVE_GRPCOLL: "1"}'),
        ("ffa", False, {"MAGI_ATTENTION_NATIVE_GRPCOLL": "1"}, 'needs env: {MAGI_ATTENTION_NATIVE_GRPCOLL: "0"}'),
        ("ffa_fa4", False, {}, 'ffa_fa4 needs env: {MAGI_ATTENTION_FA4_BACKEND: "1"}'),
        ("ffa", False, {"MAGI_ATTENTION_FA4_BACKEND": "1"}, 'ffa needs env: {MAGI_ATTENTION_FA4_BACKEND: "0"}'),
    ],
)
def test_an_environment_that_means_something_else_is_said(monkeypatch, kernel, native, env, words):
    from attnspec.exchange.magi import check_environment

    for name in ("MAGI_ATTENTION_NATIVE_GRPCOLL", "MAGI_ATTENTION_FA4_BACKEND"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UnsupportedError) as error:
        check_environment(kernel, native=native)
    assert words in error.value.reason
    assert error.value.reason_code == "backend"


@pytest.mark.parametrize(
    ("shape", "mask", "code"),
    [
        (Shape(batch=2, num_heads_q=4, num_heads_kv=2, head_dim=8, dtype="bfloat16"), ("full", {}), "backend"),
        (SHAPE, ("causal", {"seqlen_k": 300}), "seqlen"),
        (SHAPE, ("full", {}), "mesh"),
    ],
)
def test_what_it_does_not_take_is_unsupported(shape, mask, code):
    from attnspec.exchange.groups import Ranks
    from attnspec.exchange.magi import dispatch_plan
    from attnspec.sharding.dispatched import DispatchParams

    slices = mask_slices(mask[0], DOCS, **mask[1])
    with pytest.raises(UnsupportedError) as error:
        dispatch_plan(DispatchParams(), "ffa", slices, shape, Ranks.alone(), CPU, native=False)
    assert error.value.reason_code == code
