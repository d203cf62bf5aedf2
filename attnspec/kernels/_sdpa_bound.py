"""Both ways of calling scaled_dot_product_attention: by a backend's operators, or the public function with autograd."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnspec.kernels._aten import Grads, Operator
from attnspec.lower.dense import DenseMask, Rectangle
from attnspec.shape import Pass
from attnspec.support import ExpectedKernels, Forward, Problem

if TYPE_CHECKING:
    from torch import Tensor

Inputs = tuple["Tensor", "Tensor", "Tensor"]
_MASK_CHUNK_CELLS = 2**26
_OVERLAPS: dict[str, frozenset[Pass]] = {"cudnn": frozenset({"bwd", "fwd"}), "flash": frozenset({"bwd", "fwd"})}
"""Two H200, 8K tokens a rank, by turns: cudnn up to 3 percent faster, flash 2 to 4, a causal forward by stages of heads
18."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Frame:
    """Where the call sits in the whole problem: views of the rectangle, repeated heads, rows that see no key.

    repeat: how often K and V are repeated along heads. empty_rows: bool (seqlen_q, 1) on the device, or None.
    """

    seqlen_q: int
    seqlen_k: int
    rows: slice
    keys: slice
    causal: bool
    repeat: int
    empty_rows: Tensor | None

    def inputs(self, q_BTND: Tensor, k_BSGD: Tensor, v_BSGD: Tensor) -> Inputs:
        """Views (B, heads, length, D) of the rectangle."""
        q, k, v = q_BTND[:, self.rows], k_BSGD[:, self.keys], v_BSGD[:, self.keys]
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def of_rows(self, part_BTND: Tensor) -> Tensor:
        """A view (B, N, rows, D) of the rectangle's rows: the output's gradient, or an output."""
        return part_BTND[:, self.rows].transpose(1, 2)

    def repeated(self, part_BGSD: Tensor) -> Tensor:
        """K or V with each head once per query head, in canonical memory order."""
        if self.repeat == 1:
            return part_BGSD
        return part_BGSD.transpose(1, 2).repeat_interleave(self.repeat, dim=2).transpose(1, 2)

    def summed(self, grad_BNSD: Tensor) -> Tensor:
        """The gradient of K or V before they were repeated."""
        if self.repeat == 1:
            return grad_BNSD
        batch, num_heads, *rest = grad_BNSD.shape
        return grad_BNSD.reshape(batch, num_heads // self.repeat, self.repeat, *rest).sum(2)

    def cleared(self, part_BNTD: Tensor) -> Tensor:
        """Zero on rows that see no key."""
        return part_BNTD if self.empty_rows is None else part_BNTD.masked_fill(self.empty_rows, 0)

    def whole_out(self, out_BNTD: Tensor) -> Tensor:
        """out_BTND, zero outside the rectangle."""
        return _placed(out_BNTD.transpose(1, 2), self.rows, self.seqlen_q)

    def whole_grads(self, grads: Grads) -> Grads:
        """(dq_BTND, dk_BSGD, dv_BSGD), zero outside the rectangle."""
        dq, dk, dv = (part.transpose(1, 2) for part in grads)
        return (
            _placed(dq, self.rows, self.seqlen_q),
            _placed(dk, self.keys, self.seqlen_k),
            _placed(dv, self.keys, self.seqlen_k),
        )

    def whole_lse(self, lse_BNT: Tensor) -> Tensor:
        """float32 lse_BNT, -inf outside the rectangle and on rows that see no key."""
        part = lse_BNT.float()
        if self.empty_rows is not None:
            part = part.masked_fill(self.empty_rows[:, 0], float("-inf"))
        if part.shape[2] == self.seqlen_q:
            return part
        lse = part.new_full((*part.shape[:2], self.seqlen_q), float("-inf"))
        lse[:, :, self.rows] = part
        return lse


def make_frame(
    rectangle: Rectangle | None, mask: DenseMask | None, problem: Problem, kv_repeat: bool, device: str
) -> Frame:
    """The frame of one rectangle, or of the whole problem where there is none."""
    import torch

    seqlen_q, seqlen_k = problem.slices.seqlen_q, problem.slices.seqlen_k
    empty = None if mask is None else mask.empty_rows
    return Frame(
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_k,
        rows=slice(rectangle.q_start, rectangle.q_end) if rectangle else slice(0, seqlen_q),
        keys=slice(rectangle.k_start, rectangle.k_end) if rectangle else slice(0, seqlen_k),
        causal=rectangle is not None and rectangle.causal,
        repeat=problem.shape.group_size if kv_repeat else 1,
        empty_rows=None if empty is None else torch.from_numpy(empty).to(device)[:, None],
    )


class OperatorSdpa:
    """A fused backend by its operators: out and lse, and a backward from any out and lse."""

    explicit_backward = True
    frees_graph = False

    def __init__(
        self, frame: Frame, operator: Operator, backend: str, expected_kernels: ExpectedKernels, lse_tolerance: float
    ) -> None:
        self.backend: str | None = backend
        self.expected_kernels = expected_kernels
        self.lse_tolerance = lse_tolerance
        self.overlaps = _OVERLAPS.get(backend, frozenset())
        self._frame, self._operator = frame, operator

    def load(self, q_BTND: Tensor, k_BSGD: Tensor, v_BSGD: Tensor) -> Inputs:
        """Views of the rectangle."""
        return self._frame.inputs(q_BTND, k_BSGD, v_BSGD)

    def load_dout(self, dout_BTND: Tensor) -> Tensor:
        """A view of the rectangle's rows."""
        return self._frame.of_rows(dout_BTND)

    def load_forward(self, out_BTND: Tensor, lse_BNT: Tensor) -> Forward:
        """Views of the rectangle's rows; lse +inf, so weight 0, on rows that see no key anywhere.

        Only a mask has such rows: all of a rectangle's and of packed documents' see keys.
        """
        lse = lse_BNT[:, :, self._frame.rows]
        if self._frame.empty_rows is not None:
            lse = lse.masked_fill(lse.isneginf(), float("inf"))
        return Forward(out=self._frame.of_rows(out_BTND), lse=self._operator.lse_in(lse))

    def forward(self, inputs: Inputs) -> Forward:
        """One forward; `saved` are K and V as the operator got them."""
        q, k, v = inputs
        k, v = self._frame.repeated(k), self._frame.repeated(v)
        out, lse = self._operator.forward(q, k, v)
        return Forward(out=self._frame.cleared(out), lse=lse, saved=(k, v))

    def backward(self, inputs: Inputs, forward: Forward, dout: Tensor) -> Grads:
        """(dq, dk, dv)."""
        q, k, v = inputs
        assert forward.lse is not None
        k, v = forward.saved or (self._frame.repeated(k), self._frame.repeated(v))
        dq, dk, dv = self._operator.backward(self._frame.cleared(dout), q, k, v, forward.out, forward.lse)
        return dq, self._frame.summed(dk), self._frame.summed(dv)

    def canonical_out(self, forward: Forward) -> tuple[Tensor, Tensor | None]:
        """out 0 and lse -inf outside the rectangle and on rows that see no key."""
        assert forward.lse is not None
        lse = self._operator.lse_out(forward.lse, forward.out.shape[2])
        return self._frame.whole_out(forward.out), self._frame.whole_lse(lse)

    def canonical_grads(self, grads: Grads) -> Grads:
        """Zero outside the rectangle."""
        return self._frame.whole_grads(grads)


class MathSdpa:
    """The math backend through the public function and autograd; no lse, all scores in memory."""

    explicit_backward = False
    frees_graph = False
    backend: str | None = "math"

    def __init__(
        self,
        frame: Frame,
        allowed: Tensor | None,
        grouped: bool,
        needs_backward: bool,
        expected_kernels: ExpectedKernels,
    ) -> None:
        self.expected_kernels = expected_kernels
        self._frame, self._allowed = frame, allowed
        self._grouped, self._needs_backward = grouped, needs_backward

    def load(self, q_BTND: Tensor, k_BSGD: Tensor, v_BSGD: Tensor) -> Inputs:
        """Views of the rectangle as leaves of a graph."""
        q, k, v = (part.detach() for part in self._frame.inputs(q_BTND, k_BSGD, v_BSGD))
        for part in (q, k, v):
            part.requires_grad_(self._needs_backward)
        return q, k, v

    def load_dout(self, dout_BTND: Tensor) -> Tensor:
        """A view of the rectangle's rows."""
        return self._frame.of_rows(dout_BTND)

    def load_forward(self, out_BTND: Tensor, lse_BNT: Tensor) -> Forward:
        """Never called: the backward is autograd's."""
        raise AssertionError("the math backend has no explicit backward")

    def forward(self, inputs: Inputs) -> Forward:
        """One forward; the graph hangs on out."""
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        q, k, v = inputs
        with sdpa_kernel(SDPBackend.MATH):
            out: Any = torch.nn.functional.scaled_dot_product_attention(
                q,
                self._frame.repeated(k),
                self._frame.repeated(v),
                attn_mask=self._allowed,
                is_causal=self._frame.causal,
                enable_gqa=self._grouped,
            )
        return Forward(out=self._frame.cleared(out), lse=None)

    def backward(self, inputs: Inputs, forward: Forward, dout: Tensor) -> Grads:
        """(dq, dk, dv) by autograd, the graph kept."""
        import torch

        dq, dk, dv = torch.autograd.grad(forward.out, inputs, dout, retain_graph=True)
        return dq, dk, dv

    def canonical_out(self, forward: Forward) -> tuple[Tensor, Tensor | None]:
        """out 0 outside the rectangle."""
        return self._frame.whole_out(forward.out.detach()), None

    def canonical_grads(self, grads: Grads) -> Grads:
        """Zero outside the rectangle."""
        return self._frame.whole_grads(grads)


def allowed_cells(mask: DenseMask, seqlen_k: int, device: str) -> Tensor:
    """The mask as bool (seqlen_q, seqlen_k) on the device; rows that see no key are let see key 0."""
    import torch

    pairs = [
        (torch.from_numpy(lo).to(device)[:, None], torch.from_numpy(hi).to(device)[:, None])
        for lo, hi in zip(mask.intervals.lo, mask.intervals.hi, strict=True)
    ]
    seqlen_q = len(pairs[0][0])
    keys = torch.arange(seqlen_k, dtype=torch.int32, device=device)
    allowed = torch.zeros((seqlen_q, seqlen_k), dtype=torch.bool, device=device)
    step = max(_MASK_CHUNK_CELLS // seqlen_k, 1)
    for start in range(0, seqlen_q, step):
        for lo, hi in pairs:
            allowed[start : start + step] |= (keys >= lo[start : start + step]) & (keys < hi[start : start + step])
    if mask.empty_rows is not None:
        allowed[:, 0] |= torch.from_numpy(mask.empty_rows).to(device)
    return allowed


def additive(allowed: Tensor, dtype: str) -> Tensor:
    """0 where allowed, -inf elsewhere, in rows whose memory is a multiple of 16 elements (CUTLASS wants that)."""
    import torch

    num_rows, num_keys = allowed.shape
    padded = torch.zeros((num_rows, -(-num_keys // 16) * 16), dtype=getattr(torch, dtype), device=allowed.device)
    return padded[:, :num_keys].masked_fill_(~allowed, float("-inf"))


def _placed(part: Tensor, rows: slice, num_rows: int) -> Tensor:
    """`part` (B, rows, heads, D) at its rows in zeros of num_rows, contiguous."""
    if part.shape[1] == num_rows:
        return part.contiguous()
    out = part.new_zeros((part.shape[0], num_rows, *part.shape[2:]))
    out[:, rows] = part
    return out
