"""Plans of strategies: every allowed pair computed once over the ranks, nothing else; bytes as the formulas say."""

from __future__ import annotations

import itertools
import time
from contextlib import suppress
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnspec import plugins
from attnspec.errors import UnsupportedError
from attnspec.masks import make_slices
from attnspec.shape import DTYPE_BYTES, Shape
from attnspec.sharding.sharding import comm_bytes, load_imbalance, sent_bytes
from attnspec.slices import AttnSlices, area, dense
from attnspec.slices.table import SliceType

OWN = ("ulysses", "ring_p2p", "ring_allgather", "usp", "loongtrain", "hybrid_dcp")
LIBRARIES = (
    "te_p2p",
    "te_all_gather",
    "te_a2a",
    "te_a2a_p2p",
    "ring_flash_attn_zigzag",
    "ring_flash_attn_llama3",
    "yunchang_usp",
)
PASSES = ("fwd", "bwd", "fwd_bwd")


@st.composite
def documents(draw):
    lengths = draw(st.lists(st.integers(0, 13), min_size=1, max_size=7))
    return lengths if sum(lengths) else [3]


@st.composite
def masks(draw):
    """(documents, slices): shipped masks over documents, rectangles, and any disjoint slices."""
    docs = draw(documents())
    seqlen = sum(docs)
    kind = draw(st.sampled_from(("mask", "mask", "rectangle", "bands")))
    if kind == "mask":
        name, params = draw(
            st.sampled_from(
                (
                    ("full", {}),
                    ("causal", {}),
                    ("varlen_full", {}),
                    ("varlen_causal", {}),
                    ("varlen_block_causal", {"block": 3}),
                    ("sliding_window_causal", {"window": 4}),
                    ("global_sliding_window", {"window": 2, "global_tokens": 3}),
                    ("share_question", {}),
                    ("prefix_lm_document", {"prefix": 2}),
                )
            )
        )
        module = plugins.load("masks", name)
        held = docs if module.USES_DOCUMENTS else [seqlen]
        return docs, make_slices(module, plugins.make_params(module, params), np.array(held), seqlen)
    if kind == "rectangle":
        seqlen_k = draw(st.integers(1, 30))
        rows = [(0, seqlen, 0, seqlen_k, draw(st.sampled_from(SliceType)))]
        return docs, AttnSlices.from_rows(rows, seqlen_q=seqlen, seqlen_k=seqlen_k)
    rows, start = [], 0
    while start < seqlen:
        end = draw(st.integers(start + 1, seqlen))
        low = draw(st.integers(0, seqlen))
        rows.append((start, end, low, draw(st.integers(low, seqlen)), draw(st.sampled_from(SliceType))))
        start = end
    return docs, AttnSlices.from_rows(rows, seqlen_q=seqlen, seqlen_k=seqlen)


def shape_of(num_heads_q=4, num_heads_kv=2, dtype="bfloat16"):
    return Shape(batch=1, num_heads_q=num_heads_q, num_heads_kv=num_heads_kv, head_dim=8, dtype=dtype)


def sharded(name, slices, docs, shape, cp_size, **values):
    module = plugins.load("strategies", name)
    params = plugins.make_params(module, values)
    module.check(params, shape, cp_size)
    return module.shard(params, slices, np.array(docs), shape, cp_size)


def possible(name, shape, cp_size):
    """Parameters that the strategy accepts for this many ranks."""
    module = plugins.load("strategies", name)
    found = [{}]
    if name in ("usp", "loongtrain", "te_a2a_p2p", "yunchang_usp"):
        found = [{"ulysses_degree": n} for n in range(1, cp_size + 1)]
    if name == "loongtrain":
        found = [{**one, "window": w} for one in found for w in range(1, cp_size + 1)]
    if name == "hybrid_dcp":
        found = [{}, {"tokens_per_rank": 3}, {"reshard": False, "tokens_per_rank": 5}]
    kept = []
    for one in found:
        try:
            module.check(plugins.make_params(module, one), shape, cp_size)
        except UnsupportedError:
            continue
        kept.append(one)
    return kept


@cache
def accepted(name):
    """(shape, cp_size) that the strategy takes with some parameters."""
    found = []
    for cp_size in range(1, 17):
        shapes = shape_of(4, 2), shape_of(cp_size, cp_size), shape_of(2 * cp_size, 1)
        found += [(shape, cp_size) for shape in shapes if possible(name, shape, cp_size)]
    return found


def at_slots(pieces, num_slots):
    """The position of the token at each slot, -1 at padding."""
    tokens = np.full(num_slots, -1)
    for start, end, slot in pieces.tolist():
        assert (tokens[slot : slot + end - start] == -1).all()
        tokens[slot : slot + end - start] = np.arange(start, end)
    return tokens


def computed(plan, shape, slices):
    """How often each (head, query, key) is computed over all ranks, and by each rank."""
    count = np.zeros((shape.num_heads_q, slices.seqlen_q, slices.seqlen_k), dtype=int)
    of_ranks = []
    for rank in range(plan.num_ranks):
        before = count.sum()
        for task in plan.tasks(rank):
            queries = at_slots(task.q_pieces, task.slices.seqlen_q)
            keys = at_slots(task.k_pieces, task.slices.seqlen_k)
            q_slots, k_slots = np.nonzero(dense(task.slices))
            assert (queries[q_slots] >= 0).all() and (keys[k_slots] >= 0).all()
            for head in task.heads_q:
                np.add.at(count[head], (queries[q_slots], keys[k_slots]), 1)
        of_ranks.append(int(count.sum() - before))
    return count, of_ranks


@pytest.mark.parametrize("name", OWN)
@settings(deadline=None, max_examples=12)
@given(data=st.data(), mask=masks())
def test_every_allowed_pair_is_computed_once_and_nothing_else(name, data, mask):
    check_coverage(name, data, mask)


@st.composite
def packed(draw):
    """(documents, slices) that libraries can express: one document or many, full, causal or in a causal window."""
    docs = [draw(st.integers(1, 6)) * draw(st.sampled_from((1, 4, 16)))]
    docs = draw(st.sampled_from((docs, draw(documents()))))
    names = ("varlen_full", "varlen_causal", "sliding_window_causal")
    module = plugins.load("masks", draw(st.sampled_from(names)))
    params = {"window": 4} if module.__name__.endswith("sliding_window_causal") else {}
    held = docs if module.USES_DOCUMENTS else [sum(docs)]
    return docs, make_slices(module, plugins.make_params(module, params), np.array(held), sum(docs))


@pytest.mark.parametrize("name", LIBRARIES)
@settings(deadline=None, max_examples=12)
@given(data=st.data(), mask=packed())
def test_plans_of_libraries_cover_every_allowed_pair_once(name, data, mask):
    with suppress(UnsupportedError):  # which masks each takes is tested beside the adapters
        check_coverage(name, data, mask)
        check_messages(name, data, mask)


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
@settings(deadline=None, max_examples=300)
@given(data=st.data(), mask=masks())
def test_every_allowed_pair_is_computed_once_and_nothing_else_at_length(name, data, mask):
    check_coverage(name, data, mask)


def check_coverage(name, data, mask):
    docs, slices = mask
    shape, cp_size = data.draw(st.sampled_from(accepted(name)))
    choices = possible(name, shape, cp_size)
    plan = sharded(name, slices, docs, shape, cp_size, **data.draw(st.sampled_from(choices)))
    assert plan.num_ranks == cp_size
    for seqlen, tokens in ((slices.seqlen_q, plan.q_tokens), (slices.seqlen_k, plan.k_tokens)):
        held = np.concatenate([tokens(rank) for rank in range(cp_size)])
        assert np.sort(held).tolist() == list(range(seqlen))
    count, of_ranks = computed(plan, shape, slices)
    assert (count == dense(slices).astype(int)).all()
    assert list(plan.areas) == of_ranks
    assert sum(plan.areas) == area(slices) * shape.num_heads_q
    assert load_imbalance(plan.areas) == pytest.approx(
        max(of_ranks) / max(np.mean(of_ranks), 1e-9) if any(of_ranks) else 1
    )


@pytest.mark.parametrize("name", OWN)
@settings(deadline=None, max_examples=12)
@given(data=st.data(), mask=masks())
def test_what_one_sends_another_receives(name, data, mask):
    check_messages(name, data, mask)


def check_messages(name, data, mask):
    docs, slices = mask
    shape, cp_size = data.draw(st.sampled_from(accepted(name)))
    choices = possible(name, shape, cp_size)
    plan = sharded(name, slices, docs, shape, cp_size, **data.draw(st.sampled_from(choices)))
    for pass_ in PASSES:
        sent, received = {}, {}
        for rank in range(cp_size):
            for one in plan.messages(rank, pass_):
                assert one.peer != rank
                assert one.num_bytes > 0
                way = (rank, one.peer) if one.kind == "send" else (one.peer, rank)
                box = sent if one.kind == "send" else received
                box.setdefault((*way, one.content), []).append(one.num_bytes)
        assert {key: sorted(value) for key, value in sent.items()} == {
            key: sorted(value) for key, value in received.items()
        }
        assert comm_bytes(plan, pass_) == max(sent_bytes(plan.messages(rank, pass_)) for rank in range(cp_size))
    both = comm_bytes(plan, "fwd_bwd")
    assert both <= comm_bytes(plan, "fwd") + comm_bytes(plan, "bwd")
    if cp_size == 1:
        assert both == 0


def one_document(cp_size, share=64):
    seqlen = cp_size * share
    return [seqlen], AttnSlices.from_rows([(0, seqlen, 0, seqlen, 0)], seqlen_q=seqlen, seqlen_k=seqlen)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("cp_size", [1, 2, 3, 4, 8, 16])
def test_bytes_are_those_of_the_papers(cp_size, dtype):
    P, H, G, D, L = cp_size, 16 * cp_size, cp_size, 8, 64
    docs, slices = one_document(P, L)
    shape = shape_of(H, G, dtype)
    e = DTYPE_BYTES[dtype]
    wide = max(4 // e, 1)

    def asked(name, **values):
        plan = sharded(name, slices, docs, shape, P, **values)
        assert plan.padding_tokens == 0
        assert load_imbalance(plan.areas) == 1
        for rank in range(P):
            assert sent_bytes(plan.messages(rank, "fwd")) == comm_bytes(plan, "fwd")
        return comm_bytes(plan, "fwd"), comm_bytes(plan, "bwd")

    kv = 2 * L * G * D * e
    grads = max(P - 2, 0) * wide + min(P - 1, 1)
    assert asked("ring_p2p") == ((P - 1) * kv, (max(P - 2, 0) + grads) * kv)
    reduced = (P - 1) * kv * (wide if P > 2 else 1)
    assert asked("ring_allgather") == ((P - 1) * kv, (P - 1) * kv + reduced)
    # DeepSpeed-Ulysses: four all-to-alls of N h / P each, of which a share 1/P stays.
    every = L * D * e * (P - 1) * (2 * H + 2 * G) // P
    assert asked("ulysses") == (every, every)
    for degree in (d for d in range(1, P + 1) if P % d == 0):
        R = P // degree
        heads = L * D * e * (degree - 1) * (2 * H + 2 * G) // degree
        ring = (R - 1) * kv
        grads = max(R - 2, 0) * wide + min(R - 1, 1)
        assert asked("usp", ulysses_degree=degree) == (heads + ring, heads + (max(R - 2, 0) + grads) * kv)
        assert asked("loongtrain", ulysses_degree=degree, window=1)[0] == heads + ring
        assert asked("loongtrain", ulysses_degree=degree, window=R) == asked("usp", ulysses_degree=degree)
    if P & (P - 1) == 0:
        # One sample on all ranks: only half of a zigzag's tokens live where they work, at most.
        plan = sharded("hybrid_dcp", slices, docs, shape, P, reshard=False)
        assert (comm_bytes(plan, "fwd"), comm_bytes(plan, "bwd")) == asked("ring_p2p")


@settings(deadline=None, max_examples=30)
@given(data=st.data(), mask=masks())
def test_moving_samples_costs_what_their_tokens_weigh(data, mask):
    """Beside what the rings send: queries, keys and values on their way to work, outputs and gradients on their way home."""
    docs, slices = mask
    shape, cp_size = data.draw(st.sampled_from(accepted("hybrid_dcp")))
    tokens_per_rank = data.draw(st.sampled_from((None, 2, 5)))
    moved, still = (
        sharded("hybrid_dcp", slices, docs, shape, cp_size, tokens_per_rank=tokens_per_rank, reshard=reshard)
        for reshard in (True, False)
    )
    H, G, bytes_ = shape.num_heads_q, shape.num_heads_kv, shape.head_dim * DTYPE_BYTES[shape.dtype]
    for rank in range(cp_size):
        (q_out, q_in), (k_out, k_in) = (
            (len(np.setdiff1d(home, work)), len(np.setdiff1d(work, home)))
            for home, work in (
                (moved.q_tokens(rank), still.q_tokens(rank)),
                (moved.k_tokens(rank), still.k_tokens(rank)),
            )
        )
        sent = {
            pass_: sent_bytes(moved.messages(rank, pass_)) - sent_bytes(still.messages(rank, pass_)) for pass_ in PASSES
        }
        assert sent["fwd"] == (q_out * H + k_out * 2 * G + q_in * H) * bytes_
        assert sent["bwd"] == (q_out * H + q_in * H + k_in * 2 * G) * bytes_
        assert sent["fwd_bwd"] == sent["fwd"] + sent["bwd"]


def test_heads_that_are_fewer_than_ranks_are_sent_to_each_that_needs_them():
    docs, slices = one_document(8, 16)
    shape = Shape(batch=2, num_heads_q=16, num_heads_kv=2, head_dim=4, dtype="float16")
    plan = sharded("ulysses", slices, docs, shape, 8)
    to = {}
    for one in plan.messages(0, "fwd"):
        if one.kind == "send":
            to.setdefault(one.content, {}).setdefault(one.peer, 0)
            to[one.content][one.peer] += one.num_bytes
    assert to["q"] == dict.fromkeys(range(1, 8), 2 * 16 * 4 * 2 * 2)
    assert to["kv"] == dict.fromkeys(range(1, 8), 2 * 2 * 16 * 4 * 1 * 2)
    assert to["out"] == to["q"]


@pytest.mark.parametrize("window", [1, 2, 4, 8])
def test_double_rings_send_as_much_as_single_ones_in_the_forward(window):
    docs, slices = one_document(8)
    shape = shape_of(4, 2)
    single = sharded("ring_p2p", slices, docs, shape, 8)
    double = sharded("loongtrain", slices, docs, shape, 8, ulysses_degree=1, window=window)
    total = sum(sent_bytes(single.messages(rank, "fwd")) for rank in range(8))
    assert sum(sent_bytes(double.messages(rank, "fwd")) for rank in range(8)) == total
    kept = 8 // window if window > 1 else 1
    keys = [
        one for rank in range(8) for one in double.messages(rank, "bwd") if (one.kind, one.content) == ("send", "kv")
    ]
    assert len(keys) == 8 * (8 - 1 - kept)
    grads = [
        one for rank in range(8) for one in double.messages(rank, "bwd") if (one.kind, one.content) == ("send", "dkv")
    ]
    assert len(grads) == 8 * 7
    assert len({one.num_bytes for one in grads}) == 2  # results of a kernel, and float32 sums


def test_keys_stop_where_nobody_needs_them():
    seqlen = 8 * 64
    rows = [(0, 4, 0, 4, 1), (4, seqlen, 1, seqlen, 3)]  # a window of 4 keys
    slices = AttnSlices.from_rows(rows, seqlen_q=seqlen, seqlen_k=seqlen)
    shape = shape_of()
    windowed = sharded("ring_p2p", slices, [seqlen], shape, 8)
    separate = sharded("ring_p2p", AttnSlices.from_rows([], seqlen_q=seqlen, seqlen_k=seqlen), [seqlen], shape, 8)
    everything = sharded("ring_p2p", *reversed(one_document(8)), shape, 8)
    assert comm_bytes(separate, "fwd_bwd") == 0
    # Each rank sees keys of its neighbours on both sides, so keys go all the way round but not to everybody's use.
    assert windowed.partials == 3
    assert comm_bytes(windowed, "fwd") <= comm_bytes(everything, "fwd")


@pytest.mark.parametrize(
    ("documents_", "cp_size", "padded"),
    [([10], 3, 2), ([2], 3, 4), ([130], 4, 6), ([1, 1, 1], 2, 9), ([16], 2, 0)],
)
def test_short_and_odd_documents_are_padded_not_dropped(documents_, cp_size, padded):
    seqlen = sum(documents_)
    slices = AttnSlices.from_rows([(0, seqlen, 0, seqlen, 1)], seqlen_q=seqlen, seqlen_k=seqlen)
    plan = sharded("ring_p2p", slices, documents_, shape_of(), cp_size)
    assert plan.padding_tokens == padded
    assert sum(len(plan.q_tokens(rank)) for rank in range(cp_size)) == seqlen


def test_a_rank_of_padding_alone_computes_nothing():
    slices = AttnSlices.from_rows([(0, 2, 0, 2, 1)], seqlen_q=2, seqlen_k=2)
    for name in ("ring_p2p", "ring_allgather", "ulysses"):
        plan = sharded(name, slices, [2], shape_of(3, 3), 3)
        assert sorted(len(plan.q_tokens(rank)) for rank in range(3)) == [0, 1, 1]


def test_hybrid_groups_fit_the_documents():
    docs = [4096, 1024, 512, 512, 1024, 1024]
    bounds = np.cumsum([0, *docs])
    rows = [(s, e, s, e, 1) for s, e in itertools.pairwise(bounds)]
    slices = AttnSlices.from_rows(rows, seqlen_q=8192, seqlen_k=8192)
    plan = sharded("hybrid_dcp", slices, docs, shape_of(), 8)
    sizes = {group.size: group for group in plan.groups}
    assert max(sizes) >= 4
    assert load_imbalance(plan.areas) < 1.3
    even = sharded("hybrid_dcp", slices, docs, shape_of(), 8, reshard=False)
    assert even.areas == plan.areas
    assert comm_bytes(even, "fwd") < comm_bytes(plan, "fwd")


def test_a_million_tokens_over_64_ranks_take_little_time():
    rng = np.random.default_rng(0)
    cuts = np.sort(rng.choice(np.arange(1, 2**20), 640, replace=False))
    docs = np.diff(np.concatenate([[0], cuts, [2**20]]))
    bounds = np.concatenate([[0], np.cumsum(docs)])
    rows = np.stack([bounds[:-1], bounds[1:], bounds[:-1], bounds[1:]], axis=1)
    slices = AttnSlices(ranges=rows, types=np.ones(641, dtype=np.int8), seqlen_q=2**20, seqlen_k=2**20)
    shape = Shape(batch=1, num_heads_q=64, num_heads_kv=8, head_dim=128, dtype="bfloat16")
    for name in OWN:
        started = time.process_time()
        plan = sharded(name, slices, docs, shape, 64)
        plan.areas, comm_bytes(plan, "fwd_bwd"), plan.padding_tokens, plan.partials
        took = time.process_time() - started
        made = time.process_time()
        plan.tasks(5)
        print(f"{name}: facts {took:.2f} s, one rank {time.process_time() - made:.2f} s")
        assert took < 5
        assert time.process_time() - made < 5
