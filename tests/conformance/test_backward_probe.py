"""The backward of the mask probe: dQ of every row, also of those that no sample holds."""

import numpy as np
import pytest
import torch
from mask_examples import example
from planted_kernels import right_kernel

from attnspec.execute.backward_probe import check_dq
from attnspec.execute.prepared import Prepared
from attnspec.execute.probe import code_values, make_codes
from attnspec.execute.rows import sample_rows
from attnspec.execute.tensors import make_tensors
from attnspec.execute.verify import Checks, verify
from attnspec.record.status import Status
from attnspec.shape import Shape
from attnspec.slices import AttnSlices, row_intervals
from attnspec.stats import seed_of

CPU = torch.device("cpu")
DOCS = [700, 3, 321]
MASKS = {
    "causal": {},
    "varlen_full": {},
    "varlen_causal": {},
    "sliding_window_causal": {"window": 200},
    "varlen_block_causal": {"block": 64},
}


def setting(mask, *, dtype="bfloat16", heads=(2, 1), head_dim=32):
    slices = example(mask, DOCS, **MASKS[mask])
    shape = Shape(batch=1, num_heads_q=heads[0], num_heads_kv=heads[1], head_dim=head_dim, dtype=dtype)
    size = {"seqlen_q": slices.seqlen_q, "seqlen_k": slices.seqlen_k}
    return slices, shape, make_tensors("w", shape, **size, needs_backward=True, device=CPU)


def verified(slices, shape, tensors, spoil):
    """spoil: what becomes of dQ; where it was computed stays as the kernel has it."""
    kernel = right_kernel(slices, shape.head_dim)
    backward = kernel.backward

    def spoilt(inputs, forward, dout):
        dq, dk, dv = backward(inputs, forward, dout)
        spoil(dq)
        return dq, dk, dv

    kernel.backward = spoilt
    prepared = Prepared(bound=kernel, needs_backward=True, lower_s=0.0)
    return verify(prepared, Checks.of("w", shape, slices, tensors), tensors)


def unsampled_run(slices, rng, length):
    """Neighbouring rows of which the sample holds none."""
    rows = sample_rows(slices, seed=seed_of("w:rows"))
    starts = np.setdiff1d(np.arange(slices.seqlen_q - length), rows[:, None] - np.arange(length))
    start = int(rng.choice(starts))
    return slice(start, start + length)


@pytest.mark.parametrize("length", [1, 16])
@pytest.mark.parametrize("mask", MASKS)
def test_rows_of_no_sample_that_are_left_out_are_caught(mask, length):
    slices, shape, tensors = setting(mask)
    rows = unsampled_run(slices, np.random.default_rng(length), length)
    found = verified(slices, shape, tensors, lambda dq: dq[:, rows].zero_())
    assert (found.status, found.reason_code) == (Status.WRONG, "dq")
    assert found.reason.startswith("dq of the mask probe: row ")
    assert int(found.reason.split("row ")[1].split(",")[0]) in range(rows.start, rows.stop)


@pytest.mark.parametrize("by", [0.9, 1.1, -1.0])
def test_one_row_of_one_head_of_another_size_is_caught(by):
    slices, shape, tensors = setting("varlen_causal")
    (row,) = range(slices.seqlen_q)[unsampled_run(slices, np.random.default_rng(3), 1)]
    found = verified(slices, shape, tensors, lambda dq: dq[:, row, 1].mul_(by))
    assert found.reason_code == "dq", found
    assert f"row {row}, head 1" in found.reason


def dq_of_probe(slices, shape, tensors, kernel=None):
    """(codes, dQ of the probe by a right kernel for `slices`, or by another)."""
    intervals = row_intervals(slices)
    codes = make_codes(shape, slices.seqlen_k, intervals, seed=1, device=CPU)
    kernel = right_kernel(slices, shape.head_dim) if kernel is None else kernel
    inputs = torch.zeros_like(tensors.q_BTND), tensors.k_BSGD, code_values(codes, tensors.v_BSGD, None)
    dq, _, _ = kernel.backward(inputs, kernel.forward(inputs), torch.ones_like(tensors.dout_BTND))
    return codes, dq


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("mask", MASKS)
def test_the_unit_is_what_rounding_does(mask, dtype):
    slices, shape, tensors = setting(mask, dtype=dtype)
    codes, dq = dq_of_probe(slices, shape, tensors)
    error = check_dq(codes, tensors.k_BSGD, dq).error
    assert error < 3
    assert dtype == "float32" or error > 0.3


@pytest.mark.parametrize("by", [16, -16])
def test_a_backward_with_another_mask_than_its_forward_is_caught(by):
    slices, shape, tensors = setting("causal")
    kernel = right_kernel(slices, shape.head_dim)
    forward = kernel.forward

    def forward_and_then_another_mask(inputs):
        made = forward(inputs)
        kernel.mask_TS = kernel.mask_TS.clone()
        kernel.mask_TS[300, min(301, 301 + by) : max(301, 301 + by)] = by > 0
        return made

    kernel.forward = forward_and_then_another_mask
    codes, dq = dq_of_probe(slices, shape, tensors, kernel)
    found = check_dq(codes, tensors.k_BSGD, dq)
    assert found.failed
    assert "row 300, head" in found.reason


def test_rows_without_keys_have_no_gradient():
    slices = AttnSlices.from_rows([(20, 80, 9, 70, 3)], seqlen_q=99, seqlen_k=99)
    shape = Shape(batch=2, num_heads_q=2, num_heads_kv=1, head_dim=8, dtype="float32")
    tensors = make_tensors("w", shape, seqlen_q=99, seqlen_k=99, needs_backward=True, device=CPU)
    codes, dq = dq_of_probe(slices, shape, tensors)
    assert not check_dq(codes, tensors.k_BSGD, dq).failed
    dq[1, 5, 0, 3] = 1e-20
    assert "row 5, head 0" in check_dq(codes, tensors.k_BSGD, dq).reason


def test_merged_parts_round_more_and_no_row_hides():
    slices, shape, tensors = setting("causal")
    codes, dq = dq_of_probe(slices, shape, tensors)
    once, merged = (check_dq(codes, tensors.k_BSGD, dq, partials=partials).error for partials in (1, 2))
    assert 0.5 * once < merged < once
    dq[:, 517] = 0
    assert check_dq(codes, tensors.k_BSGD, dq, partials=8).failed
