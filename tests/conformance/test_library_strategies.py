"""Adapters to libraries' own context parallelism, with stand-ins for the libraries that need no GPU."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
from ranks import RankPool
from strategy_runs import expected, implementation, mask_slices, prepared_strategy, put_together

from attnspec import plugins
from attnspec.errors import UnsupportedError
from attnspec.shape import Shape
from attnspec.sharding.sharding import comm_bytes
from attnspec.slices import AttnSlices

DOCS = [37, 5, 90, 1, 107]
SEQLEN = sum(DOCS)
SHAPE = Shape(batch=1, num_heads_q=4, num_heads_kv=4, head_dim=8, dtype="float64")
TE = ("te_p2p", "te_all_gather", "te_a2a", "te_a2a_p2p")
RINGS = ("ring_flash_attn_zigzag", "ring_flash_attn_llama3")
LIBRARIES = (*TE, *RINGS, "yunchang_usp")
TAKES = {
    "full": LIBRARIES,
    "causal": LIBRARIES,
    "varlen_full": (*TE, "ring_flash_attn_llama3"),
    "varlen_causal": (*TE, *RINGS),
    "sliding_window_causal": ("te_all_gather", "te_a2a", "ring_flash_attn_llama3"),
    "share_question": (),
    "sliding_window": (),
}
PARAMS = {"sliding_window_causal": {"window": 20}, "sliding_window": {"window": 20}}


def slices_of(mask):
    return mask_slices(mask, DOCS, **PARAMS.get(mask, {}))


def asked(name):
    params = {"ulysses_degree": 2} if name == "yunchang_usp" else {}
    return implementation(name, plugins.load("strategies", name).KERNELS[0], params)


def run_libraries(ranks, cases):
    from fakes import libraries

    libraries.install()
    return run_ready(ranks, SHAPE, cases)


def run_ready(ranks, shape, cases):
    """(tokens, results) of each case, with two backwards."""
    found = []
    for one, slices in cases:
        prepared, _ = prepared_strategy(ranks, one, shape, slices, DOCS)
        bound = prepared.bound
        assert bound.frees_graph == (one.strategy in TE)
        forward = bound.forward(prepared.inputs)
        for _ in range(2):
            if bound.frees_graph:
                forward = bound.forward(prepared.inputs)
            dq, dk, dv = bound.canonical_grads(bound.backward(prepared.inputs, forward, prepared.dout))
        out, lse = bound.canonical_out(forward)
        assert lse is None
        values = {"out": out, "dq": dq, "dk": dk, "dv": dv}
        rows = prepared.q_rows, prepared.k_rows
        found.append((rows, {name: value.detach().numpy() for name, value in values.items()}))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("masks", [("varlen_causal",), tuple(TAKES)])
def test_layouts_and_results_come_back_right(masks):
    cases = [(asked(name), slices_of(mask)) for mask in masks for name in TAKES[mask]]
    two = mask_slices("causal", [2])  # so that two ranks of four hold padding only
    cases += [(asked(name), two) for name in (*TE, "ring_flash_attn_zigzag")]
    with RankPool(4) as pool:
        of_ranks = pool.run(run_libraries, cases)
    for number, (one, slices) in enumerate(cases):
        wanted = expected(SHAPE, slices)
        found = put_together([results[number] for results in of_ranks], slices)
        for name, right in found.items():
            assert np.allclose(right, wanted[name], rtol=0, atol=1e-9), (one.strategy, name)


def shard(name, slices, shape=SHAPE, cp_size=4, **values):
    module = plugins.load("strategies", name)
    params = plugins.make_params(module, values)
    module.check(params, shape, cp_size)
    return module.shard(params, slices, np.array([slices.seqlen_q]), shape, cp_size)


@pytest.mark.parametrize("name", LIBRARIES)
def test_masks_that_they_cannot_express_are_unsupported(name):
    uncovered = AttnSlices.from_rows([(0, 8, 0, 8, 1)], seqlen_q=SEQLEN, seqlen_k=SEQLEN)
    others = [slices_of(mask) for mask, names in TAKES.items() if name not in names]
    for slices in (*others, mask_slices("causal", DOCS, seqlen_k=300), uncovered):
        with pytest.raises(UnsupportedError) as error:
            shard(name, slices)
        assert error.value.reason_code == "no_lowering"


@pytest.mark.parametrize(
    ("name", "mask", "words"),
    [
        ("te_p2p", "sliding_window_causal", "TransformerEngine takes windows by te_all_gather and te_a2a only"),
        ("te_a2a", "sliding_window", "TransformerEngine takes causal windows only"),
        ("ring_flash_attn_zigzag", "varlen_full", "ring_flash_attn_llama3 takes others"),
        ("yunchang_usp", "varlen_causal", "yunchang takes one sequence, full or causal"),
    ],
)
def test_what_they_take_instead_is_said(name, mask, words):
    with pytest.raises(UnsupportedError, match=words):
        shard(name, slices_of(mask))


@pytest.mark.parametrize(
    ("name", "change", "size", "code", "words"),
    [
        (
            "te_a2a",
            {"num_heads_q": 8, "num_heads_kv": 2},
            4,
            "heads",
            "2 key/value heads .* 4 ranks.*; allowed cp_size: 2$",
        ),
        ("te_a2a", {"num_heads_q": 8, "num_heads_kv": 1}, 4, "heads", "; te_p2p and te_all_gather split no heads$"),
        ("te_a2a_p2p", {"num_heads_q": 8, "num_heads_kv": 1}, 4, "heads", "2 ranks.*; allowed ulysses_degree: 1$"),
        ("yunchang_usp", {}, 7, "seqlen", "240 tokens are no multiple of 14"),
        ("ring_flash_attn_llama3", {}, 7, "seqlen", "240 tokens .* into 7 equal runs; allowed: a multiple of 7"),
        ("ring_flash_attn_llama3", {"batch": 2}, 4, "backend", "packed sequences are batch 1, not 2"),
        ("ring_flash_attn_zigzag", {"batch": 2}, 7, "backend", "packed sequences are batch 1, not 2"),
        ("te_p2p", {"batch": 2}, 7, "backend", "packed sequences are batch 1, not 2"),
    ],
)
def test_shapes_that_do_not_fit_are_unsupported(name, change, size, code, words):
    with pytest.raises(UnsupportedError, match=words) as error:
        shard(name, slices_of("causal"), dataclasses.replace(SHAPE, **change), size)
    assert error.value.reason_code == code


@pytest.mark.parametrize("name", plugins.names("strategies"))
def test_a_librarys_strategy_wants_several_ranks(name):
    module = plugins.load("strategies", name)
    check = functools.partial(module.check, module.Params(), SHAPE)
    check(2)
    if not hasattr(module, "PROVIDERS"):
        check(1)
        return
    with pytest.raises(UnsupportedError, match="at least 2 ranks, got 1; allowed cp_size: 2 or more") as error:
        check(1)
    assert error.value.reason_code == "mesh"


@pytest.mark.parametrize(("heads", "degree"), [((24, 2), 2), ((8, 1), 1), ((24, 8), 4), ((6, 6), 2)])
def test_an_open_degree_is_one_that_yunchang_takes(heads, degree):
    shape = dataclasses.replace(SHAPE, num_heads_q=heads[0], num_heads_kv=heads[1])
    plan = shard("yunchang_usp", mask_slices("causal", [64]), shape)
    assert plan.mesh == {"ulysses_degree": degree, "ring_degree": 4 // degree}


def test_a_stride_of_heads_must_divide_them():
    with pytest.raises(
        UnsupportedError, match="heads_k_stride 3 .* 4 key/value heads; allowed heads_k_stride: 1, 2, 4"
    ):
        shard("ring_flash_attn_llama3", slices_of("full"), heads_k_stride=3)
    assert shard("ring_flash_attn_llama3", slices_of("full"), heads_k_stride=2).mesh["heads_k_stride"] == 2


def test_facts_are_those_of_the_layout():
    plan = shard("te_p2p", slices_of("varlen_causal"))
    assert plan.padding_tokens == sum(-length % 8 for length in DOCS)
    assert sum(len(plan.q_tokens(rank)) for rank in range(4)) == SEQLEN
    assert plan.mesh == {"ulysses_degree": 1, "ring_degree": 4}
    assert sum(plan.areas) == sum(n * (n + 1) // 2 for n in DOCS) * 4


def test_bytes_are_those_that_their_sources_send():
    """Of 240 tokens over 4 ranks: 60 slots a rank, 4 heads of 8 elements, 2 bytes each, K and V together."""
    shape = dataclasses.replace(SHAPE, dtype="bfloat16")
    own = 60 * 4 * 8 * 2
    exchanged = own * 4 * 3 // 4  # q, k, v and out, less what stays
    sends = {
        "te_p2p": (3 * 2 * own, 6 * 2 * own),
        "te_all_gather": (3 * 2 * own, 6 * 2 * own),
        "te_a2a": (exchanged, exchanged),
        "te_a2a_p2p": (2 * own + 2 * own, 2 * own + 4 * own),
        "ring_flash_attn_zigzag": (3 * 2 * own, 3 * 2 * own + 4 * 2 * 2 * own),
        "ring_flash_attn_llama3": (3 * 2 * own, 6 * 2 * own),
    }
    slices = mask_slices("causal", [240])
    for name, wanted in sends.items():
        plan = shard(name, slices, shape)
        assert (comm_bytes(plan, "fwd"), comm_bytes(plan, "bwd")) == wanted, name
    plan = shard("yunchang_usp", slices, shape, ulysses_degree=2)
    assert (comm_bytes(plan, "fwd"), comm_bytes(plan, "bwd")) == (2 * own + 2 * own, 2 * own + 2 * own + 2 * 4 * own)
