"""Verification of what one rank holds: permuted rows and keys, partial sums, strategies that merge partials."""

import numpy as np
import pytest
import torch
from planted_kernels import FlashLike, slices_of

from attnspec.execute.prepared import Prepared
from attnspec.execute.tensors import make_tensors
from attnspec.execute.verify import Checks, verify, worst_of
from attnspec.record.status import Status
from attnspec.shape import Shape
from attnspec.slices import dense

SHAPE = Shape(batch=1, num_heads_q=4, num_heads_kv=2, head_dim=32, dtype="bfloat16")


def permuted(seed, spoil=lambda kernel: kernel):
    """A rank that holds all rows and keys in orders of its own."""
    slices = slices_of("varlen_causal", 300, [120, 40, 140])
    rng = np.random.default_rng(seed)
    q_rows, k_rows = rng.permutation(300), rng.permutation(300)
    sizes = {"seqlen_q": 300, "seqlen_k": 300, "needs_backward": True, "device": torch.device("cpu")}
    whole = make_tensors("w", SHAPE, **sizes)
    mine = make_tensors("w", SHAPE, **sizes, q_rows=q_rows, k_rows=k_rows)
    mask = torch.from_numpy(np.ascontiguousarray(dense(slices)[np.ix_(q_rows, k_rows)]))
    kernel = spoil(FlashLike(mask_TS=mask, scale=32**-0.5))
    checks = Checks.of("w", SHAPE, slices, whole)
    checks.q_rows, checks.k_rows = q_rows, k_rows
    prepared = Prepared(bound=kernel, needs_backward=True, lower_s=0.0, q_rows=q_rows, k_rows=k_rows)
    return verify(prepared, checks, mine), q_rows, k_rows


@pytest.mark.parametrize("seed", range(2))
def test_rows_in_any_order_verify(seed):
    found, *_ = permuted(seed)
    assert found.status is Status.OK, found.reason


def test_a_wrong_row_is_named_by_its_place_in_the_whole_sequence():
    def spoil(kernel):
        kernel.mask_TS[7, kernel.mask_TS[7].nonzero()[0]] = False
        return kernel

    found, q_rows, _ = permuted(3, spoil)
    assert found.reason_code == "mask_probe"
    assert f"row {q_rows[7]}," in found.reason


@pytest.mark.parametrize(("in_probe", "words"), [(True, "probe: key {}, "), (False, "of key {} ")])
def test_a_wrong_key_is_named_by_its_place_in_the_whole_sequence(in_probe, words):
    spoilt = []

    def spoil(kernel):
        backward = kernel.backward

        def wrong(inputs, forward, dout):
            dq, dk, dv = backward(inputs, forward, dout)
            if not in_probe and not inputs[0][..., -1].any():
                return dq, dk, dv
            spoilt.append(int(dv.float().square().sum(dim=(0, 2, 3)).argmax()))
            dv[:, spoilt[0]] *= 1.25
            return dq, dk, dv

        kernel.backward = wrong
        return kernel

    found, _, k_rows = permuted(4, spoil)
    assert found.reason_code == "dv"
    assert words.format(k_rows[spoilt[0]]) in found.reason


class Merging(FlashLike):
    """Two halves of the keys, each rounded, merged by lse: what a ring of two does."""

    def forward(self, inputs):
        q, k, v = inputs
        half = k.shape[1] // 2
        parts = []
        for keys in (slice(0, half), slice(half, None)):
            kernel = FlashLike(mask_TS=self.mask_TS[:, keys], scale=self.scale)
            parts.append(kernel.forward((q, k[:, keys], v[:, keys])))
        lse = torch.logaddexp(parts[0].lse, parts[1].lse)
        out = sum(
            part.out.float() * torch.exp(part.lse - lse).transpose(1, 2)[..., None].nan_to_num(0.0) for part in parts
        )
        made = parts[0]
        made.out, made.lse = out.to(q.dtype), lse
        return made


def test_units_of_a_merging_strategy_count_its_partials():
    slices = slices_of("full", 256)
    tensors = make_tensors("w", SHAPE, seqlen_q=256, seqlen_k=256, needs_backward=True, device=torch.device("cpu"))
    checks = Checks.of("w", SHAPE, slices, tensors)
    errors = {}
    for partials in (1, 2):
        kernel = Merging(mask_TS=torch.from_numpy(dense(slices)), scale=32**-0.5)
        prepared = Prepared(bound=kernel, needs_backward=True, lower_s=0.0, partials=partials)
        found = verify(prepared, checks, tensors)
        assert found.status is Status.OK, found.reason
        errors[partials] = checks.truth(partials).out_unit_R.mean()
    assert errors[2] > 1.05 * errors[1]


def test_keys_of_a_short_document_are_split_into_partials_as_well():
    """Documents of four keys: the row's unit counts a rounding per partial, however long the whole sequence is."""
    slices = slices_of("varlen_full", 256, [4] * 64)
    tensors = make_tensors("w", SHAPE, seqlen_q=256, seqlen_k=256, needs_backward=True, device=torch.device("cpu"))
    checks = Checks.of("w", SHAPE, slices, tensors)
    whole, split = checks.truth(1), checks.truth(2)
    assert split.out_unit_R.mean() > 1.2 * whole.out_unit_R.mean()
    assert split.grads.dq_unit_R.mean() > 1.1 * whole.grads.dq_unit_R.mean()
    assert torch.equal(split.out_BRND, whole.out_BRND)


def test_several_verifications_are_as_bad_as_the_worst():
    good, _, _ = permuted(0)
    bad, _, _ = permuted(0, lambda kernel: FlashLike(mask_TS=kernel.mask_TS, scale=1.0))
    assert worst_of([good, bad]).status is Status.WRONG
    assert worst_of([good, bad]).reason == bad.reason
    assert worst_of([good, good]).verify_s == pytest.approx(2 * good.verify_s)
