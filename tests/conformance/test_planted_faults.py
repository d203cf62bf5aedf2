"""Ten planted wrong kernels are caught, and right ones are not accused."""

import numpy as np
import pytest
import torch
from planted_kernels import FAULTS, right_kernel

from attnspec.execute.prepared import Prepared
from attnspec.execute.tensors import make_tensors
from attnspec.execute.verify import Checks, verify
from attnspec.record.status import Status
from attnspec.shape import Shape

CPU = torch.device("cpu")
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 8))]


def verified(kernel_of, slices, *, dtype="bfloat16", seed=0, needs_backward=True, heads=(4, 2), head_dim=64, batch=1):
    shape = Shape(batch=batch, num_heads_q=heads[0], num_heads_kv=heads[1], head_dim=head_dim, dtype=dtype)
    name = f"workload{seed}"
    tensors = make_tensors(
        name,
        shape,
        seqlen_q=slices.seqlen_q,
        seqlen_k=slices.seqlen_k,
        needs_backward=needs_backward,
        device=CPU,
    )
    kernel = kernel_of(right_kernel(slices, head_dim))
    prepared = Prepared(bound=kernel, needs_backward=needs_backward, lower_s=0.0)
    return verify(prepared, Checks.of(name, shape, slices, tensors), tensors)


EXPECTED = {
    "scale_missing": {"dq"},
    "dk_not_summed_over_group": {"dk"},
    "pv_accumulated_narrow": {"out"},
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_caught(name, seed):
    slices, spoil = FAULTS[name](np.random.default_rng([seed, *name.encode()]))
    found = verified(spoil, slices, seed=seed)
    assert found.status is Status.WRONG, (found.error, found.bound)
    assert found.reason_code in EXPECTED.get(name, {"mask_probe"})
    assert not (found.error <= found.bound)
    assert found.reason


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", [name for name in FAULTS if name != "dk_not_summed_over_group"])
def test_planted_fault_is_caught_by_the_forward_alone(name, seed):
    slices, spoil = FAULTS[name](np.random.default_rng([7, seed, *name.encode()]))
    assert verified(spoil, slices, seed=seed, needs_backward=False).status is Status.WRONG


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", FAULTS)
def test_right_kernel_on_the_same_slices_is_not_accused(name, seed):
    slices, _ = FAULTS[name](np.random.default_rng([seed, *name.encode()]))
    found = verified(lambda kernel: kernel, slices, seed=seed)
    assert found.status is Status.OK, found.reason
    assert found.reason_code is None
    assert found.error <= found.bound
