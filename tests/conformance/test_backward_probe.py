"""The backward of the mask probe: dQ of every row, dK and dV of every key, whatever the sample holds."""

import numpy as np
import pytest
import torch
from mask_examples import example
from planted_kernels import right_kernel

from attnspec.execute.backward_probe import Rounding, check_dk_dv, check_dq, dout_of, halves
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


class Probed:
    """The probe of a setting, and gradients by a right kernel for its slices, or by another."""

    def __init__(self, slices, shape, tensors, kernel=None):
        self.tensors, self.k_rows = tensors, None
        self.codes = make_codes(shape, slices.seqlen_k, row_intervals(slices), seed=1, device=CPU)
        kernel = right_kernel(slices, shape.head_dim) if kernel is None else kernel
        inputs = *halves(tensors.q_BTND, tensors.k_BSGD), code_values(self.codes, tensors.v_BSGD, None)
        dout = dout_of(self.codes, tensors.dout_BTND)
        self.dq, self.dk, self.dv = kernel.backward(inputs, kernel.forward(inputs), dout)

    def found(self, partials=1):
        """What is found of dQ, and of dK and dV."""
        rounding = Rounding.of(self.dq.dtype, 0.0, merged=partials > 1)
        return (
            check_dq(self.codes, self.tensors.k_BSGD, self.dq, rounding),
            check_dk_dv(self.codes, lambda rows: self.tensors.q_BTND[:, rows], self.dk, self.dv, self.k_rows, rounding),
        )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("mask", MASKS)
def test_the_unit_is_what_rounding_does(mask, dtype):
    for found in Probed(*setting(mask, dtype=dtype)).found():
        assert found.error < 3
        assert dtype == "float32" or found.error > 0.3


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
    of_rows, _ = Probed(slices, shape, tensors, kernel).found()
    assert of_rows.failed
    assert "row 300, head" in of_rows.reason


@pytest.mark.parametrize("name", ["dk", "dv"])
@pytest.mark.parametrize("mask", MASKS)
def test_a_tile_of_rows_that_a_tile_of_keys_never_got_is_caught(mask, name):
    """As where a loop over tiles of queries ends one too early."""
    slices, shape, tensors = setting(mask)
    rows, keys = slice(640, 704), slice(512, 576)
    probed, part = Probed(slices, shape, tensors), right_kernel(slices, shape.head_dim)
    assert bool(part.mask_TS[rows, keys].any())
    inputs = *halves(tensors.q_BTND, tensors.k_BSGD), code_values(probed.codes, tensors.v_BSGD, None)
    made = part.forward(inputs)
    part.mask_TS = part.mask_TS.clone()
    part.mask_TS[rows, keys] = False
    lost = part.backward(inputs, made, dout_of(probed.codes, tensors.dout_BTND))
    setattr(probed, name, {"dk": lost[1], "dv": lost[2]}[name])
    _, of_keys = probed.found()
    assert (of_keys.failed, of_keys.reason_code) == (True, name), of_keys
    assert int(of_keys.reason.split("key ")[1].split(",")[0]) in range(keys.start, keys.stop)


def test_rows_and_keys_without_partners_have_no_gradient():
    slices = AttnSlices.from_rows([(20, 80, 9, 70, 3)], seqlen_q=99, seqlen_k=99)
    shape = Shape(batch=2, num_heads_q=2, num_heads_kv=1, head_dim=8, dtype="float32")
    tensors = make_tensors("w", shape, seqlen_q=99, seqlen_k=99, needs_backward=True, device=CPU)
    probed = Probed(slices, shape, tensors)
    assert not any(found.failed for found in probed.found())
    probed.dq[1, 5, 0, 3] = 1e-20
    probed.dk[1, 4, 0, 3] = 1e-20
    of_rows, of_keys = probed.found()
    assert "row 5, head 0" in of_rows.reason
    assert "key 4, key/value head 0" in of_keys.reason


def test_keys_of_one_rank_are_checked_where_they_lie():
    slices, shape, tensors = setting("varlen_causal")
    probed = Probed(slices, shape, tensors)
    probed.k_rows = np.random.default_rng(0).permutation(slices.seqlen_k)[:200]
    probed.dk, probed.dv = (one[:, probed.k_rows] for one in (probed.dk, probed.dv))
    assert not probed.found()[1].failed
    probed.dv[:, 17] *= 2
    assert f"key {probed.k_rows[17]}, " in probed.found()[1].reason


def test_the_workloads_own_tensors_stay_as_they_are():
    """In float64 too, which is what the check computes in."""
    slices, shape, tensors = setting("varlen_causal", dtype="float64")
    given = [tensors.q_BTND, tensors.k_BSGD, tensors.v_BSGD, tensors.dout_BTND]
    before = [one.clone() for one in given]
    Probed(slices, shape, tensors).found()
    assert all(torch.equal(one, other) for one, other in zip(given, before, strict=True))


def test_merged_parts_round_more_and_no_row_hides():
    probed = Probed(*setting("causal"))
    for once, merged in zip(probed.found(1), probed.found(2), strict=True):
        assert 0.5 * once.error < merged.error < once.error
    probed.dq[:, 517] = 0
    probed.dk[:, 517] = 0
    assert all(found.failed for found in probed.found(8))


def test_rows_taken_a_few_at_a_time_give_the_same(monkeypatch):
    probed = Probed(*setting("varlen_causal"))
    whole = probed.found()
    monkeypatch.setattr("attnspec.execute.backward_probe.ROWS_AT_ONCE", 100)
    monkeypatch.setattr("attnspec.execute.backward_probe.CHUNK_VALUES", {"cpu": 2**13})
    for few, one in zip(probed.found(), whole, strict=True):
        assert (few.reason, few.error) == (one.reason, pytest.approx(one.error))
