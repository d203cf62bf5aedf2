"""Rows, parts, probe and oracle against dense brute force over any slices."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnspec.execute import identities as identities_module
from attnspec.execute.identities import Identities
from attnspec.execute.oracle import truth
from attnspec.execute.probe import check_probe, code_values, make_codes
from attnspec.execute.rows import components, sample_rows
from attnspec.execute.tensors import Tensors, make, make_tensors
from attnspec.shape import Shape
from attnspec.slices import AttnSlices, dense, row_intervals
from attnspec.support.merging import merge_partials

CPU = torch.device("cpu")


@st.composite
def disjoint_slices(draw, max_len=40):
    """Rectangles of a grid with random gaps, each of any type: disjoint, with empty rows and keys, rectangular."""
    q_cuts = sorted(draw(st.sets(st.integers(0, max_len), min_size=2, max_size=5)))
    k_cuts = sorted(draw(st.sets(st.integers(0, max_len), min_size=2, max_size=5)))
    rows = [
        (q0, q1, k0, k1, draw(st.integers(0, 3)))
        for q0, q1 in itertools.pairwise(q_cuts)
        for k0, k1 in itertools.pairwise(k_cuts)
        if draw(st.booleans())
    ]
    return AttnSlices.from_rows(rows, seqlen_q=q_cuts[-1] + 1, seqlen_k=k_cuts[-1] + 1)


@settings(max_examples=25, deadline=None)
@given(disjoint_slices())
def test_parts_are_the_connected_ones_of_the_dense_picture(slices):
    of_q, of_k, num_parts = components(slices)
    picture = dense(slices)
    assert np.array_equal(of_q >= 0, picture.any(axis=1))
    # A key inside a slice's bounds may still be seen by nobody; a key that is seen is in a part.
    assert np.all(of_k[picture.any(axis=0)] >= 0)
    for row, key in np.argwhere(picture):
        assert of_q[row] == of_k[key]
    assert set(of_q[of_q >= 0]) == set(range(num_parts))


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=6))
def test_documents_are_parts(docs):
    ends = np.cumsum(docs)
    rows = [(end - size, end, end - size, end, 1) for size, end in zip(docs, ends, strict=True)]
    of_q, of_k, num_parts = components(AttnSlices.from_rows(rows, seqlen_q=int(ends[-1]), seqlen_k=int(ends[-1])))
    assert num_parts == len(docs)
    assert np.array_equal(of_q, np.repeat(np.arange(len(docs)), docs))
    assert np.array_equal(of_k, of_q)


@settings(max_examples=20, deadline=None)
@given(st.integers(65, 5000), st.integers(1, 12), st.integers(0, 2**32))
def test_sampled_rows_hold_every_edge_and_stay_few(seqlen, num_docs, seed):
    rng = np.random.default_rng(seed)
    cuts = np.unique(np.concatenate([[0, seqlen], rng.integers(0, seqlen, num_docs)]))
    slices = AttnSlices.from_rows(
        [(a, b, a, b, 1) for a, b in itertools.pairwise(cuts.tolist())], seqlen_q=seqlen, seqlen_k=seqlen
    )
    rows = sample_rows(slices, seed=seed)
    assert np.array_equal(rows, np.unique(rows))
    assert rows[0] == 0
    assert rows[-1] == seqlen - 1
    for start, end in itertools.pairwise(cuts.tolist()):
        assert {start, min(start + 1, end - 1), max(end - 2, start), end - 1} <= set(rows.tolist())
    assert len(rows) <= 4 * len(slices) + 4 + -(-seqlen // 64)
    assert np.array_equal(rows, sample_rows(slices, seed=seed))


def test_sampled_rows_are_bounded_at_a_million_tokens():
    size = 2**20
    cuts = np.arange(0, size + 1, 256)
    ranges = np.stack([cuts[:-1], cuts[1:], cuts[:-1], cuts[1:]], axis=1)
    slices = AttnSlices(ranges=ranges, types=np.ones(len(ranges), dtype=np.int8), seqlen_q=size, seqlen_k=size)
    assert 1500 < len(sample_rows(slices, seed=1)) <= 2100


def shape_of(dtype="float32", heads=(4, 2), head_dim=16, batch=1):
    return Shape(batch=batch, num_heads_q=heads[0], num_heads_kv=heads[1], head_dim=head_dim, dtype=dtype)


def dense_attention(slices, shape, tensors, dout):
    """Float64 attention by autograd on the whole picture."""
    q, k, v = (one.double().requires_grad_() for one in (tensors.q_BTND, tensors.k_BSGD, tensors.v_BSGD))
    repeated = [one.repeat_interleave(shape.group_size, dim=2).transpose(1, 2) for one in (k, v)]
    scores = q.transpose(1, 2) @ repeated[0].mT / math.sqrt(shape.head_dim)
    scores = scores.masked_fill(~torch.from_numpy(dense(slices)), -math.inf)
    lse = torch.logsumexp(scores, dim=-1)
    p = torch.exp(scores - lse.masked_fill(lse.isneginf(), 0.0)[..., None])
    out = (p @ repeated[1]).transpose(1, 2)
    out.backward(dout.double())
    return out.detach(), lse.detach(), q.grad, k.grad, v.grad


@settings(max_examples=12, deadline=None)
@given(disjoint_slices(), st.integers(1, 2), st.integers(0, 99), st.integers(1, 3))
def test_oracle_equals_dense_attention(slices, batch, seed, partials):
    shape = shape_of(batch=batch)
    tensors = make_tensors(
        f"w{seed}",
        shape,
        seqlen_q=slices.seqlen_q,
        seqlen_k=slices.seqlen_k,
        needs_backward=True,
        device=CPU,
    )
    rows = np.unique(np.random.default_rng(seed).integers(0, slices.seqlen_q, 12))
    found = truth(
        shape,
        slices,
        rows,
        q_BRND=tensors.q_BTND[:, rows],
        k_BSGD=tensors.k_BSGD,
        v_BSGD=tensors.v_BSGD,
        dout_BRND=tensors.dout_BTND[:, rows],
        partials=partials,
    )
    sparse = torch.zeros_like(tensors.dout_BTND)
    sparse[:, rows] = tensors.dout_BTND[:, rows]
    out, lse, dq, dk, dv = dense_attention(slices, shape, tensors, sparse)
    torch.testing.assert_close(found.out_BRND, out[:, rows], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.lse_BNR, lse[:, :, rows], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.grads.dq_BRND, dq[:, rows], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.grads.dk_BSGD, dk, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.grads.dv_BSGD, dv, rtol=1e-12, atol=1e-12)
    for unit in (found.out_unit_R, found.grads.dq_unit_R, found.grads.dk_unit_S, found.grads.dv_unit_S):
        assert bool((unit > 0).all())
        assert bool((unit < 1e-5).all())  # a unit is rounding in float32, never of the size of the values


def test_oracle_in_chunks_is_the_oracle(monkeypatch):
    from attnspec.execute import oracle

    shape, docs = shape_of(), [(0, 70), (70, 75), (75, 200)]
    slices = AttnSlices.from_rows([(a, b, a, b, 1) for a, b in docs], seqlen_q=200, seqlen_k=200)
    tensors = make_tensors("w", shape, seqlen_q=200, seqlen_k=200, needs_backward=True, device=CPU)
    rows = np.arange(0, 200, 3)

    def run():
        return truth(
            shape,
            slices,
            rows,
            q_BRND=tensors.q_BTND[:, rows],
            k_BSGD=tensors.k_BSGD,
            v_BSGD=tensors.v_BSGD,
            dout_BRND=tensors.dout_BTND[:, rows],
        )

    whole = run()
    monkeypatch.setitem(oracle.SCORE_BYTES, "cpu", 8 * 2 * 300)
    parts = run()
    torch.testing.assert_close(parts.out_BRND, whole.out_BRND, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(parts.grads.dk_BSGD, whole.grads.dk_BSGD, rtol=1e-12, atol=1e-14)


@settings(max_examples=20, deadline=None)
@given(disjoint_slices(), st.data())
def test_probe_accepts_the_mask_and_sees_one_changed_cell(slices, data):
    shape = shape_of(head_dim=32)
    intervals = row_intervals(slices)
    codes = make_codes(shape, slices.seqlen_k, intervals, seed=3, device=CPU)
    picture = dense(slices)
    v = code_values(codes, torch.empty(1, slices.seqlen_k, 2, 32), None)[0].double()

    def results(mask):
        count = mask.sum(axis=1)
        weights = torch.from_numpy(mask / np.maximum(count, 1)[:, None])
        out = torch.einsum("ts,sgd->tgd", weights, v).repeat_interleave(2, dim=1)
        lse = torch.from_numpy(np.where(count > 0, np.log(np.maximum(count, 1)), -np.inf))
        return out[None].to(torch.bfloat16), lse.expand(1, 4, -1).float()

    out, lse = results(picture)
    assert not check_probe(codes, out, lse).failed
    row = data.draw(st.integers(0, slices.seqlen_q - 1))
    key = data.draw(st.integers(0, slices.seqlen_k - 1))
    changed = picture.copy()
    changed[row, key] ^= True
    out, lse = results(changed)
    found = check_probe(codes, out, None)
    assert found.failed
    assert found.reason_code == "mask_probe"
    assert f"row {row}," in found.reason
    out, _ = results(picture)
    assert check_probe(codes, out, lse).reason_code == "lse"


def merged_probe(codes, seqlen, first_key=0, swapped=False):
    """What a ring of two gives for a causal mask: bfloat16 means over either half of the keys, merged."""
    sums = torch.zeros(seqlen + 1, *codes.codes_SGD.shape[1:], dtype=torch.float64)
    sums[1:] = codes.codes_SGD.double().cumsum(0)
    rows = torch.from_numpy(codes.rows) + 1
    out = lse = None
    for lo, hi in ((first_key, seqlen // 2), (seqlen // 2, seqlen)):
        end = rows.clamp(lo, hi)
        total, count = sums[end] - sums[lo], (end - lo).double()
        if swapped and not lo:
            total += codes.codes_SGD[-1].double() - codes.codes_SGD[0].double()
        part = (total / count.clamp_min(1)[:, None, None]).bfloat16()[None]
        part_lse = count.log().float()[None, :, None].expand(1, -1, codes.codes_SGD.shape[1])
        if out is None:
            out, lse = part, part_lse.contiguous()
        else:
            merge_partials(out, lse, part, part_lse)
    return out


@pytest.mark.parametrize("seqlen", [512, 16384])
def test_rounded_parts_are_not_accused_and_hide_no_key(seqlen):
    shape = shape_of(head_dim=128)
    slices = AttnSlices.from_rows([(0, seqlen, 0, seqlen, 1)], seqlen_q=seqlen, seqlen_k=seqlen)
    rows = np.unique(np.linspace(0, seqlen - 1, 300).astype(np.int64))
    codes = make_codes(shape, seqlen, row_intervals(slices, rows), seed=1, device=CPU)
    right = merged_probe(codes, seqlen)
    assert not check_probe(codes, right, None, partials=2).failed
    assert check_probe(codes, right, None).failed or seqlen < 1024
    last = slice(-1, None)
    for wrong in (merged_probe(codes, seqlen, first_key=1), merged_probe(codes, seqlen, swapped=True)):
        mixed = right.clone()
        mixed[:, last] = wrong[:, last]
        found = check_probe(codes, mixed, None, partials=2)
        assert found.failed
        assert f"row {seqlen - 1}," in found.reason


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_in_one_row_fails_the_probe(bad):
    slices = AttnSlices.from_rows([(0, 8, 0, 8, 1)], seqlen_q=8, seqlen_k=8)
    codes = make_codes(shape_of(), 8, row_intervals(slices), seed=0, device=CPU)
    out = torch.zeros(1, 8, 4, 16)
    out[0, 5, 3, 2] = bad
    assert check_probe(codes, out, None).failed


@settings(max_examples=12, deadline=None)
@given(disjoint_slices(), st.integers(0, 99))
def test_identities_hold_for_true_gradients_of_any_mask(slices, seed):
    shape = shape_of()
    tensors = make_tensors(
        f"w{seed}", shape, seqlen_q=slices.seqlen_q, seqlen_k=slices.seqlen_k, needs_backward=True, device=CPU
    )
    out, *_, dk, dv = dense_attention(slices, shape, tensors, tensors.dout_BTND)
    identities = Identities(shape, slices, CPU)
    assert not identities.check(tensors, out.float(), dk.float(), dv.float()).failed
    key = int(np.argmax(dense(slices).any(axis=0)))
    if dense(slices).any():
        spoilt = dv.clone()
        spoilt[0, key, 1, 3] += 0.5
        found = identities.check(tensors, out.float(), dk.float(), spoilt.float())
        assert found.failed
        assert "dV of key/value head 1" in found.reason


def test_identities_add_up_over_ranks():
    shape = shape_of()
    slices = AttnSlices.from_rows([(0, 40, 0, 40, 1), (40, 64, 40, 64, 1)], seqlen_q=64, seqlen_k=64)
    tensors = make_tensors("w", shape, seqlen_q=64, seqlen_k=64, needs_backward=True, device=CPU)
    out, *_, dk, dv = dense_attention(slices, shape, tensors, tensors.dout_BTND)
    halves = [np.arange(0, 64, 2), np.arange(1, 64, 2)]
    partial: list[list[torch.Tensor]] = [[], []]
    for rank, rows in enumerate(halves):
        mine = Tensors(
            q_BTND=tensors.q_BTND[:, rows],
            k_BSGD=tensors.k_BSGD[:, rows],
            v_BSGD=tensors.v_BSGD[:, rows],
            dout_BTND=tensors.dout_BTND[:, rows],
        )

        def keep(value, rank=rank):
            partial[rank].append(value)
            return value

        check = Identities(shape, slices, CPU, q_rows=rows, k_rows=rows, reduce=keep)
        found = check.check(mine, out[:, rows].float(), dk[:, rows].float(), dv[:, rows].float())
        assert found.failed  # a part of the sums is not zero
    sums = iter([a + b for a, b in zip(*partial, strict=True)])
    mine = Tensors(
        q_BTND=tensors.q_BTND[:, halves[0]],
        k_BSGD=tensors.k_BSGD[:, halves[0]],
        v_BSGD=tensors.v_BSGD[:, halves[0]],
        dout_BTND=tensors.dout_BTND[:, halves[0]],
    )
    whole = Identities(shape, slices, CPU, q_rows=halves[0], k_rows=halves[0], reduce=lambda value: next(sums))
    out, dk, dv = (part[:, halves[0]].float() for part in (out, dk, dv))
    assert not whole.check(mine, out, dk, dv).failed


@pytest.mark.parametrize(("values", "exchanges"), [(None, 1), (3 * 2 * 52, 2), (2 * 52, 4), (1, 4)])
def test_ranks_add_up_the_sums_of_several_heads_at_once(monkeypatch, values, exchanges):
    """Of 2 parts and 3 x 16 + 4 values of each head and part."""
    shape = Shape(batch=2, num_heads_q=4, num_heads_kv=2, head_dim=16, dtype="float32")
    slices = AttnSlices.from_rows([(0, 40, 0, 40, 1), (40, 64, 40, 64, 1)], seqlen_q=64, seqlen_k=64)
    tensors = make_tensors("w", shape, seqlen_q=64, seqlen_k=64, needs_backward=True, device=CPU)
    out, *_, dk, dv = (part.float() for part in dense_attention(slices, shape, tensors, tensors.dout_BTND))
    dv[1, 50, 0] += 0.5
    expected = Identities(shape, slices, CPU).check(tensors, out, dk, dv)
    assert "dV of key/value head 0, summed over 24 positions from 40 on" in expected.reason
    if values is not None:
        monkeypatch.setattr(identities_module, "VALUES_AT_ONCE", values)
    sizes = []

    def reduce(partial):
        sizes.append(partial.numel())
        return partial

    assert Identities(shape, slices, CPU, reduce=reduce).check(tensors, out, dk, dv) == expected
    assert len(sizes) == exchanges
    assert sum(sizes) == 2 * 2 * 2 * 52


SIZES = {"batch": 2, "num_heads": 3, "head_dim": 8, "dtype": torch.bfloat16, "device": CPU}


class TestTensors:
    def test_rows_are_the_same_whoever_makes_them(self):
        whole = make("w", "q", seqlen=2500, **SIZES)
        rows = np.array([2400, 0, 1023, 1024, 1025, 2499, 7])
        assert torch.equal(make("w", "q", seqlen=2500, rows=rows, **SIZES), whole[:, rows])

    def test_names_workloads_and_blocks_differ_and_repeat(self):
        made = [make(work, name, seqlen=2048, **SIZES) for work in ("a", "b") for name in ("q", "k")]
        assert all(not torch.equal(one, other) for at, one in enumerate(made) for other in made[:at])
        assert not torch.equal(made[0][:, :1024], made[0][:, 1024:])
        assert torch.equal(made[0], make("a", "q", seqlen=2048, **SIZES))

    def test_values_are_standard_normal(self):
        made = make("w", "v", seqlen=4096, **SIZES).double()
        assert abs(float(made.mean())) < 0.02
        assert abs(float(made.std()) - 1) < 0.02
        assert abs(float((made**4).mean()) - 3) < 0.1
