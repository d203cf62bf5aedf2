"""The adapter to MagiAttention's context parallelism, with a stand-in for the library that needs no GPU."""

from __future__ import annotations

import numpy as np
import pytest
from ranks import RankPool
from strategy_runs import CPU, expected, mask_slices, put_together, tensors_of

from attnspec import plugins
from attnspec.errors import UnsupportedError
from attnspec.shape import Shape
from attnspec.sharding.dispatched import Dispatched

DOCS = [37, 5, 90, 1, 107]
SHAPE = Shape(batch=1, num_heads_q=4, num_heads_kv=2, head_dim=8, dtype="float64")


def run_magi(ranks, masks, chunk_size=16, chunks=8):
    import fake_magi

    from attnspec.exchange.guard import Guard

    fake_magi.install(chunks)
    module = plugins.load("strategies", "magi_attn_a2av")
    params, found = module.Params(chunk_size=chunk_size), []
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seqlen", "size", "chunk_size", "padding"),
    [(130, 4, 64, 126), pytest.param(1000, 3, 128, 152, marks=pytest.mark.slow)],
)
def test_chunks_are_padded_and_a_rank_may_hold_padding_only(seqlen, size, chunk_size, padding):
    slices = mask_slices("causal", [seqlen])
    with RankPool(size) as pool:
        of_ranks = pool.run(run_magi, [slices], chunk_size, 0)
    wanted = expected(SHAPE, slices)
    found = put_together([results[0][0] for results in of_ranks], slices)
    for name, right in wanted.items():
        assert np.allclose(found[name], right, rtol=0, atol=1e-5), name
    held = [len(results[0][0][0][0]) for results in of_ranks]
    assert sum(held) == seqlen
    assert of_ranks[0][0][1][0] == padding
    if seqlen == 130:
        assert held == [64, 64, 2, 0]


@pytest.mark.parametrize(
    ("seqlen", "size", "chunk_size", "padded", "area"),
    [
        (8192, 8, 1536, 12288, 33558528),
        (130, 4, 64, 256, 130 * 131 // 2),
        (1000, 3, 128, 1152, 1000 * 1001 // 2),
        (2, 8, 16, 128, 3),
    ],
)
def test_padding_of_chunks_is_counted_and_never_in_areas(seqlen, size, chunk_size, padded, area):
    """Chunks dealt out in turn; some ranks hold nothing but padding."""
    per_rank = padded // (size * chunk_size)
    positions = np.arange(padded).reshape(per_rank, size, chunk_size).transpose(1, 0, 2).reshape(size, -1)
    plan = Dispatched(
        slices=mask_slices("causal", [seqlen]),
        shape=SHAPE,
        mesh={"chunk_size": chunk_size},
        partials=3,
        tokens=tuple(one[one < seqlen] for one in positions),
        slots=tuple(np.flatnonzero(one < seqlen) for one in positions),
        num_slots=(per_rank * chunk_size,) * size,
        casts=np.full((size, size), chunk_size),
        handle=None,
    )
    assert plan.padding_tokens == padded - seqlen
    assert sum(plan.areas) == area * SHAPE.num_heads_q
    assert np.sort(np.concatenate([plan.q_tokens(rank) for rank in range(size)])).tolist() == list(range(seqlen))
    empty = [rank for rank in range(size) if len(plan.q_tokens(rank)) == 0]
    assert len(empty) == max(size - -(-seqlen // chunk_size), 0)
    assert all(plan.areas[rank] == 0 and not len(plan.tasks(rank)[0].slices) for rank in empty)


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


@pytest.mark.parametrize("name", ["magi_attn_native", "magi_attn_a2av"])
@pytest.mark.parametrize("kernel", ["ffa", "ffa_fa4"])
@pytest.mark.parametrize("fa4", [None, "0", "1"])
@pytest.mark.parametrize("collectives", [None, "0", "1"])
def test_planning_and_worker_want_the_same_environment(monkeypatch, name, kernel, fa4, collectives):
    from attnspec.exchange.magi import check_environment

    given = {"MAGI_ATTENTION_FA4_BACKEND": fa4, "MAGI_ATTENTION_NATIVE_GRPCOLL": collectives}
    env = {variable: value for variable, value in given.items() if value is not None}
    for variable in given:
        monkeypatch.delenv(variable, raising=False)
    for variable, value in env.items():
        monkeypatch.setenv(variable, value)
    try:
        check_environment(kernel, native=name == "magi_attn_native")
        wanted = True
    except UnsupportedError:
        wanted = False
    switches = plugins.load("strategies", name).switches(kernel)
    assert all((env.get(variable) == "1") == on for variable, on in switches.items()) == wanted


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
