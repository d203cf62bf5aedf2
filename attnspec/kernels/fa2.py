"""fa2: FlashAttention 2, from the flash-attn package or as torch ships it.

Read: flash_attn/flash_attn_interface.py and csrc/flash_attn of flash-attn 2.8.3.post2; torch 2.13 torch/nn/attention/
varlen.py (varlen_attn calls aten._flash_attention_forward) and aten's attention_backward.cu. Both take cu_seqlens, a
bottom-right causal flag and a window, and return out and natural-log lse, (N, total) for packed sequences; both have a
backward from any (out, lse). Paged keys (block_table) would let sequences share keys, in the forward only.

What lowers: full, causal, varlen_full, varlen_causal, sliding_window and sliding_window_causal in one call; in two
calls merged by lse varlen_block_causal, prefix_lm_causal, prefix_lm_document, share_question, causal_blockwise;
global_sliding_window in three; other slices as `attnspec.lower.varlen` finds.

Details of the kernels that matter here:
- An unbounded side of a window is set to max_seqlen_k inside, and a bound of at least max_seqlen_k to unbounded. With
  a right side that is unbounded or long this is wrong where a sequence has more queries than keys, so a call with a
  window names the longest of queries and keys as max_seqlen_k (it is an upper bound).
- max_seqlen_q = 1 makes the forward reshape for decoding, which fails when a sequence has no query: at least 2 is
  named.
- A row without keys gets out 0 and lse +inf.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnspec.kernels._aten import no_dropout
from attnspec.kernels._calls import Grads, LseLayout, VarlenKernel
from attnspec.lower.varlen import varlen_plan
from attnspec.shape import Pass
from attnspec.support import Device, Problem, Provider, Support
from attnspec.support.kernel_names import FLASH_ATTENTION_2, ExpectedKernels
from attnspec.support.varlen import VarlenCall, VarlenPlan

if TYPE_CHECKING:
    from torch import Tensor

PROVIDERS = (
    Provider(
        name="flash-attn",
        distribution="flash-attn",
        module="flash_attn.flash_attn_interface",
        requires=">=2.8",
        fix="pip install --no-build-isolation 'flash-attn>=2.8' (compiles CUDA kernels)",
    ),
    Provider(name="torch", distribution="torch", module="torch", requires=">=2.11", fix="pip install 'torch>=2.11'"),
)
SUPPORT = Support(
    devices=("cuda",),
    dtypes=("bfloat16", "float16"),
    max_head_dim=256,
    head_dim_multiple=8,
    capability_min=(8, 0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Parameters of the kernel: none."""


def lower(problem: Problem, params: Params, provider: str | None) -> VarlenPlan:
    """Varlen calls; see the module's docstring."""
    return varlen_plan(problem.slices)


def bind(lowered: VarlenPlan, problem: Problem, params: Params, provider: str, device: Device) -> VarlenKernel:
    """The calls of the plan with one of the two packages."""
    library = _FlashAttn(problem, device) if provider == "flash-attn" else _Torch(problem, device)
    return VarlenKernel(library, lowered, problem)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Arguments:
    """cu_seqlens are None for one sequence over everything."""

    cu_seqlens_q: Tensor | None
    cu_seqlens_k: Tensor | None
    max_seqlen_q: int
    max_seqlen_k: int
    causal: bool
    left: int
    right: int

    @property
    def lse_layout(self) -> LseLayout:
        """Of this call."""
        return LseLayout.BATCH_HEADS if self.cu_seqlens_q is None else LseLayout.HEADS_PACKED

    def shaped(self, *tensors: Tensor) -> list[Tensor]:
        """Packed (B T, N, D) where there are cu_seqlens, else as they are."""
        return list(tensors) if self.cu_seqlens_q is None else [tensor.flatten(0, 1) for tensor in tensors]


class _Fa2:
    """What both packages share: the arguments."""

    expected_kernels: ExpectedKernels = FLASH_ATTENTION_2
    overlaps: frozenset[Pass] = frozenset({"bwd", "fwd"})
    """Two H200, 8K tokens a rank, by turns: up to 13 percent faster, a causal forward by stages of heads 19, whose
    longest blocks come last."""

    def __init__(self, problem: Problem, device: Device) -> None:
        self._batch = problem.shape.batch
        self._device = device.type
        self._scale = 1 / math.sqrt(problem.shape.head_dim)

    def prepare(self, call: VarlenCall, num_rows: int, num_keys: int) -> _Arguments:
        """cu_seqlens on the device, flag and window."""
        import torch

        bounds: dict[str, Any] = {
            "causal": call.kind == "causal",
            "left": -1 if call.left is None else call.left,
            "right": -1 if call.right is None else call.right,
        }
        # Without cu_seqlens the kernel's own max_seqlen_k cannot be named: see the docstring.
        long_right = call.kind == "window" and call.right != 0 and num_rows > num_keys
        if call.is_rectangle(num_rows, num_keys) and not long_right:
            return _Arguments(
                cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=num_rows, max_seqlen_k=num_keys, **bounds
            )
        packed = call.packed(num_rows, num_keys, self._batch)
        max_seqlen_k = packed.max_seqlen_k
        if call.kind == "window":
            max_seqlen_k = max(max_seqlen_k, packed.max_seqlen_q)
        return _Arguments(
            cu_seqlens_q=torch.from_numpy(packed.cu_seqlens_q).to(self._device),
            cu_seqlens_k=torch.from_numpy(packed.cu_seqlens_k).to(self._device),
            max_seqlen_q=max(packed.max_seqlen_q, 2),
            max_seqlen_k=max_seqlen_k,
            **bounds,
        )

    def _batched(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """(B, T, N, D), whether packed or not."""
        return tuple(
            tensor.view(self._batch, -1, *tensor.shape[1:]) if tensor.dim() == 3 else tensor for tensor in tensors
        )


class _FlashAttn(_Fa2):
    """The flash-attn package."""

    def __init__(self, problem: Problem, device: Device) -> None:
        from flash_attn import flash_attn_interface

        super().__init__(problem, device)
        self._interface: Any = flash_attn_interface

    def forward(self, arguments: _Arguments, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """One forward."""
        shared = {
            "dropout_p": 0.0,
            "softmax_scale": self._scale,
            "causal": arguments.causal,
            "window_size_left": arguments.left,
            "window_size_right": arguments.right,
            "softcap": 0.0,
            "alibi_slopes": None,
            "return_softmax": False,
        }
        tensors = arguments.shaped(q, k, v)
        if arguments.cu_seqlens_q is None:
            out, lse, *_ = self._interface._flash_attn_forward(*tensors, **shared)
        else:
            out, lse, *_ = self._interface._flash_attn_varlen_forward(
                *tensors,
                arguments.cu_seqlens_q,
                arguments.cu_seqlens_k,
                arguments.max_seqlen_q,
                arguments.max_seqlen_k,
                **shared,
            )
        return self._batched(out)[0], lse

    def backward(
        self, arguments: _Arguments, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, native_lse: Tensor
    ) -> Grads:
        """One backward."""
        import torch

        dout, q, k, v, out = arguments.shaped(dout, q, k, v, out)
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        shared = {
            "dropout_p": 0.0,
            "softmax_scale": self._scale,
            "causal": arguments.causal,
            "window_size_left": arguments.left,
            "window_size_right": arguments.right,
            "softcap": 0.0,
            "alibi_slopes": None,
            "deterministic": False,
        }
        if arguments.cu_seqlens_q is None:
            self._interface._flash_attn_backward(dout, q, k, v, out, native_lse, dq, dk, dv, **shared)
        else:
            self._interface._flash_attn_varlen_backward(
                dout,
                q,
                k,
                v,
                out,
                native_lse,
                dq,
                dk,
                dv,
                arguments.cu_seqlens_q,
                arguments.cu_seqlens_k,
                arguments.max_seqlen_q,
                arguments.max_seqlen_k,
                **shared,
            )
        dq, dk, dv = self._batched(dq, dk, dv)
        return dq, dk, dv


class _Torch(_Fa2):
    """torch's own build, by the operators that varlen_attn calls: they take grouped heads as they are."""

    def __init__(self, problem: Problem, device: Device) -> None:
        super().__init__(problem, device)
        self._rng = no_dropout(self._device)

    def forward(self, arguments: _Arguments, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """One forward."""
        import torch

        out, lse, *_ = torch.ops.aten._flash_attention_forward(
            *arguments.shaped(q, k, v),
            arguments.cu_seqlens_q,
            arguments.cu_seqlens_k,
            arguments.max_seqlen_q,
            arguments.max_seqlen_k,
            0.0,
            arguments.causal,
            False,
            scale=self._scale,
            window_size_left=arguments.left,
            window_size_right=arguments.right,
        )
        return self._batched(out)[0], lse

    def backward(
        self, arguments: _Arguments, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, native_lse: Tensor
    ) -> Grads:
        """One backward."""
        import torch

        dq, dk, dv = torch.ops.aten._flash_attention_backward(
            *arguments.shaped(dout, q, k, v, out),
            native_lse,
            arguments.cu_seqlens_q,
            arguments.cu_seqlens_k,
            arguments.max_seqlen_q,
            arguments.max_seqlen_k,
            0.0,
            arguments.causal,
            *self._rng,
            scale=self._scale,
            window_size_left=arguments.left,
            window_size_right=arguments.right,
        )
        dq, dk, dv = self._batched(dq, dk, dv)
        return dq, dk, dv
