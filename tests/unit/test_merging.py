"""Merging of partial results: any split of keys against the whole, and rows where the arithmetic could go wrong."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnspec.support.merging import merge_partials

INF, NAN = math.inf, math.nan


def partial(q, k, v):
    """out (B, T, N, D) and lse (B, T, N) over the keys given."""
    scores = torch.einsum("btnd,bsnd->btns", q, k)
    lse = torch.logsumexp(scores, -1)
    return torch.einsum("btns,bsnd->btnd", torch.exp(scores - lse[..., None]), v), lse


def merged(parts, dtype=torch.float32):
    held = [(out.to(dtype), lse.float()) for out, lse in parts]
    (out, lse), *others = [(out.clone(), lse.clone()) for out, lse in held]
    for other in others:
        merge_partials(out, lse, *other)
    return out, lse


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 2**31), st.sampled_from([1.0, 30.0]))
def test_parts_over_disjoint_keys_merge_to_the_whole(lengths, seed, spread):
    generator = torch.Generator().manual_seed(seed)
    total = sum(lengths)
    q = torch.randn(2, 3, 2, 4, generator=generator, dtype=torch.float64) * spread
    k, v = (torch.randn(2, total, 2, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    wanted_out, wanted_lse = partial(q, k, v)
    parts = [partial(q, *pair) for pair in zip(k.split(lengths, 1), v.split(lengths, 1), strict=True)]
    out, lse = merged(parts)
    torch.testing.assert_close(out.double(), wanted_out, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(lse.double(), wanted_lse, rtol=1e-5, atol=1e-5)


def one(out, lse):
    return torch.full((1, 1, 1, 2), float(out)), torch.full((1, 1, 1), float(lse))


@pytest.mark.parametrize(
    ("first", "second", "wanted"),
    [
        ((1.0, 0.0), (5.0, math.log(3)), (4.0, math.log(4))),  # adding the two would give an lse of log(3)
        ((1.0, 0.0), (5.0, 100.0), (5.0, 100.0)),  # exp(100) is more than float32 holds
        ((5.0, 1.0), (9.0, -INF), (5.0, 1.0)),
        ((5.0, -INF), (9.0, 1.0), (9.0, 1.0)),
        ((5.0, 1.0), (9.0, INF), (5.0, 1.0)),  # older FlashAttention's sign of "no key"
        ((5.0, INF), (9.0, 1.0), (9.0, 1.0)),
        ((0.0, -INF), (0.0, -INF), (0.0, -INF)),
        ((7.0, INF), (7.0, INF), (0.0, -INF)),
        ((7.0, INF), (7.0, -INF), (0.0, -INF)),
        ((NAN, -INF), (9.0, 1.0), (9.0, 1.0)),  # what an unwritten row holds does not count
        ((5.0, 1.0), (NAN, -INF), (5.0, 1.0)),
        ((2.0, 0.0), (4.0, 0.0), (3.0, math.log(2))),
        ((2.0, 200.0), (4.0, -200.0), (2.0, 200.0)),
        ((2.0, -2000.0), (4.0, -2000.0), (3.0, -2000.0 + math.log(2))),
        ((2.0, 2000.0), (4.0, 2000.0), (3.0, 2000.0 + math.log(2))),
    ],
)
def test_two_rows_merge_by_their_weights(first, second, wanted):
    out, lse = one(*first)
    merge_partials(out, lse, *one(*second))
    assert out.flatten().tolist() == pytest.approx([wanted[0]] * 2)
    assert lse.item() == pytest.approx(wanted[1])


def test_it_works_in_place_on_views():
    whole_out, whole_lse = torch.zeros(1, 6, 2, 3), torch.zeros(2, 6)
    out, lse = whole_out[:, 2:4], whole_lse.view(2, 1, 6).permute(1, 2, 0)[:, 2:4]
    merge_partials(out, lse, torch.full((1, 2, 2, 3), 4.0), torch.zeros(1, 2, 2))
    assert whole_out[0, :, 0, 0].tolist() == [0, 0, 2, 2, 0, 0]
    assert whole_lse[1].tolist() == pytest.approx([0, 0, math.log(2), math.log(2), 0, 0])


def test_it_rounds_once():
    first, second = one(1.0, 0.0), one(1.0 + 2**-7, 0.0)
    out, lse = merged([first, second], torch.bfloat16)
    assert out.dtype == torch.bfloat16
    assert lse.dtype == torch.float32
    assert out.flatten().tolist() == [1.0, 1.0]  # 1 + 2**-8 rounds to even
