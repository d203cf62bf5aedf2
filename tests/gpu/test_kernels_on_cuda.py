"""Every kernel that runs on this GPU against float64: out, lse, gradients, and gradients from a merged (out, lse)."""

import pytest
import torch
from dense_attention import inputs, relative_error, truth
from mask_examples import NAMES, example

from attnspec import plugins
from attnspec.errors import UnsupportedError
from attnspec.execute.providers import beside, choose
from attnspec.shape import Shape
from attnspec.slices import AttnSlices
from attnspec.support import Device, Problem
from attnspec.worker.doctor import present_device

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("default"),  # libraries warn as they like
]
VARIANTS = [
    *((name, {}) for name in plugins.names("kernels") if name not in ("sdpa", "flex")),
    *(("sdpa", {"backend": backend}) for backend in (None, "cudnn", "flash", "math")),
    ("sdpa", {"backend": "efficient", "kv_repeat": True}),
    ("flex", {"backend": "TRITON"}),
    ("flex", {"backend": "TRITON", "lse": True}),
    ("flex", {"backend": "FLASH"}),
    ("flex", {"backend": "FLASH", "lse": True}),
]
# bfloat16: plain attention is within 4e-3 of float64 on these masks, a wrong mask, scale or head order over 0.1.
ERROR, LSE_ERROR = 0.012, 1e-3
RECTANGLES = {
    "causal, more keys": [(0, 200, 0, 384, 1)],
    "causal, more queries": [(0, 384, 0, 200, 1)],
    "rows and keys left over": [(30, 90, 20, 80, 1)],
}


def cases():
    for name in NAMES:
        yield name, example(name, [130, 0, 1, 100, 153])
    for name, rows in RECTANGLES.items():
        rows_end, keys_end = (384, 384) if rows[0][0] else (rows[0][1], rows[0][3])
        yield name, AttnSlices.from_rows(rows, seqlen_q=rows_end, seqlen_k=keys_end)


@pytest.mark.parametrize("case", [name for name, _ in cases()])
@pytest.mark.parametrize(("name", "values"), VARIANTS, ids=str)
def test_a_kernel_computes_a_mask(name, values, case):
    slices = dict(cases())[case]
    device = present_device()
    module = plugins.load("kernels", name)
    needs_backward = module.SUPPORT.backward.get("cuda", False)
    try:
        provider, _ = choose(module, None, Device(type="cuda", capability=device.capability))
        beside(module, values.get("backend"))
        bound = bind(module, values, slices, needs_backward, device, provider)
    except UnsupportedError as error:
        pytest.skip(f"{error.reason_code}: {error.reason}")
    q, k, v, dout = (part.cuda() for part in inputs(slices, heads_q=8, head_dim=128, dtype=torch.bfloat16))
    wanted = truth(slices, q, k, v, dout)
    given, given_dout = bound.load(q, k, v), bound.load_dout(dout)
    forward = bound.forward(given)
    out, lse = bound.canonical_out(forward)
    assert relative_error(out, wanted.out) <= ERROR
    empty = wanted.lse.isneginf()
    assert not out.transpose(1, 2)[empty].any()
    if lse is not None:
        assert (lse.isneginf() == empty).all()
        assert float((lse - wanted.lse)[~empty].abs().max()) <= LSE_ERROR
    if not needs_backward:
        return
    makers = [lambda: bound.forward(given)]
    if bound.explicit_backward:
        makers.append(lambda: bound.load_forward(wanted.out.to(q.dtype).contiguous(), wanted.lse.float()))
    for make in makers:
        grads = bound.canonical_grads(bound.backward(given, make(), given_dout))
        for grad, right in zip(grads, wanted.grads, strict=True):
            assert relative_error(grad, right) <= ERROR


def bind(module, values, slices, needs_backward, device, provider):
    problem = Problem(
        shape=Shape(batch=1, num_heads_q=8, num_heads_kv=2, head_dim=128, dtype="bfloat16"),
        slices=slices,
        needs_backward=needs_backward,
        device=device,
    )
    module.SUPPORT.check(problem)
    params = module.Params(**values)
    return module.bind(module.lower(problem, params, provider), problem, params, provider, device)
