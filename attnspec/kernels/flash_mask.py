"""flash_mask: FlashMask version 3 for Hopper, by its torch operators. Masks by columns, in one call.

Read: flashmask/flash_mask/flashmask_attention_v3 of PaddlePaddle/flash-attention (2026-08): interface_torch.py,
flash_api_torch.cpp (operators flashmask::fwd and flashmask::bwd), setup_torch.py, and the kernel's use of
startend_row_indices in mainloop_fwd_sm90_tma_gmma_ws.hpp. Its build compiles bfloat16 and head_dim 64, 128 and 256
only. Version 4 (CuTe DSL) takes startend_row_indices through paddle alone.

What lowers (`attnspec.lower.startend`): all masks of this project. causal, varlen_causal, sliding_window_causal and
share_question with the causal flag and one value per key, causal_blockwise with two; full, varlen_full,
sliding_window, varlen_block_causal and both prefix masks with two values, global_sliding_window with four. Not slices
where a key is unseen by more than two separate runs of queries.

lse is (B, N, T), natural, -inf on rows that see nothing, whose out is 0; the backward takes any (out, lse).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnspec.kernels._calls import Grads
from attnspec.kernels._canonical import CanonicalKernel
from attnspec.lower.startend import StartendRows, startend_rows
from attnspec.support import Device, Forward, Problem, Provider, Support
from attnspec.support.kernel_names import FLASH_ATTENTION_3, ExpectedKernels

if TYPE_CHECKING:
    from torch import Tensor

PROVIDERS = (
    Provider(
        name="flashmask",
        distribution="flashmask",
        module="flashmask._C",
        fix=(
            "build flashmask/flash_mask/flashmask_attention_v3 of github.com/PaddlePaddle/flash-attention "
            "(python setup_torch.py install)"
        ),
    ),
)
SUPPORT = Support(
    devices=("cuda",),
    dtypes=("bfloat16",),
    max_head_dim=256,
    head_dim_multiple=8,
    capability_min=(9, 0),
    capability_max=(9, 0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Parameters of the kernel: none."""


def lower(problem: Problem, params: Params, provider: str | None) -> StartendRows:
    """startend_row_indices; see the module's docstring."""
    return startend_rows(problem.slices)


def bind(lowered: StartendRows, problem: Problem, params: Params, provider: str, device: Device) -> FlashMaskKernel:
    """One call on torch.ops.flashmask."""
    return FlashMaskKernel(lowered, problem, device)


class FlashMaskKernel(CanonicalKernel):
    """Tensors stay canonical."""

    backend = None
    expected_kernels: ExpectedKernels = FLASH_ATTENTION_3

    def __init__(self, rows: StartendRows, problem: Problem, device: Device) -> None:
        import importlib

        import torch

        if not hasattr(torch.ops.flashmask, "fwd"):
            importlib.import_module("flashmask._C")
        self._fwd: Any = torch.ops.flashmask.fwd
        self._bwd: Any = torch.ops.flashmask.bwd
        indices = torch.from_numpy(rows.indices).to(device.type)
        self._shared = {
            "startend_row_indices": indices[None, None].expand(problem.shape.batch, -1, -1, -1).contiguous(),
            "softmax_scale": 1 / math.sqrt(problem.shape.head_dim),
            "is_causal": rows.causal,
        }

    def forward(self, inputs: Grads) -> Forward:
        """One call."""
        out, lse = self._fwd(*inputs, **self._shared)
        return Forward(out=out, lse=lse)

    def backward(self, inputs: Grads, forward: Forward, dout: Tensor) -> Grads:
        """One call."""
        dq, dk, dv = self._bwd(dout, *inputs, forward.out, forward.lse, **self._shared)
        return dq, dk, dv
