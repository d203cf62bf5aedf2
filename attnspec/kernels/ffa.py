"""ffa: flex-flash-attention of MagiAttention, for Hopper. Any slices, in one call: AttnSlices are its own description.

Read: magi_attention/functional/flex_flash_attn.py, _flex_flash_attn_jit.py and csrc/flexible_flash_attention of
MagiAttention 1.1.1 (SandAI-org/MagiAttention). Tensors are packed tokens (T, N, D); out and lse come from the
forward, lse (T, N), natural, -inf on rows that see nothing, whose out is 0; the backward takes any (out, lse).

Where no two ranges of queries meet, outputs are not reduced over ranges and `disable_fwd_atomic_reduction` says so,
as its documentation advises; else they are reduced in float32 and cast, as its own autograd function does. Gradients
are float32 and cast. Its functions below autograd are called, since the public one has no backward from merged
outputs. Kernels compile on first use, for minutes.

The package index has magi-attention 0.0.1, an empty placeholder that imports; the real one is built from its
repository.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnspec.kernels._magi import Grads, PackedTokens, load_module, magi_provider, no_grads, nothing_seen
from attnspec.lower.ffa import FfaRanges, ffa_ranges
from attnspec.params import param
from attnspec.support import Device, Forward, Problem, Support
from attnspec.support.kernel_names import FLASH_ATTENTION_3, ExpectedKernels

if TYPE_CHECKING:
    from torch import Tensor

PROVIDERS = (magi_provider("pip install --no-build-isolation ."),)
SUPPORT = Support(
    devices=("cuda",),
    dtypes=("bfloat16", "float16"),
    max_head_dim=128,
    head_dim_multiple=8,
    capability_min=(9, 0),
    capability_max=(9, 0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Parameters of the kernel."""

    cat_gqa: bool = param(
        default=False, doc="Backward with the query heads of a key head concatenated (grouped queries only)."
    )


def lower(problem: Problem, params: Params, provider: str | None) -> FfaRanges:
    """Range pairs; every mask has them."""
    return ffa_ranges(problem.slices, problem.shape.batch)


def bind(lowered: FfaRanges, problem: Problem, params: Params, provider: str, device: Device) -> FfaKernel:
    """One call on magi_attention.functional.flex_flash_attn."""
    return FfaKernel(lowered, problem, params, device)


class FfaKernel(PackedTokens):
    """Inputs are packed tokens; an empty mask calls nothing."""

    def __init__(self, ranges: FfaRanges, problem: Problem, params: Params, device: Device) -> None:
        import torch

        super().__init__(problem.shape.batch)
        self._module = load_module("flex_flash_attn", PROVIDERS[0].fix)
        self._empty = len(ranges.types) == 0
        self.expected_kernels: ExpectedKernels = "" if self._empty else FLASH_ATTENTION_3
        self._q_disjoint = ranges.q_disjoint
        self._cat_gqa = params.cat_gqa
        self._shared = {
            "sink": None,
            "sink_layout": "sh",
            "q_ranges": torch.from_numpy(ranges.q_ranges).to(device.type),
            "k_ranges": torch.from_numpy(ranges.k_ranges).to(device.type),
            "attn_type_map": torch.from_numpy(ranges.types).to(device.type),
            "softmax_scale": 1 / math.sqrt(problem.shape.head_dim),
            "softcap": 0.0,
            "deterministic": False,
            "sm_margin": 0,
        }

    def load_forward(self, out_BTND: Tensor, lse_BNT: Tensor) -> Forward:
        """Packed tokens; lse (B T, N)."""
        return Forward(out=out_BTND.flatten(0, 1), lse=lse_BNT.float().transpose(1, 2).flatten(0, 1).contiguous())

    def forward(self, inputs: Grads) -> Forward:
        """One call."""
        import torch

        q, k, v = inputs
        if self._empty:
            return nothing_seen(q)
        out, meta = self._module._flex_flash_attn_forward(
            q=q,
            k=k,
            v=v,
            out=None,
            lse=None,
            out_type=q.dtype if self._q_disjoint else torch.float32,
            disable_fwd_atomic_reduction=self._q_disjoint,
            **self._shared,
        )
        return Forward(out=out.to(q.dtype), lse=meta.lse)

    def backward(self, inputs: Grads, forward: Forward, dout: Tensor) -> Grads:
        """One call."""
        import torch

        q, k, v = inputs
        if self._empty:
            return no_grads(inputs)
        dq, dk, dv, _ = self._module._flex_flash_attn_backward(
            dout=dout,
            q=q,
            k=k,
            v=v,
            out=forward.out,
            lse=forward.lse,
            dq=None,
            dk=None,
            dv=None,
            dsink=None,
            dq_type=torch.float32,
            dk_type=torch.float32,
            dv_type=torch.float32,
            disable_bwd_dkv_atomic_reduction=False,
            cat_gqa=self._cat_gqa,
            **self._shared,
        )
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)
