"""torch's attention operators behind one face: what `scaled_dot_product_attention` calls, one class per operator.

The operators are called by name, so that the chosen backend is the one that runs, and since only they return the
log-sum-exp and take any (out, lse) in the backward. Signatures are those of torch 2.11 to 2.13. Tensors are q_BNTD,
k_BGSD, v_BGSD as views of canonical memory. lse_BNT is canonical except where a class says otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

Grads = tuple["Tensor", "Tensor", "Tensor"]


class Operator(Protocol):
    """One forward and backward of the library."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """(out_BNTD, lse in the operator's own layout)."""
        ...

    def backward(self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> Grads:
        """(dq, dk, dv)."""
        ...

    def lse_out(self, lse: Tensor, num_rows: int) -> Tensor:
        """lse_BNT from the operator's layout."""
        ...

    def lse_in(self, lse_BNT: Tensor) -> Tensor:
        """The operator's layout from lse_BNT."""
        ...


class FlashCpu:
    """The CPU's flash attention. Causal is top-left; a mask is added to the scores and has the inputs' type.

    lse is float64 for float64 inputs.
    """

    def __init__(self, causal: bool, bias: Tensor | None) -> None:
        self._causal, self._bias = causal, bias

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """One forward."""
        import torch

        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, self._causal, attn_mask=self._bias
        )
        return out, lse

    def backward(self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> Grads:
        """One backward."""
        import torch

        dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            dout,
            q,
            k,
            v,
            out,
            lse.double() if q.dtype == torch.float64 else lse,
            0.0,
            self._causal,
            attn_mask=self._bias,
        )
        return dq, dk, dv

    def lse_out(self, lse: Tensor, num_rows: int) -> Tensor:
        """As it is."""
        return lse

    def lse_in(self, lse_BNT: Tensor) -> Tensor:
        """As it is."""
        return lse_BNT.contiguous()


class FlashCuda:
    """FlashAttention 2 as torch ships it. Causal is bottom-right (as in torch.nn.attention.bias.causal_lower_right)."""

    def __init__(self, causal: bool, device: str) -> None:
        self._causal = causal
        self._rng = no_dropout(device)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """One forward."""
        import torch

        out, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, self._causal, False)
        return out, lse

    def backward(self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> Grads:
        """One backward."""
        import torch

        dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_backward(
            dout,
            q,
            k,
            v,
            out,
            lse,
            None,
            None,
            q.shape[2],
            k.shape[2],
            0.0,
            self._causal,
            *self._rng,
        )
        return dq, dk, dv

    def lse_out(self, lse: Tensor, num_rows: int) -> Tensor:
        """As it is."""
        return lse

    def lse_in(self, lse_BNT: Tensor) -> Tensor:
        """As it is."""
        return lse_BNT.contiguous()


class FlashPacked:
    """FlashAttention 2 over documents packed one after another: the operator behind jagged nested tensors.

    cu_seqlens_q, cu_seqlens_k: int32 (documents of all batch rows + 1,). Causal is bottom-right inside a document.
    The operator's lse is (N, B T).
    """

    def __init__(
        self, causal: bool, batch: int, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int
    ) -> None:
        self._causal, self._batch = causal, batch
        self._documents = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        self._rng = no_dropout(cu_seqlens_q.device.type)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """One forward."""
        import torch

        out, lse, *_ = torch.ops.aten._flash_attention_forward(
            *map(_packed, (q, k, v)), *self._documents, 0.0, self._causal, False
        )
        return self._unpacked(out), lse

    def backward(self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> Grads:
        """One backward."""
        import torch

        dq, dk, dv = torch.ops.aten._flash_attention_backward(
            *map(_packed, (dout, q, k, v, out)),
            lse,
            *self._documents,
            0.0,
            self._causal,
            *self._rng,
        )
        return self._unpacked(dq), self._unpacked(dk), self._unpacked(dv)

    def lse_out(self, lse: Tensor, num_rows: int) -> Tensor:
        """(N, B T) as (B, N, T)."""
        return lse.view(lse.shape[0], self._batch, num_rows).transpose(0, 1)

    def lse_in(self, lse_BNT: Tensor) -> Tensor:
        """(B, N, T) as (N, B T)."""
        return lse_BNT.transpose(0, 1).reshape(lse_BNT.shape[1], -1)

    def _unpacked(self, part: Tensor) -> Tensor:
        return part.view(self._batch, -1, *part.shape[1:]).transpose(1, 2)


class Cudnn:
    """cuDNN's fused attention. Causal is top-left; a mask is added to the scores. The operator's lse: (B, N, T, 1)."""

    def __init__(self, causal: bool, bias: Tensor | None, device: str) -> None:
        import torch

        self._causal, self._bias = causal, bias
        self._seed = torch.zeros((), dtype=torch.int64, device=device)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """One forward."""
        import torch

        out, lse, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(
            q, k, v, self._bias, True, 0.0, self._causal, False
        )
        return out, lse

    def backward(self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> Grads:
        """One backward."""
        import torch

        dq, dk, dv = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
            dout,
            q,
            k,
            v,
            out,
            lse,
            self._seed,
            self._seed,
            self._bias,
            None,
            None,
            q.shape[2],
            k.shape[2],
            0.0,
            self._causal,
        )
        return dq, dk, dv

    def lse_out(self, lse: Tensor, num_rows: int) -> Tensor:
        """Without the last axis, which older torch versions lack."""
        return lse.squeeze(-1) if lse.dim() == 4 else lse

    def lse_in(self, lse_BNT: Tensor) -> Tensor:
        """With the last axis."""
        return lse_BNT.contiguous()[..., None]


class Efficient:
    """Memory-efficient attention (CUTLASS). mask_type 0 none, 1 causal top-left, 2 causal bottom-right.

    A mask is added to the scores and covers (B, N, T, S). The operator's lse is padded to a multiple of 32 rows.
    """

    _LSE_MULTIPLE = 32

    def __init__(self, mask_type: int, bias: Tensor | None) -> None:
        import torch

        self._mask_type, self._bias = mask_type, bias
        self._seed = torch.zeros((), dtype=torch.int64)

    def _bias_for(self, q: Tensor, k: Tensor) -> Tensor | None:
        return None if self._bias is None else self._bias.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """One forward."""
        import torch

        out, lse, *_ = torch.ops.aten._efficient_attention_forward(
            q.transpose(1, 2),
            k.transpose(1, 2),
            v.transpose(1, 2),
            self._bias_for(q, k),
            None,
            None,
            None,
            None,
            0.0,
            self._mask_type,
            True,
        )
        return out.transpose(1, 2), lse

    def backward(self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> Grads:
        """One backward."""
        import torch

        dq, dk, dv, _ = torch.ops.aten._efficient_attention_backward(
            dout.transpose(1, 2),
            q.transpose(1, 2),
            k.transpose(1, 2),
            v.transpose(1, 2),
            self._bias_for(q, k),
            out.transpose(1, 2),
            None,
            None,
            q.shape[2],
            k.shape[2],
            lse,
            0.0,
            self._seed,
            self._seed,
            self._mask_type,
            False,
        )
        return dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)

    def lse_out(self, lse: Tensor, num_rows: int) -> Tensor:
        """Without the padding."""
        return lse[..., :num_rows]

    def lse_in(self, lse_BNT: Tensor) -> Tensor:
        """With padding of +inf, which gives weight 0."""
        import torch

        missing = -lse_BNT.shape[-1] % self._LSE_MULTIPLE
        return torch.nn.functional.pad(lse_BNT, (0, missing), value=float("inf"))


def no_dropout(device: str) -> tuple[Tensor, Tensor]:
    """The random state that FlashAttention's backward wants and, without dropout, does not read."""
    import torch

    return torch.zeros(2, dtype=torch.uint64, device=device), torch.empty(0, device=device)


def _packed(part_BNTD: Tensor) -> Any:
    """(B, N, T, D) over canonical memory as (B T, N, D)."""
    return part_BNTD.transpose(1, 2).flatten(0, 1)
