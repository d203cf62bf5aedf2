"""cuDNN's fused attention through TransformerEngine's fused_attn_fwd and fused_attn_bwd.

These are the functions below DotProductAttention: without autograd, so a backward can be repeated and takes merged
outputs. `padding` masks are those of packed sequences. A window is [q - left, q + right] around a diagonal that
`bottom_right_diagonal` aligns; -1 is no bound. Of packed sequences max_seqlen_kv may be longer than any, and has to be
at least max_seqlen_q with a window; without packing it is the number of keys, and a longer one reads past them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnspec.errors import UnsupportedError
from attnspec.kernels._calls import Grads, LseLayout
from attnspec.shape import Pass
from attnspec.support import Device, Problem
from attnspec.support.kernel_names import CUDNN, ExpectedKernels
from attnspec.support.varlen import VarlenCall

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arguments:
    """sequences: positional arguments common to both functions. named: further ones. unseen: (B T, 1, 1) bool, tokens
    outside all sequences, None when there are none or when sequences are not packed."""

    packed: bool
    sequences: tuple[int, int, Tensor, Tensor]
    named: dict[str, Any]
    unseen: Tensor | None

    @property
    def lse_layout(self) -> LseLayout:
        """Of this call."""
        return LseLayout.TOKENS_ONE if self.packed else LseLayout.BATCH_HEADS_ONE

    def shaped(self, *tensors: Tensor) -> list[Tensor]:
        """Packed (B T, N, D) or as they are."""
        return [tensor.flatten(0, 1) for tensor in tensors] if self.packed else list(tensors)


class TransformerEngine:
    """The Library."""

    expected_kernels: ExpectedKernels = CUDNN
    overlaps: frozenset[Pass] = frozenset({"bwd", "fwd"})
    """Two H200, 8K tokens a rank, by turns: up to 6 percent faster over gathered keys and by stages of heads; a forward
    round a ring 1 percent faster to 2 slower."""

    def __init__(self, problem: Problem, device: Device) -> None:
        import torch
        import transformer_engine.pytorch  # noqa: F401
        from transformer_engine.pytorch.cpp_extensions import fused_attn

        self._fused_attn: Any = fused_attn
        self._backend = fused_attn.FusedAttnBackend["F16_arbitrary_seqlen"]
        self._problem = problem
        self._batch = problem.shape.batch
        self._device, self._capability = device.type, device.capability
        self._dtype = torch.bfloat16 if problem.shape.dtype == "bfloat16" else torch.float16
        self._scale = 1 / math.sqrt(problem.shape.head_dim)
        # The state of a dropout that there is not.
        self._rng = torch.zeros(2, dtype=torch.int64, device=self._device)

    def prepare(self, call: VarlenCall, num_rows: int, num_keys: int) -> Arguments:
        """Sequences on the device, mask type and window; asks TransformerEngine whether cuDNN can do it."""
        import torch

        packed = not _is_plain(call, num_rows, num_keys)
        if packed and self._capability is not None and self._capability[0] == 12:
            raise UnsupportedError(
                "device", "on compute capability 12 stats of packed sequences are laid out otherwise"
            )
        layout = "thd" if packed else "bshd"
        named: dict[str, Any] = {
            **_mask(call, padding=packed),
            "attn_scale": self._scale,
            "qkv_layout": f"{layout}_{layout}_{layout}",
            "o_format": layout,
        }
        placed = call.placed(num_rows, num_keys, self._batch)
        cu_seqlens_q, cu_seqlens_kv = (
            torch.from_numpy(np.insert(np.cumsum(lengths), 0, 0).astype(np.int32)).to(self._device)
            for lengths in (placed.lengths_q, placed.lengths_k)
        )
        unseen = None
        if packed:
            named["cu_seqlens_q_padded"] = torch.from_numpy(placed.starts_q).to(self._device)
            named["cu_seqlens_kv_padded"] = torch.from_numpy(placed.starts_k).to(self._device)
            if not call.covers_rows(num_rows):
                seen = np.zeros(self._batch * num_rows, dtype=np.bool_)
                for start, length in zip(placed.starts_q, placed.lengths_q, strict=False):
                    seen[start : start + length] = True
                unseen = torch.from_numpy(~seen[:, None, None]).to(self._device)
        max_seqlen_q = int(placed.lengths_q.max())
        max_seqlen_kv = int(placed.lengths_k.max())
        if packed:
            max_seqlen_kv = max(max_seqlen_kv, max_seqlen_q)
        self._ask(named, len(placed.lengths_q), (max_seqlen_q, max_seqlen_kv), (num_rows, num_keys))
        return Arguments(
            packed=packed,
            sequences=(max_seqlen_q, max_seqlen_kv, cu_seqlens_q, cu_seqlens_kv),
            named=named,
            unseen=unseen,
        )

    def forward(self, arguments: Arguments, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """One forward."""
        out, (stats, *_) = self._fused_attn.fused_attn_fwd(
            self._problem.needs_backward,
            *arguments.sequences,
            *arguments.shaped(q, k, v),
            self._dtype,
            self._backend,
            **arguments.named,
        )
        if arguments.unseen is not None:
            stats.masked_fill_(arguments.unseen, -math.inf)
        return out.view(q.shape), stats

    def backward(
        self, arguments: Arguments, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, native_lse: Tensor
    ) -> Grads:
        """One backward."""
        layout = arguments.named["qkv_layout"]
        dout_, q_, k_, v_, out_ = arguments.shaped(dout, q, k, v, out)
        dq, dk, dv, *_ = self._fused_attn.fused_attn_bwd(
            *arguments.sequences,
            q_,
            k_,
            v_,
            out_,
            dout_,
            self._dtype,
            [native_lse, self._rng],
            self._backend,
            do_format=arguments.named["o_format"],
            dqkv_layout=layout,
            **arguments.named,
        )
        return dq.view(q.shape), dk.view(k.shape), dv.view(v.shape)

    def _ask(
        self, named: dict[str, Any], num_sequences: int, max_seqlens: tuple[int, int], lengths: tuple[int, int]
    ) -> None:
        """Raise UnsupportedError with TransformerEngine's own reason where no cuDNN backend takes this call."""
        import transformer_engine_torch as tex
        from transformer_engine.pytorch.attention.dot_product_attention.utils import FusedAttentionParams
        from transformer_engine.pytorch.constants import TE_DType

        shape, fused_attn = self._problem.shape, self._fused_attn
        dtype = TE_DType[self._dtype]
        layout, form = fused_attn.QKVLayout[named["qkv_layout"]], fused_attn.QKVFormat[named["o_format"]]
        found, message = tex.get_fused_attn_backend(
            FusedAttentionParams(
                is_training=self._problem.needs_backward,
                attn_mask_type=fused_attn.AttnMaskType[named["attn_mask_type"]],
                bias_type=fused_attn.AttnBiasType["no_bias"],
                window_size_left=named["window_size"][0],
                window_size_right=named["window_size"][1],
                bottom_right_diagonal=named["bottom_right_diagonal"],
                softmax_type=fused_attn.SoftmaxType["vanilla"],
                attn_scale=self._scale,
                qkv_dtype=dtype,
                o_dtype=dtype,
                do_dtype=dtype,
                dqkv_dtype=dtype,
                qkv_layout=layout,
                o_format=form,
                do_format=form,
                dqkv_layout=layout,
                batch_size=num_sequences,
                num_attn_heads=shape.num_heads_q,
                num_gqa_groups=shape.num_heads_kv,
                head_dim_qk=shape.head_dim,
                head_dim_v=shape.head_dim,
                max_seqlen_q=max_seqlens[0],
                max_seqlen_kv=max_seqlens[1],
                num_tokens_q=shape.batch * lengths[0],
                num_tokens_kv=shape.batch * lengths[1],
            )
        )
        if int(found) != int(self._backend):
            raise UnsupportedError("backend", f"TransformerEngine has no fused attention for this call: {message}")


def _is_plain(call: VarlenCall, num_rows: int, num_keys: int) -> bool:
    """Whether a call without packed sequences says it: full or causal over everything, or a window of one square.

    Causal over more queries than keys is not among them: max_seqlen_kv would have to be longer than the keys.
    """
    if not (call.is_rectangle(num_rows, num_keys) and call.q_start[0] == 0):
        return False
    return bool(call.kind == "full" or call.square or (call.kind == "causal" and num_rows <= num_keys))


def _mask(call: VarlenCall, *, padding: bool) -> dict[str, Any]:
    """Mask type, window and alignment."""
    if call.right == 0:
        mask = "causal" if call.square else "causal_bottom_right"
        mask = f"padding_{mask}" if padding else mask
    else:
        mask = "padding" if padding else "no_mask"
    return {
        "attn_mask_type": mask,
        "window_size": (-1 if call.left is None else call.left, -1 if call.right is None else call.right),
        "bottom_right_diagonal": call.kind != "full" and not call.square,
    }
