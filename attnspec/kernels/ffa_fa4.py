"""ffa_fa4: flex-flash-attention on FlashAttention 4, MagiAttention's kernel for Blackwell. Any slices, in one call.

Read: magi_attention/functional/fa4.py (fa4_fwd, fa4_bwd) and meta/collection/calc_meta.py (FA4AttnArg) of
MagiAttention 1.1.1. It wants MagiAttention's fork of flash-attention (module flash_attn_cute) and the extension
magi_to_hstu_cuda. FA4AttnArg turns slices into functions of the query and lists of blocks, on the device; that is its
lowering and not timed. lse is (T, N), natural. Not run so far: there was no Blackwell device to run it on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnspec.errors import UnsupportedError
from attnspec.kernels._magi import Grads, PackedTokens, load_module, magi_provider, no_grads, nothing_seen
from attnspec.lower.ffa import FfaRanges, ffa_ranges
from attnspec.support import Device, Forward, Problem, Support
from attnspec.support.kernel_names import MAGI_FLASH_ATTENTION_4, ExpectedKernels

if TYPE_CHECKING:
    from torch import Tensor

PROVIDERS = (magi_provider("its flash-attention submodule"),)
SUPPORT = Support(
    devices=("cuda",),
    dtypes=("bfloat16", "float16"),
    max_head_dim=128,
    head_dim_multiple=8,
    capability_min=(10, 0),
    capability_max=(10, 0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Parameters of the kernel: none."""


def lower(problem: Problem, params: Params, provider: str | None) -> FfaRanges:
    """Range pairs; every mask has them."""
    return ffa_ranges(problem.slices, problem.shape.batch)


def bind(lowered: FfaRanges, problem: Problem, params: Params, provider: str, device: Device) -> FfaFa4Kernel:
    """One call on magi_attention.functional.fa4."""
    return FfaFa4Kernel(lowered, problem)


class FfaFa4Kernel(PackedTokens):
    """Inputs are packed tokens; an empty mask calls nothing."""

    def __init__(self, ranges: FfaRanges, problem: Problem) -> None:
        super().__init__(problem.shape.batch)
        self._module = load_module("fa4", PROVIDERS[0].fix)
        if not self._module.is_fa4_installed:
            fix = PROVIDERS[0].fix
            raise UnsupportedError("missing_package", f"MagiAttention finds no module flash_attn_cute; {fix}")
        self._scale = 1 / math.sqrt(problem.shape.head_dim)
        self._empty = len(ranges.types) == 0
        self.expected_kernels: ExpectedKernels = "" if self._empty else MAGI_FLASH_ATTENTION_4
        if not self._empty:
            self._argument = _argument(ranges, problem)

    def load_forward(self, out_BTND: Tensor, lse_BNT: Tensor) -> Forward:
        """Packed tokens; lse (B T, N) over memory (N, B T), which is what the backward wants."""
        return Forward(out=out_BTND.flatten(0, 1), lse=lse_BNT.float().transpose(0, 1).flatten(1).contiguous().mT)

    def forward(self, inputs: Grads) -> Forward:
        """One call."""

        q, k, v = inputs
        if self._empty:
            return nothing_seen(q)
        out, lse = self._module.fa4_fwd(
            q=q, k=k, v=v, sink=None, attn_arg=self._argument, softmax_scale=self._scale, softcap=0.0
        )
        return Forward(out=out, lse=lse)

    def backward(self, inputs: Grads, forward: Forward, dout: Tensor) -> Grads:
        """One call."""

        q, k, v = inputs
        if self._empty:
            return no_grads(inputs)
        dq, dk, dv, _ = self._module.fa4_bwd(
            do=dout,
            q=q,
            k=k,
            v=v,
            sink=None,
            o=forward.out,
            lse=forward.lse,
            attn_arg=self._argument,
            softmax_scale=self._scale,
            softcap=0.0,
            deterministic=False,
        )
        return dq, dk, dv


def _argument(ranges: FfaRanges, problem: Problem) -> Any:
    """MagiAttention's FA4AttnArg of the ranges."""
    from magi_attention.common.ranges import AttnRanges
    from magi_attention.meta.collection.calc_meta import FA4AttnArg

    return FA4AttnArg(
        q_ranges=AttnRanges.from_ranges(ranges.q_ranges.tolist()),
        k_ranges=AttnRanges.from_ranges(ranges.k_ranges.tolist()),
        attn_type_map=ranges.types.tolist(),
        seqlen_q=problem.shape.batch * problem.slices.seqlen_q,
        seqlen_k=problem.shape.batch * problem.slices.seqlen_k,
        headdim=problem.shape.head_dim,
    )
