"""reference: attention as the specification defines it, in plain torch, float64 or float32, any slices.

Not fast: rows are processed in chunks, so that the scores of one chunk fit in a fixed budget, and each chunk looks only
at keys between the first and the last that its rows allow. Scale 1/sqrt(head_dim); a row without keys has output 0,
lse -inf and no gradient. Backward from (out, lse): P = exp(S - lse), dV = P^T dO, dS = P (dO V^T - rowsum(dO out)),
dQ = dS K, dK = dS^T Q (Dao et al. 2022, appendix B.2).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from attnspec.lower.intervals import IntervalMask, interval_mask
from attnspec.params import param
from attnspec.support import Device, Forward, Problem, Provider, Support

if TYPE_CHECKING:
    from torch import Tensor

PROVIDERS = (
    Provider(name="torch", distribution="torch", module="torch", requires=">=2.11", fix="pip install 'torch>=2.11'"),
)
SUPPORT = Support(
    devices=("cpu", "cuda"),
    dtypes=("bfloat16", "float16", "float32", "float64"),
    max_head_dim=2**16,
)
_CHUNK_BYTES = 2**26
"""Budget of one chunk's scores; the backward holds about four tensors of that size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Parameters of the kernel."""

    compute: Literal["float64", "float32"] = param(
        default="float64", doc="Element type of scores, softmax and sums (float32 without TF32)."
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lowered:
    """The mask as row intervals and the chunks of rows: int64 (num_chunks, 4) of q_start, q_end, k_start, k_end."""

    intervals: IntervalMask
    chunks: NDArray[np.int64]


def lower(problem: Problem, params: Params, provider: str | None) -> Lowered:
    """Row intervals, and chunks of rows whose scores over all heads stay within the budget."""
    shape = problem.shape
    intervals = interval_mask(problem.slices)
    lo, hi = np.stack(intervals.lo), np.stack(intervals.hi)
    held = lo < hi
    first = np.where(held, lo, problem.slices.seqlen_k).min(axis=0)
    last = np.where(held, hi, 0).max(axis=0)
    cells = _CHUNK_BYTES // (shape.batch * shape.num_heads_q * (8 if params.compute == "float64" else 4))
    chunks, start = [], 0
    while start < problem.slices.seqlen_q:
        # Rows are taken in powers of two until the rectangle they span would be over the budget.
        num_rows = 1
        while start + num_rows < problem.slices.seqlen_q:
            end = min(start + 2 * num_rows, problem.slices.seqlen_q)
            if (end - start) * max(int(last[start:end].max()) - int(first[start:end].min()), 1) > cells:
                break
            num_rows = end - start
        end = start + num_rows
        k_start, k_end = int(first[start:end].min()), int(last[start:end].max())
        if k_start < k_end:
            chunks.append((start, end, k_start, k_end))
        start = end
    return Lowered(intervals=intervals, chunks=np.array(chunks, dtype=np.int64).reshape(-1, 4))


def bind(lowered: Lowered, problem: Problem, params: Params, provider: str, device: Device) -> Reference:
    """The specification on one device."""
    return Reference(lowered, problem, params, device)


class Reference:
    """Tensors stay canonical; out has the inputs' element type, lse the type of the computation."""

    explicit_backward = True
    frees_graph = False
    expected_kernels = ""
    backend = None

    def __init__(self, lowered: Lowered, problem: Problem, params: Params, device: Device) -> None:
        import torch

        self._chunks = lowered.chunks.tolist()
        self._lo = [torch.from_numpy(part).to(device.type) for part in lowered.intervals.lo]
        self._hi = [torch.from_numpy(part).to(device.type) for part in lowered.intervals.hi]
        self._compute = torch.float64 if params.compute == "float64" else torch.float32
        self._scale = 1 / math.sqrt(problem.shape.head_dim)
        self._group_size = problem.shape.group_size

    def load(self, q_BTND: Tensor, k_BSGD: Tensor, v_BSGD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As they are."""
        return q_BTND, k_BSGD, v_BSGD

    def load_dout(self, dout_BTND: Tensor) -> Tensor:
        """As it is."""
        return dout_BTND

    def load_forward(self, out_BTND: Tensor, lse_BNT: Tensor) -> Forward:
        """As they are."""
        return Forward(out=out_BTND, lse=lse_BNT)

    def forward(self, inputs: tuple[Tensor, Tensor, Tensor]) -> Forward:
        """One forward."""
        import torch

        q, k, v = inputs
        out = torch.zeros_like(q)
        lse = torch.full((q.shape[0], q.shape[2], q.shape[1]), -math.inf, dtype=self._compute, device=q.device)
        with _exact_products():
            for q0, q1, _, _, v_BGSD, scores in self._scored(q, k, v):
                part = torch.logsumexp(scores, dim=-1)
                weights = torch.exp(scores - part.masked_fill(part.isneginf(), 0)[..., None])
                out[:, q0:q1] = self._rows(weights @ v_BGSD, q1 - q0).to(out.dtype)
                lse[:, :, q0:q1] = part.reshape(q.shape[0], q.shape[2], q1 - q0)
        return Forward(out=out, lse=lse)

    def backward(
        self, inputs: tuple[Tensor, Tensor, Tensor], forward: Forward, dout: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(dq, dk, dv) from any (out, lse)."""
        import torch

        q, k, v = inputs
        assert forward.lse is not None
        dq = torch.zeros_like(q)
        dk, dv = (torch.zeros(part.transpose(1, 2).shape, dtype=self._compute, device=q.device) for part in (k, v))
        delta = (dout.to(self._compute) * forward.out.to(self._compute)).sum(-1).transpose(1, 2)
        lse = forward.lse.to(self._compute)
        lse = lse.masked_fill(lse.isneginf(), math.inf)
        with _exact_products():
            for (q0, q1, q_BGRD, k_BGSD, v_BGSD, scores), (_, _, k0, k1) in zip(
                self._scored(q, k, v), self._chunks, strict=True
            ):
                grouped = (*k_BGSD.shape[:2], -1, 1)
                weights = torch.exp(scores - lse[:, :, q0:q1].reshape(grouped))
                dout_BGRD = self._groups(dout[:, q0:q1])
                dv[:, :, k0:k1] += weights.mT @ dout_BGRD
                dscores = weights * (dout_BGRD @ v_BGSD.mT - delta[:, :, q0:q1].reshape(grouped)) * self._scale
                dq[:, q0:q1] = self._rows(dscores @ k_BGSD, q1 - q0).to(dq.dtype)
                dk[:, :, k0:k1] += dscores.mT @ q_BGRD
        return dq, dk.transpose(1, 2).to(k.dtype).contiguous(), dv.transpose(1, 2).to(v.dtype).contiguous()

    def canonical_out(self, forward: Forward) -> tuple[Tensor, Tensor | None]:
        """As it is, lse as float32."""
        return forward.out, None if forward.lse is None else forward.lse.float()

    def partial(self, forward: Forward) -> tuple[Tensor, Tensor | None]:
        """(out_BTND, lse_BTN) for merging, in the type of the computation."""
        return forward.out, None if forward.lse is None else forward.lse.transpose(1, 2)

    def canonical_grads(self, grads: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """As they are."""
        return grads

    def _scored(self, q: Tensor, k: Tensor, v: Tensor) -> Iterator[tuple[int, int, Tensor, Tensor, Tensor, Tensor]]:
        """Per chunk: its rows, q (B, G, heads x rows, D), k and v (B, G, keys, D), masked scores."""
        import torch

        for q0, q1, k0, k1 in self._chunks:
            q_BGRD = self._groups(q[:, q0:q1])
            k_BGSD, v_BGSD = (part[:, k0:k1].transpose(1, 2).to(self._compute) for part in (k, v))
            scores = q_BGRD @ k_BGSD.mT * self._scale
            keys = torch.arange(k0, k1, device=q.device)
            allowed = torch.zeros((q1 - q0, k1 - k0), dtype=torch.bool, device=q.device)
            for lo, hi in zip(self._lo, self._hi, strict=True):
                allowed |= (keys >= lo[q0:q1, None]) & (keys < hi[q0:q1, None])
            per_head = scores.view(*scores.shape[:2], -1, q1 - q0, k1 - k0)
            per_head.masked_fill_(~allowed, -math.inf)
            yield q0, q1, q_BGRD, k_BGSD, v_BGSD, scores

    def _groups(self, part: Tensor) -> Tensor:
        """(B, R, N, D) as (B, G, group_size x R, D) in the type of the computation: the heads that share a key."""
        batch, num_rows, num_heads, dim = part.shape
        grouped = part.to(self._compute).transpose(1, 2).reshape(batch, -1, self._group_size * num_rows, dim)
        assert grouped.shape[1] * self._group_size == num_heads
        return grouped

    def _rows(self, part: Tensor, num_rows: int) -> Tensor:
        """The inverse of `_groups`: (B, R, N, D)."""
        return part.reshape(part.shape[0], -1, num_rows, part.shape[-1]).transpose(1, 2)


@contextlib.contextmanager
def _exact_products() -> Iterator[None]:
    """float32 products without TF32 inside, whatever the process allows outside."""
    import torch

    held = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(held)
