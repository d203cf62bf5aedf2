"""fa4: FlashAttention 4 (CuTe DSL) from the flash-attn-4 package, for Hopper and Blackwell.

Read: flash_attn/cute of flash-attn-4 4.0.0b36 (interface.py, block_sparsity.py, mask.py, block_info.py,
flash_fwd_sm90.py, flash_bwd_sm90.py) and how torch's FlexAttention calls it
(torch/_inductor/kernel/flex/templates/flash_attention*.jinja).

Two ways to say a mask, recorded as the backend:
- varlen: cu_seqlens, causal flag and window as in FlashAttention 2 (a bound None is none; a window of two negative
  numbers too). Forward and backward on Hopper and Blackwell: at this version nothing in the source refuses a varlen
  backward on compute capability 10, as earlier betas did. One or more calls, merged by lse.
- block_sparse: one call for any mask. Lists of partial and full blocks, and a mask function for the partial ones:
  arithmetic where the mask is one band, else row intervals; what FlexAttention's FLASH backend does. Forward and
  backward without cu_seqlens; head_dim up to 128, since the tiles of larger heads are no multiples of the blocks.
  Blocks are 128 x 128 on Hopper and 256 x 128 on Blackwell (two query tiles per block), in both directions.

Without a backend: varlen where `attnspec.lower.varlen` finds calls (full, causal, varlen_full, varlen_causal and
windows one; varlen_block_causal, prefix_lm_causal, prefix_lm_document, share_question, causal_blockwise two;
global_sliding_window three), else block_sparse. lse is natural, (N, total) or (B, N, T); a row without keys has out
0, lse -inf. Kernels compile on first use, in seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from attnspec.errors import UnsupportedError
from attnspec.kernels import _flash_attn_cute
from attnspec.kernels._calls import Grads, NamedArguments, VarlenKernel
from attnspec.kernels._canonical import CanonicalKernel
from attnspec.lower.block_mask import BlockLists, BlockMask, block_mask
from attnspec.lower.intervals import Band, IntervalMask, band, interval_mask
from attnspec.lower.varlen import varlen_plan
from attnspec.params import param
from attnspec.support import Device, Forward, Problem, Support
from attnspec.support.kernel_names import FLASH_ATTENTION_4, ExpectedKernels
from attnspec.support.varlen import VarlenCall, VarlenPlan

if TYPE_CHECKING:
    from torch import Tensor

PROVIDERS = (_flash_attn_cute.PROVIDER,)
SUPPORT = Support(
    devices=("cuda",),
    dtypes=("bfloat16", "float16"),
    max_head_dim=256,
    head_dim_multiple=8,
    capability_min=(9, 0),
    capability_max=(12, 0),
)
COMPILES_AHEAD = "any_length"
ENVIRONMENT = _flash_attn_cute.ENVIRONMENT
_MAX_BLOCK_SPARSE_HEAD_DIM = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Parameters of the kernel."""

    backend: Literal["varlen", "block_sparse"] | None = param(
        default=None,
        doc="How the mask is said: varlen calls, or one block-sparse call; varlen where it can if not given.",
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lowered:
    """Varlen calls, or blocks and the mask inside them."""

    plan: VarlenPlan | None = None
    blocks: BlockMask | None = None
    mask: Band | IntervalMask | None = None

    @property
    def num_calls(self) -> int:
        """Calls of the library per forward."""
        return 1 if self.plan is None else self.plan.num_calls


def lower(problem: Problem, params: Params, provider: str | None) -> Lowered:
    """Varlen calls or a block-sparse call; see the module's docstring."""
    capability = problem.device.capability
    major = 9 if capability is None else capability[0]  # the others refuse what this one refuses, and more
    if major in (10, 11) and 128 < problem.shape.head_dim < 256:
        raise UnsupportedError("head_dim", f"on Blackwell head_dim is up to 128, or 256, not {problem.shape.head_dim}")
    if params.backend != "block_sparse":
        try:
            return Lowered(plan=varlen_plan(problem.slices))
        except UnsupportedError:
            if params.backend == "varlen":
                raise
    if problem.shape.head_dim > _MAX_BLOCK_SPARSE_HEAD_DIM:
        raise UnsupportedError("head_dim", f"a block-sparse call takes head_dim up to {_MAX_BLOCK_SPARSE_HEAD_DIM}")
    if major not in (9, 10):
        raise UnsupportedError("device", f"a block-sparse call needs compute capability 9.0 or 10.x, got {major}.x")
    held = band(problem.slices)
    return Lowered(
        blocks=block_mask(problem.slices, 128 if major == 9 else 256, 128),
        mask=held if held is not None and _is_diagonal(held) else interval_mask(problem.slices),
    )


def _is_diagonal(held: Band) -> bool:
    """Whether a band is bounded along the diagonal and nowhere else."""
    return (held.k_start, held.k_end) == (None, None) and (held.lower, held.upper) != (None, None)


def bind(
    lowered: Lowered, problem: Problem, params: Params, provider: str, device: Device
) -> Fa4Varlen | BlockSparseKernel:
    """The calls on flash_attn.cute.interface."""
    if lowered.plan is not None:
        return Fa4Varlen(_Varlen(problem, device), lowered.plan, problem)
    assert lowered.blocks is not None and lowered.mask is not None
    return BlockSparseKernel(lowered.blocks, lowered.mask, problem, device)


class Fa4Varlen(VarlenKernel):
    """Varlen calls."""

    backend = "varlen"


class _Varlen:
    """flash_attn.cute.interface with cu_seqlens."""

    expected_kernels: ExpectedKernels = FLASH_ATTENTION_4

    def __init__(self, problem: Problem, device: Device) -> None:
        from flash_attn.cute import interface

        self._interface: Any = interface
        self._batch = problem.shape.batch
        self._device = device.type
        self._scale = 1 / math.sqrt(problem.shape.head_dim)

    def prepare(self, call: VarlenCall, num_rows: int, num_keys: int) -> NamedArguments:
        """cu_seqlens on the device, flag and window."""
        import torch

        named: dict[str, Any] = {"softmax_scale": self._scale, "causal": call.kind == "causal"}
        if call.kind == "window":
            named["window_size_left"], named["window_size_right"] = call.left, call.right
        if call.is_rectangle(num_rows, num_keys):
            return NamedArguments(packed=False, named=named)
        packed = call.packed(num_rows, num_keys, self._batch)
        named["cu_seqlens_q"] = torch.from_numpy(packed.cu_seqlens_q).to(self._device)
        named["cu_seqlens_k"] = torch.from_numpy(packed.cu_seqlens_k).to(self._device)
        named["max_seqlen_q"] = packed.max_seqlen_q
        named["max_seqlen_k"] = packed.max_seqlen_k
        return NamedArguments(packed=True, named=named)

    def forward(self, arguments: NamedArguments, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """One forward."""
        out, lse, *_ = self._interface._flash_attn_fwd(*arguments.shaped(q, k, v), return_lse=True, **arguments.named)
        return out.view(q.shape), lse

    def backward(
        self, arguments: NamedArguments, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, native_lse: Tensor
    ) -> Grads:
        """One backward."""
        dout_, q_, k_, v_, out_ = arguments.shaped(dout, q, k, v, out)
        dq, dk, dv = self._interface._flash_attn_bwd(q_, k_, v_, out_, dout_, native_lse, **arguments.named)
        return dq.view(q.shape), dk.view(k.shape), dv.view(v.shape)


class BlockSparseKernel(CanonicalKernel):
    """One call for any mask."""

    expected_kernels: ExpectedKernels = FLASH_ATTENTION_4
    backend = "block_sparse"

    def __init__(self, blocks: BlockMask, mask: Band | IntervalMask, problem: Problem, device: Device) -> None:
        import torch
        from flash_attn.cute import interface
        from flash_attn.cute.block_sparsity import BlockSparseTensorsTorch

        from attnspec.kernels import _fa4_masks

        def sparse(partial: BlockLists, full: BlockLists) -> Any:
            tensors = (part for lists in (partial, full) for part in _block_tensors(lists, device.type))
            return BlockSparseTensorsTorch(*tensors, block_size=(blocks.block_q, blocks.block_k))

        self._interface: Any = interface
        self._forward_blocks = sparse(blocks.kv, blocks.full_kv)
        self._backward_blocks = sparse(blocks.q, blocks.full_q)
        self._shared: dict[str, Any] = {"softmax_scale": 1 / math.sqrt(problem.shape.head_dim)}
        if isinstance(mask, Band):
            self._shared["mask_mod"] = _fa4_masks.band_mask(mask.lower, mask.upper)
        else:
            bounds = [bound for pair in zip(mask.lo, mask.hi, strict=True) for bound in pair]
            self._shared["mask_mod"] = _fa4_masks.interval_mask(len(mask.lo))
            self._shared["aux_tensors"] = [torch.from_numpy(bound).to(device.type) for bound in bounds]

    def forward(self, inputs: Grads) -> Forward:
        """One call."""
        out, lse, *_ = self._interface._flash_attn_fwd(
            *inputs, return_lse=True, block_sparse_tensors=self._forward_blocks, **self._shared
        )
        return Forward(out=out, lse=lse)

    def backward(self, inputs: Grads, forward: Forward, dout: Tensor) -> Grads:
        """One call."""
        dq, dk, dv = self._interface._flash_attn_bwd(
            *inputs, forward.out, dout, forward.lse, block_sparse_tensors=self._backward_blocks, **self._shared
        )
        return dq, dk, dv


def _block_tensors(lists: BlockLists, device: str) -> tuple[Tensor, Tensor]:
    """Counts (1, 1, rows) and indices (1, 1, rows, width) for all batch rows and heads; a width of 0 becomes 1."""
    import torch

    indices = lists.indices if lists.indices.shape[1] else np.zeros((len(lists.num), 1), dtype=np.int32)
    return (
        torch.from_numpy(lists.num).to(device)[None, None],
        torch.from_numpy(np.ascontiguousarray(indices)).to(device)[None, None],
    )
