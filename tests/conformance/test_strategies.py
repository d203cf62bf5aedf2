"""Every own strategy over gloo ranks: outputs, log-sum-exps and all gradients against the specification in float64."""

from __future__ import annotations

import dataclasses
import itertools
import re

import numpy as np
import pytest
from stand_in_ranks import run_with_stand_in
from strategy_runs import (
    expected,
    implementation,
    mask_slices,
    prepared_strategy,
    put_together,
    run_strategies,
    sent_and_planned,
)
from test_library_adapters import ADAPTERS

from attnspec import plugins
from attnspec.errors import UnsupportedError
from attnspec.kernels.reference import Reference
from attnspec.shape import Shape
from attnspec.slices import AttnSlices

DOCS = [37, 5, 0, 90, 1, 107]
MASKS = {
    "full": {},
    "causal": {},
    "varlen_full": {},
    "varlen_causal": {},
    "sliding_window_causal": {"window": 33},
    "sliding_window": {"window": 20},
    "varlen_block_causal": {"block": 16},
    "prefix_lm_causal": {"prefix": 50},
    "prefix_lm_document": {"prefix": 12},
    "share_question": {},
    "causal_blockwise": {},
    "global_sliding_window": {"window": 9, "global_tokens": 5},
}
SHORT = mask_slices("varlen_causal", [9, 16]), [9, 16]
QUICK_MASKS = ("varlen_causal", "varlen_block_causal")
TOLERANCE = {"float64": 3e-6, "float32": 2e-5, "bfloat16": 0.03}
"""Largest error over the largest value. The reference kernel's log-sum-exp leaves it as float32."""


def meshes(size):
    """(strategy, parameters) that fit `size` ranks and 8:4 heads."""
    power = size & (size - 1) == 0
    yield from [("ring_p2p", {}), ("ring_allgather", {})]
    if power:
        yield from [("ulysses", {}), ("hybrid_dcp", {}), ("hybrid_dcp", {"tokens_per_rank": 24, "reshard": False})]
    for degree in (d for d in range(1, size + 1) if size % d == 0 and 4 % d == 0):
        yield "usp", {"ulysses_degree": degree}
        for window in (w for w in range(1, size // degree + 1) if size // degree % w == 0):
            yield "loongtrain", {"ulysses_degree": degree, "window": window}


def shape_of(dtype="float64", num_heads_q=8, num_heads_kv=4, head_dim=16, batch=1):
    return Shape(batch=batch, num_heads_q=num_heads_q, num_heads_kv=num_heads_kv, head_dim=head_dim, dtype=dtype)


def check(pool, asked, shape, masks):
    """All strategies on all masks; docs: as the mask knows them."""
    for name, (slices, docs) in masks.items():
        wanted = expected(shape, slices)
        of_ranks = pool.run(run_strategies, [(one, shape, slices, docs) for one in asked])
        for one, *found in zip(asked, *of_ranks, strict=True):
            compare(
                put_together(found, slices),
                wanted,
                TOLERANCE[shape.dtype],
                f"{one.strategy} {dict(one.strategy_params)} on {name}",
            )


def compare(found, wanted, tolerance, what):
    for value, right in wanted.items():
        got = found[value]
        assert got.shape == right.shape
        with np.errstate(invalid="ignore"):
            error = np.abs(np.where(got == right, 0, got - right)).max()
        scale = np.abs(right[np.isfinite(right)]).max(initial=1e-3)
        assert error <= tolerance * scale, f"{what}: {value}: error {error:.3g} of {scale:.3g}"


def shipped(names):
    return {name: (mask_slices(name, DOCS, **MASKS[name]), DOCS) for name in names}


@pytest.mark.parametrize("size", [2, *(pytest.param(size, marks=pytest.mark.slow) for size in (3, 4))])
def test_strategies_are_the_specification(pools, size):
    asked = [implementation(name, strategy_params=params) for name, params in meshes(size)]
    check(pools(size), asked, shape_of(), shipped(QUICK_MASKS))


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_strategies_are_the_specification_on_every_mask(pools, size):
    asked = [implementation(name, strategy_params=params) for name, params in meshes(size)]
    assert set(MASKS) == set(plugins.names("masks")) - {"slices"}
    check(pools(size), asked, shape_of(), shipped(MASKS))


def other_masks():
    """Rectangles, slices that leave rows and keys out, an empty mask, fewer tokens than ranks."""
    any_slices = [(3, 20, 1, 9, 3), (20, 31, 30, 60, 2), (31, 60, 0, 17, 1), (40, 60, 17, 64, 0), (60, 64, 2, 3, 0)]
    return {
        "wide": (AttnSlices.from_rows([(0, 20, 0, 50, 1)], seqlen_q=20, seqlen_k=50), [20]),
        "tall": (AttnSlices.from_rows([(0, 50, 0, 20, 1)], seqlen_q=50, seqlen_k=20), [50]),
        "slices": (AttnSlices.from_rows(any_slices, seqlen_q=64, seqlen_k=64), [30, 34]),
        "nothing": (AttnSlices.from_rows([], seqlen_q=12, seqlen_k=12), [12]),
        "two tokens": (AttnSlices.from_rows([(0, 2, 0, 2, 1)], seqlen_q=2, seqlen_k=2), [2]),
        "ten tokens": (AttnSlices.from_rows([(0, 10, 0, 10, 1)], seqlen_q=10, seqlen_k=10), [10]),
        "odd": (AttnSlices.from_rows([(0, 130, 0, 130, 1)], seqlen_q=130, seqlen_k=130), [130]),
    }


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3, 4])
def test_any_slices_and_lengths(pools, size):
    asked = [implementation(name, strategy_params=params) for name, params in meshes(size)]
    check(pools(size), asked[::2] if size == 4 else asked, shape_of(batch=2), other_masks())


@pytest.mark.slow
@pytest.mark.parametrize(("heads", "size"), [((8, 1), 2), ((8, 2), 4), ((4, 4), 4)])
def test_heads_that_are_fewer_than_ranks_or_one_each(pools, heads, size):
    asked = [implementation("ulysses"), implementation("usp", strategy_params={"ulysses_degree": 2})]
    asked.append(implementation("loongtrain", strategy_params={"ulysses_degree": 2, "window": size // 2}))
    check(pools(size), asked, shape_of("float64", *heads), shipped(["varlen_causal"]))


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_stages_on_two_streams_carry_the_same(pools, size):
    asked = [implementation("ulysses"), implementation("usp", strategy_params={"ulysses_degree": 2})]
    for heads in ((8, 1), (8, 4)):
        shape, slices = shape_of("float64", *heads, batch=2), SHORT[0]
        wanted = expected(shape, slices)
        of_ranks = pools(size).run(run_on_two_streams, [(one, shape, *SHORT) for one in asked])
        for one, *found in zip(asked, *of_ranks, strict=True):
            compare(put_together(found, slices), wanted, TOLERANCE["float64"], f"{one.strategy} of {heads}")


def run_on_two_streams(ranks, cases):
    """run_strategies over a kernel that gains by two calls at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Reference, "overlaps", frozenset({"fwd", "bwd"}), raising=False)
        return run_strategies(ranks, cases)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_narrow_types_and_another_kernel(pools, dtype):
    asked = [implementation(name, "sdpa", params) for name, params in meshes(4)]
    check(pools(4), asked, shape_of(dtype), shipped(["varlen_causal"]))


@pytest.mark.parametrize("size", [2, 3])
def test_every_kind_of_message_arrives_in_every_type(pools, size):
    """The operations and types that strategies need of a backend, before any of them is timed."""
    everywhere = pools(size).run(exchanged)
    for rank, of_types in enumerate(everywhere):
        assert set(of_types) == {"float64", "float32", "bfloat16", "float16"}
        for dtype, (passed, gathered, scattered, summed) in of_types.items():
            assert passed == [float((rank - 1) % size)] * 3, dtype
            assert gathered == [[float(other)] * 3 for other in range(size)], dtype
            assert scattered == [sum(10.0 * rank + other for other in range(size))] * 3, dtype
            assert summed == [float(sum(range(size)))] * 3, dtype


def exchanged(ranks):
    """dtype -> what one rank received from the one before it, gathered, had added for it, and added up with all."""
    import torch

    from attnspec.exchange.transport import Parcel
    from attnspec.sharding.routes import Channel

    found, transport = {}, ranks.transport
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        own = torch.full((3,), float(ranks.rank), dtype=dtype)
        passed, gathered, scattered = torch.empty_like(own), own.new_empty(ranks.size, 3), torch.empty_like(own)
        after, before = (ranks.rank + 1) % ranks.size, (ranks.rank - 1) % ranks.size
        for channel in Channel:
            passed.fill_(-1)
            transport.post(channel, [Parcel(peer=after, tensor=own)], [Parcel(peer=before, tensor=passed)]).wait()
        transport.gather(own, gathered)
        parts = torch.stack([own + 10 * other for other in range(ranks.size)])
        transport.reduce_scatter(parts, scattered)
        summed = own.clone()
        transport.reduce(summed)
        name = str(dtype).removeprefix("torch.")
        found[name] = (passed.tolist(), gathered.tolist(), scattered.tolist(), summed.tolist())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fa3 xformers", "fa2 flash-attn", "ffa"])
def test_the_libraries_calls_on_parts_of_the_mask(pools, name):
    kernel, provider, *_ = ADAPTERS[name]
    asked = [implementation(one, kernel, params, provider=provider) for one, params in meshes(4)]
    shape = shape_of("float32")
    for mask in QUICK_MASKS:
        slices, docs = mask_slices(mask, DOCS, **MASKS[mask]), DOCS
        wanted = expected(shape, slices)
        of_ranks = pools(4).run(run_with_stand_in, name, [(one, shape, slices, docs) for one in asked])
        for one, *found in zip(asked, *of_ranks, strict=True):
            compare(put_together(found, slices), wanted, 1e-4, f"{one.strategy} {dict(one.strategy_params)} on {mask}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "masks"), [(2, ("varlen_causal", "full")), pytest.param(4, MASKS, marks=pytest.mark.slow)]
)
def test_what_is_sent_is_what_the_plan_says(pools, size, masks):
    asked = [implementation(name, strategy_params=params) for name, params in meshes(size)]
    shapes = shape_of("bfloat16"), shape_of("float32", 8, 1)
    for mask in masks:
        slices = mask_slices(mask, DOCS, **MASKS[mask])
        cases = [(one, shape, slices, DOCS) for shape in shapes for one in asked]
        for rank, found in enumerate(pools(size).run(sent_and_planned, cases)):
            for number, (sent, planned) in enumerate(found):
                assert sent == planned, (mask, rank, cases[number // 2][0], ("fwd", "bwd")[number % 2])


@pytest.mark.slow
def test_ulysses_takes_a_kernel_without_explicit_backward(pools):
    asked = implementation("ulysses", "sdpa", backend="math")
    masks = {"causal": shipped(["causal"])["causal"]}
    (found, *_), *_ = pools(2).run(run_without_lse, asked, shape_of(), *masks["causal"])
    assert found is None
    with pytest.raises(AssertionError, match="this kernel has none from a given output"):
        check(pools(2), [implementation("ring_p2p", "sdpa", backend="math")], shape_of(), masks)


def run_without_lse(ranks, asked, shape, slices, docs):
    """lse of a forward, None where the kernel gives none; and whether gradients are right."""

    prepared, _ = prepared_strategy(ranks, asked, shape, slices, docs)
    forward = prepared.bound.forward(prepared.inputs)
    out, lse = prepared.bound.canonical_out(forward)
    grads = prepared.bound.backward(prepared.inputs, forward, prepared.dout)
    wanted = expected(shape, slices)
    for name, got, rows in zip(
        ("out", "dq", "dk", "dv"), (out, *grads), (prepared.q_rows,) * 2 + (prepared.k_rows,) * 2, strict=True
    ):
        assert np.abs(got.detach().numpy() - wanted[name][:, rows]).max() < 1e-9, name
    return (lse,)


@pytest.mark.parametrize(
    ("name", "params", "heads", "size", "words"),
    [
        ("ulysses", {}, (40, 8), 16, "40 query heads cannot be split over 16 ranks; allowed cp_size: 1, 2, 4, 8, 40"),
        (
            "ulysses",
            {},
            (28, 7),
            2,
            "7 key/value heads can be neither split over 2 ranks nor each repeated on equally ",
        ),
        ("usp", {"ulysses_degree": 3}, (8, 4), 4, "ulysses_degree 3 does not divide 4 ranks; allowed .* 1, 2, 4"),
        ("usp", {"ulysses_degree": 16}, (8, 8), 16, "8 query heads .* 16 ranks; allowed ulysses_degree: 1, 2, 4, 8"),
        (
            "loongtrain",
            {"ulysses_degree": 2, "window": 3},
            (8, 4),
            8,
            "window 3 .* ring of 4 ranks .* allowed window: 1, 2, 4",
        ),
        ("hybrid_dcp", {}, (8, 4), 6, "do not tile 6 ranks; allowed cp_size: 4, 8 and all other powers of two$"),
    ],
)
def test_what_does_not_fit_is_said_before_launch_with_what_would(name, params, heads, size, words):
    module = plugins.load("strategies", name)
    with pytest.raises(UnsupportedError, match=words) as error:
        module.check(plugins.make_params(module, params), shape_of("bfloat16", *heads), size)
    assert error.value.reason_code in ("heads", "mesh")


HEADS = [(24, 2), (15, 3), (8, 8), (8, 1), (40, 8), (7, 7)]
VALUES = {"ulysses_degree": (1, 2, 3, 4, 8), "window": (1, 2, 3), "heads_k_stride": (1, 2, 3)}


@pytest.mark.parametrize("name", plugins.names("strategies"))
def test_what_a_refusal_names_is_not_refused(name):
    """Whatever is allowed instead, taken at its word, is no ground for another refusal."""
    module = plugins.load("strategies", name)
    given = [field.name for field in dataclasses.fields(module.Params) if field.name in VALUES]
    choices = [dict(zip(given, values, strict=True)) for values in itertools.product(*(VALUES[one] for one in given))]
    for heads, size, values in itertools.product(HEADS, range(2, 9), [{}, *choices]):
        shape = shape_of("bfloat16", *heads)
        reason = refusal(module, values, shape, size)
        if reason is None or reason.endswith("te_p2p and te_all_gather split no heads"):
            continue
        named = re.search(r"; allowed (\w+): ([0-9, ]+)( and all other powers of two)?$", reason)
        assert named, reason
        for number in map(int, named[2].split(", ")):
            ranks = number if named[1] == "cp_size" else size
            instead = values if named[1] == "cp_size" else {**values, named[1]: number}
            again = refusal(module, instead, shape, ranks)
            assert again is None or f"allowed {named[1]}" not in again, (heads, size, values, reason, again)


def refusal(module, values, shape, size):
    try:
        module.check(plugins.make_params(module, values), shape, size)
    except UnsupportedError as error:
        return error.reason
    return None


@pytest.mark.parametrize(("size", "window", "degree"), [(8, 2, 4), (8, 8, 1), (8, 1, 8), (16, 4, 4)])
def test_an_open_degree_leaves_whole_windows(size, window, degree):
    module = plugins.load("strategies", "loongtrain")
    params = plugins.make_params(module, {"window": window})
    shape = shape_of("bfloat16", 8, 8)
    module.check(params, shape, size)
    made = module.shard(params, mask_slices("full", [64]), np.array([64]), shape, size)
    assert (made.mesh["ulysses_degree"], made.window) == (degree, window)


@pytest.mark.parametrize(("heads", "size"), [((40, 8), 8), ((40, 8), 40), ((64, 8), 64), ((32, 8), 2)])
def test_heads_that_fit(heads, size):
    plugins.load("strategies", "ulysses").check(None, shape_of("bfloat16", *heads), size)
