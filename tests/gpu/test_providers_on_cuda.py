"""Attention libraries by every provider that is installed: masks, odd slices, batches, gradients of parts.

Beside tests/gpu/test_kernels_on_cuda.py, which takes the first provider of every kernel. What is missing is skipped; what
is installed and does not work fails with its own words.
"""

import numpy as np
import pytest
import torch
from dense_attention import inputs, relative_error, truth
from mask_examples import NAMES, example

from attnspec import plugins
from attnspec.errors import UnsupportedError
from attnspec.execute.providers import choose
from attnspec.shape import Shape
from attnspec.slices import AttnSlices, take
from attnspec.support import Device, Problem

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("default"),  # libraries warn as they like
]

DOCUMENTS = [130, 0, 1, 300, 77, 260]
TOTAL = sum(DOCUMENTS)
PARAMS = {
    "sliding_window": {"window": 100},
    "sliding_window_causal": {"window": 100},
    "varlen_block_causal": {"block": 64},
    "prefix_lm_causal": {"prefix": 150},
    "prefix_lm_document": {"prefix": 50},
    "global_sliding_window": {"window": 100, "global_tokens": 40},
}
ODD = {
    "no slice": ([], 300, 400),
    "rows and keys left over": ([(50, 290, 20, 310, 1)], 300, 400),
    "inverse causal": ([(0, 300, 0, 300, 2)], 300, 400),
    "window with more queries than keys": ([(0, 200, 0, 130, 0), (200, 260, 71, 130, 2)], 260, 130),
    "causal, more queries": ([(0, 300, 0, 200, 1)], 300, 200),
    "causal, more keys": ([(0, 200, 0, 300, 1)], 200, 300),
    "one query": ([(0, 1, 0, 300, 0)], 1, 300),
}
VARIANTS = {
    f"{name} {provider.name}{''.join(f' {value}' for value in values.values())}": (name, provider.name, values)
    for name, *variants in (
        ("fa2", {}),
        ("fa3", {}),
        ("fa4", {"backend": "varlen"}, {"backend": "block_sparse"}),
        ("cudnn", {}),
        ("ffa", {}),
        ("ffa_fa4", {}),
        ("flash_mask", {}),
    )
    for provider in plugins.load("kernels", name).PROVIDERS
    for values in variants
}
HEAD_DIM = 128
# A right kernel in bfloat16 stays under 0.01, two merged calls under 0.015; a wrong mask or head order is over 0.1.
OUT_ERROR, LSE_ERROR = 0.02, 2e-3


def problem_of(mask, device, *, batch=1, heads=(4, 2)):
    shape = Shape(batch=batch, num_heads_q=heads[0], num_heads_kv=heads[1], head_dim=HEAD_DIM, dtype="bfloat16")
    return Problem(shape=shape, slices=mask, needs_backward=True, device=device)


class Variant:
    """A kernel of one provider, for whatever mask."""

    def __init__(self, name, provider, values):
        self.module, self.provider = plugins.load("kernels", name), provider
        self.params = self.module.Params(**values)
        self.device = Device(type="cuda", capability=torch.cuda.get_device_capability())

    def bind(self, mask, **named):
        """Raises UnsupportedError."""
        problem = problem_of(mask, self.device, **named)
        self.module.SUPPORT.check(problem)
        lowered = self.module.lower(problem, self.params, self.provider)
        return self.module.bind(lowered, problem, self.params, self.provider, self.device)


@pytest.fixture(params=VARIANTS)
def kernel(request):
    made = Variant(*VARIANTS[request.param])
    try:
        choose(made.module, made.provider, made.device)
    except UnsupportedError as error:
        if error.reason_code in ("missing_package", "device"):
            pytest.skip(error.reason)
        pytest.fail(error.reason)
    return made


def on_device(mask, **named):
    return [part.cuda() for part in inputs(mask, head_dim=HEAD_DIM, dtype=torch.bfloat16, **named)]


def right(mask, q, k, v, dout):
    """The truth, computed on the CPU, on the device."""
    made = truth(mask, *(part.cpu() for part in (q, k, v, dout)))
    return made.out.cuda(), made.lse.cuda(), [grad.cuda() for grad in made.grads]


def check(kernel, mask, **named):
    """What the kernel computes is right; skipped with its reason where it does not take the mask."""
    try:
        bound = kernel.bind(mask, **named)
    except UnsupportedError as error:
        pytest.skip(f"{error.reason_code}: {error.reason}")
    q, k, v, dout = on_device(mask, batch=named.get("batch", 1))
    out_wanted, lse_wanted, grads_wanted = right(mask, q, k, v, dout)
    empty = lse_wanted.isneginf()
    given, given_dout = bound.load(q, k, v), bound.load_dout(dout)
    held = [bound.forward(given)]
    if bound.explicit_backward:
        held.append(bound.load_forward(out_wanted.bfloat16(), lse_wanted.float()))
    out, lse = bound.canonical_out(held[0])
    assert relative_error(out, out_wanted) <= OUT_ERROR
    assert not out.transpose(1, 2)[empty].any()
    if lse is not None:
        assert (lse.isneginf() == empty).all()
        assert not (lse[~empty].double() - lse_wanted[~empty]).abs().gt(LSE_ERROR).any()
    for forward in held:
        for _ in range(1 if bound.frees_graph else 2):
            grads = bound.canonical_grads(bound.backward(given, forward, given_dout))
            for name, grad, wanted in zip(("dq", "dk", "dv"), grads, grads_wanted, strict=True):
                assert relative_error(grad, wanted) <= OUT_ERROR, name


@pytest.mark.parametrize("name", NAMES)
def test_every_mask(kernel, name):
    check(kernel, example(name, DOCUMENTS, **PARAMS.get(name, {})))


@pytest.mark.parametrize("name", ODD)
def test_odd_slices(kernel, name):
    rows, seqlen_q, seqlen_k = ODD[name]
    check(kernel, AttnSlices.from_rows(rows, seqlen_q=seqlen_q, seqlen_k=seqlen_k))


@pytest.mark.parametrize("name", ["causal", "varlen_block_causal"])
def test_a_batch(kernel, name):
    check(kernel, example(name, DOCUMENTS, **PARAMS.get(name, {})), batch=2)


def test_gradients_of_parts_add_up_to_the_whole(kernel):
    mask = example("varlen_causal", DOCUMENTS)
    q, k, v, dout = on_device(mask)
    out, lse, wanted = right(mask, q, k, v, dout)
    total = [torch.zeros_like(part, dtype=torch.float32) for part in (q, k, v)]
    rows = np.array([[0, TOTAL, 0]])
    for start, end in ((0, 200), (200, TOTAL)):
        part = take(mask, rows, np.array([[start, end, 0]]), seqlen_q=TOTAL, seqlen_k=end - start)
        bound = kernel.bind(part)
        if not bound.explicit_backward:
            pytest.skip("no backward from given outputs")
        given = bound.load(q, k[:, start:end].contiguous(), v[:, start:end].contiguous())
        forward = bound.load_forward(out.bfloat16(), lse.float())
        dq, dk, dv = bound.canonical_grads(bound.backward(given, forward, bound.load_dout(dout)))
        total[0] += dq
        total[1][:, start:end] += dk
        total[2][:, start:end] += dv
    for grad, right_grad in zip(total, wanted, strict=True):
        assert relative_error(grad, right_grad) <= OUT_ERROR
