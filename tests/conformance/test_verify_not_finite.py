"""NaN and infinity are accused wherever they are: in a kernel's results, on rows of no sample, and in the oracle itself."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from planted_kernels import right_kernel

from attnspec.execute.prepared import Prepared
from attnspec.execute.rows import sample_rows
from attnspec.execute.tensors import make_tensors
from attnspec.execute.verify import Checks, verify
from attnspec.record.status import Status
from attnspec.shape import Shape
from attnspec.slices import AttnSlices
from attnspec.stats import seed_of

SHAPE = Shape(batch=1, num_heads_q=4, num_heads_kv=2, head_dim=32, dtype="bfloat16")
SEQLEN = 200
SLICES = AttnSlices.from_rows([(0, SEQLEN, 0, SEQLEN, 1)], seqlen_q=SEQLEN, seqlen_k=SEQLEN)
RESULTS = ("out", "dq", "dk", "dv")


@pytest.fixture
def checks():
    tensors = make_tensors(
        "w", SHAPE, seqlen_q=SEQLEN, seqlen_k=SEQLEN, needs_backward=True, device=torch.device("cpu")
    )
    return Checks.of("w", SHAPE, SLICES, tensors), tensors


def verified(kernel, checks):
    return verify(Prepared(bound=kernel, needs_backward=True, lower_s=0.0), *checks)


def spoilt(kernel, name, row, value):
    """One element of a result replaced, in the calls that will be timed: not with the probe's q, nor with a sparse dO."""
    forward, backward = kernel.forward, kernel.backward

    def planted_forward(inputs):
        made = forward(inputs)
        if name == "out" and inputs[0][..., -1].any():
            made.out[0, row, 1, 3] = value
        return made

    def planted_backward(inputs, made, dout):
        grads = backward(inputs, made, dout)
        if name != "out" and dout[0, row].any() and inputs[0][..., -1].any():
            grads[RESULTS.index(name) - 1][0, row, 1, 3] = value
        return grads

    kernel.forward, kernel.backward = planted_forward, planted_backward
    return kernel


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("name", RESULTS)
def test_one_element_of_a_row_that_no_sample_holds(checks, name, value):
    sampled = set(sample_rows(SLICES, seed=seed_of("w:rows")).tolist())
    row = next(row for row in range(SEQLEN) if row not in sampled)
    found = verified(spoilt(right_kernel(SLICES, 32), name, row, value), checks)
    assert (found.status, found.reason_code) == (Status.WRONG, "not_finite")
    assert found.reason == f"{name}: 1 vectors of (row, head) hold NaN or infinity, the first at row {row}, head 1"


def with_nan(value):
    held = value.clone()
    held.view(-1)[held.numel() // 2] = math.nan
    return held


@pytest.mark.parametrize("where", ["out_BRND", "lse_BNR", "out_unit_R", "lse_unit_BNR"])
def test_an_oracle_that_is_not_a_number_hides_no_mismatch(checks, where):
    right = checks[0].truth(1)
    checks[0]._truths[1] = dataclasses.replace(right, **{where: with_nan(getattr(right, where))})
    found = verified(right_kernel(SLICES, 32), checks)
    assert found.status is Status.WRONG
    assert not (found.error <= found.bound)


@pytest.mark.parametrize("where", ["dq_BRND", "dk_BSGD", "dv_BSGD", "dq_unit_R", "dk_unit_S", "dv_unit_S"])
def test_gradients_of_an_oracle_that_are_not_numbers_hide_no_mismatch(checks, where):
    right = checks[0].truth(1)
    grads = dataclasses.replace(right.grads, **{where: with_nan(getattr(right.grads, where))})
    checks[0]._truths[1] = dataclasses.replace(right, grads=grads)
    found = verified(right_kernel(SLICES, 32), checks)
    assert (found.status, found.reason_code) == (Status.WRONG, where[:2])


def test_the_same_kernel_and_oracle_without_it_are_right(checks):
    found = verified(right_kernel(SLICES, 32), checks)
    assert found.status is Status.OK, found.reason
    assert np.isfinite(found.error)
