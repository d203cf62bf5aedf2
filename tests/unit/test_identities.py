"""How long sums of gradients may shrink, and no more."""

from __future__ import annotations

import pytest
import torch

from attnspec.execute.identities import FLOAT32_EPS, ROWS_A_STEP, Identities
from attnspec.execute.tensors import make_tensors
from attnspec.shape import Shape
from attnspec.slices import AttnSlices

CPU = torch.device("cpu")
SEQLEN = 4096
SHAPE = Shape(batch=1, num_heads_q=8, num_heads_kv=1, head_dim=8, dtype="float32")
STEPS = SEQLEN * SHAPE.group_size / ROWS_A_STEP


def check(shrink):
    """Gradients whose sums are right but for a share of `shrink`."""
    slices = AttnSlices.from_rows([(0, SEQLEN, 0, SEQLEN, 0)], seqlen_q=SEQLEN, seqlen_k=SEQLEN)
    tensors = make_tensors("w", SHAPE, seqlen_q=SEQLEN, seqlen_k=SEQLEN, needs_backward=True, device=CPU)
    wanted = tensors.dout_BTND.to(torch.float64).sum(dim=(1, 2))
    generator = torch.Generator().manual_seed(0)
    dv = torch.randn((1, SEQLEN, 1, SHAPE.head_dim), dtype=torch.float64, generator=generator) * 0.01
    dv += (wanted * (1 - shrink) - dv.sum(dim=(1, 2)))[:, None, None] / SEQLEN
    out = torch.zeros_like(tensors.q_BTND)
    return Identities(SHAPE, slices, CPU).check(tensors, out, torch.zeros_like(dv).float(), dv.float())


def test_a_sum_may_shrink_by_half_a_unit_a_step():
    assert not check(STEPS * FLOAT32_EPS / 2).failed
    assert not check(0.0).failed


@pytest.mark.parametrize("shrink", [STEPS * FLOAT32_EPS * 2, -STEPS * FLOAT32_EPS * 2, float("nan")])
def test_more_is_wrong(shrink):
    assert check(shrink).failed


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_is_checked_stays_as_it_is(dtype):
    shape = Shape(batch=1, num_heads_q=2, num_heads_kv=1, head_dim=8, dtype=dtype)
    slices = AttnSlices.from_rows([(0, 16, 0, 16, 1)], seqlen_q=16, seqlen_k=16)
    tensors = make_tensors("w", shape, seqlen_q=16, seqlen_k=16, needs_backward=True, device=CPU)
    given = [tensors.q_BTND, tensors.k_BSGD, tensors.v_BSGD]
    before = [one.clone() for one in given]
    Identities(shape, slices, CPU).check(tensors, *given)
    assert all(torch.equal(one, other) for one, other in zip(given, before, strict=True))
