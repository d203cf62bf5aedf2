"""Shipped kernels that are right are never accused: many masks, dtypes and seeds."""

import numpy as np
import pytest
import torch
from mask_examples import NAMES, example

from attnspec.errors import UnsupportedError
from attnspec.execute.prepared import prepare_kernel
from attnspec.execute.tensors import make_tensors
from attnspec.execute.verify import Checks, verify
from attnspec.record.status import Status
from attnspec.shape import Shape
from attnspec.slices import AttnSlices
from attnspec.support import Device, Problem
from attnspec.wire import Implementation

CPU = Device(type="cpu")
VARIANTS = [
    ("reference", None, "float64"),
    ("reference", None, "bfloat16"),
    ("sdpa", None, "float32"),
    ("sdpa", "math", "float32"),
    ("sdpa", "math", "bfloat16"),
    ("sdpa", "flash", "bfloat16"),
    ("sdpa", "flash", "float16"),
    ("sdpa", "flash", "float64"),
]
ODD = {
    "more queries than keys": AttnSlices.from_rows([(0, 150, 0, 90, 1)], seqlen_q=150, seqlen_k=90),
    "more keys than queries": AttnSlices.from_rows([(0, 90, 0, 150, 1)], seqlen_q=90, seqlen_k=150),
    "rows and keys left over": AttnSlices.from_rows([(20, 80, 9, 70, 3), (90, 95, 0, 9, 2)], seqlen_q=99, seqlen_k=99),
}
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 12))]


def verified(kernel, backend, dtype, slices, seed, heads=(4, 2), head_dim=32):
    shape = Shape(batch=1, num_heads_q=heads[0], num_heads_kv=heads[1], head_dim=head_dim, dtype=dtype)
    problem = Problem(shape=shape, slices=slices, needs_backward=True, device=CPU)
    prepared = prepare_kernel(Implementation(kernel=kernel, backend=backend), problem, "torch")
    tensors = make_tensors(
        f"w{seed}",
        shape,
        seqlen_q=slices.seqlen_q,
        seqlen_k=slices.seqlen_k,
        needs_backward=True,
        device=torch.device("cpu"),
    )
    return verify(prepared, Checks.of(f"w{seed}", shape, slices, tensors), tensors)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("kernel", "backend", "dtype"), VARIANTS)
def test_right_kernels_verify(kernel, backend, dtype, seed):
    rng = np.random.default_rng([seed, len(dtype)])
    docs = rng.integers(1, 130, 3).tolist()
    odd = ODD[list(ODD)[int(rng.integers(len(ODD)))]]
    for slices in (*(example(name, docs) for name in rng.choice(NAMES, 2, replace=False)), odd):
        found = verified(kernel, backend, dtype, slices, seed)
        assert found.status is Status.OK, found.reason


@pytest.mark.parametrize(("heads", "head_dim"), [((1, 1), 8), ((6, 1), 24), ((3, 3), 128)])
def test_any_shape_verifies(heads, head_dim):
    found = verified("sdpa", "flash", "bfloat16", example("varlen_causal", [40, 70, 1]), 5, heads, head_dim)
    assert found.status is Status.OK, found.reason


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "backend", "dtype"), VARIANTS[2:7])
def test_long_rows_verify(kernel, backend, dtype):
    for name in ("full", "causal", "varlen_block_causal"):
        found = verified(kernel, backend, dtype, example(name, [1700, 300]), 1)
        assert found.status is Status.OK, found.reason


def test_a_backend_that_a_kernel_has_not_is_unsupported():
    with pytest.raises(UnsupportedError, match="reference has no variants, got 'fast'"):
        verified("reference", "fast", "float32", example("full", [8]), 0)
