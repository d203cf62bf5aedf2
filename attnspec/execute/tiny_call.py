"""One tiny verified call of a kernel: what "usable" means. An import proves little: placeholders import, too."""

from __future__ import annotations

from types import ModuleType

import torch

from attnspec import plugins
from attnspec.errors import UnsupportedError
from attnspec.execute.tensors import TORCH_DTYPES, make
from attnspec.shape import DType, Shape
from attnspec.slices import AttnSlices, SliceType
from attnspec.support import BoundKernel, Device, Problem

NUM_TOKENS = 200
NUM_HEADS = 2
MAX_HEAD_DIM = 128
BOUND = 0.03
"""Relative RMS error. In bfloat16 right kernels stay under 0.01; a wrong mask, scale or head order is over 0.1."""


def tiny_call(module: ModuleType, provider: str, device: Device, backend: str | None = None) -> bool:
    """Forward and backward of 2 heads x 200 tokens, causal, against the reference; whether a backward was there.

    Raises UnsupportedError where the kernel refuses, or when a result is wrong ("broken_package"); whatever else the
    library raises goes through.
    """
    try:
        _verify(module, provider, device, backend, needs_backward=True)
    except UnsupportedError as error:
        if error.reason_code != "direction":
            raise
        _verify(module, provider, device, backend, needs_backward=False)
        return False
    return True


def _verify(module: ModuleType, provider: str, device: Device, backend: str | None, *, needs_backward: bool) -> None:
    """One call with tensors that any kernel of its kind takes, in bfloat16 where it can."""
    support = module.SUPPORT
    dtype: DType = "bfloat16" if "bfloat16" in support.dtypes else support.dtypes[0]
    limit = min(support.max_head_dim, MAX_HEAD_DIM)
    head_dim = limit - limit % support.head_dim_multiple
    whole = (0, NUM_TOKENS, 0, NUM_TOKENS, SliceType.CAUSAL)
    problem = Problem(
        shape=Shape(batch=1, num_heads_q=NUM_HEADS, num_heads_kv=NUM_HEADS, head_dim=head_dim, dtype=dtype),
        slices=AttnSlices.from_rows([whole], seqlen_q=NUM_TOKENS, seqlen_k=NUM_TOKENS),
        needs_backward=needs_backward,
        device=device,
    )
    q, k, v, dout = (
        make(
            "tiny call",
            name,
            seqlen=NUM_TOKENS,
            batch=1,
            num_heads=NUM_HEADS,
            head_dim=head_dim,
            dtype=TORCH_DTYPES[dtype],
            device=torch.device(device.type),
        )
        for name in ("q", "k", "v", "dout")
    )
    found = _run(module, provider, backend, problem, q, k, v, dout)
    wanted = _run(plugins.load("kernels", "reference"), "torch", None, problem, q, k, v, dout)
    for name, value in found.items():
        error = _error(value, wanted[name])
        if not error <= BOUND:
            raise UnsupportedError(
                "broken_package",
                f"a call with {NUM_HEADS} heads and {NUM_TOKENS} tokens gives a wrong {name}: "
                f"relative error {error:.2g}, at most {BOUND} is right",
            )


def _run(
    module: ModuleType,
    provider: str,
    backend: str | None,
    problem: Problem,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dout: torch.Tensor,
) -> dict[str, torch.Tensor]:
    module.SUPPORT.check(problem)
    params = module.Params() if backend is None else module.Params(backend=backend)
    lowered = module.lower(problem, params, provider)
    bound: BoundKernel = module.bind(lowered, problem, params, provider, problem.device)
    inputs = bound.load(q, k, v)
    forward = bound.forward(inputs)
    out, lse = bound.canonical_out(forward)
    found = {"out": out} if lse is None else {"out": out, "lse": lse}
    if problem.needs_backward:
        grads = bound.canonical_grads(bound.backward(inputs, forward, bound.load_dout(dout)))
        found |= dict(zip(("dq", "dk", "dv"), grads, strict=True))
    return found


def _error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Relative RMS error; NaN when anything is not finite."""
    found, wanted = found.double(), wanted.double()
    return float((found - wanted).norm() / wanted.norm())
