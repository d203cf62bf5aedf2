"""What timed gradients must satisfy for any mask, checked on all rows and keys without an oracle.

In each part of a mask that shares no rows and keys with others (a document, mostly), and for each key/value head: the
rows of P sum to 1, so dV sums to the sum of dO over rows that have keys; the rows of dS sum to 0, so dK sums to 0. The
unit of error is what rounding each dK and dV to the dtype does to such a sum, what rounding the lse and delta of a row
to float32 does to its whole row, and for dK what rounding the output does.

Of the last: a row of dS = P (dO V^T - delta) sums to dO (out - out'), since P V = out, where delta = dO out' is taken
from the output as it was stored (Dao et al. 2022, appendix B.2). Its elements differ from out by independent roundings
of RMS ROUNDING eps out, so the row adds scale q dO (out - out') to the sum of dK, of expected square scale^2 |q|^2
(ROUNDING eps)^2 sum over d of (dO out)^2, in each head. P that is rounded before it meets V adds sum over k of P^2
(dO v)^2 in the place of the last sum, and partial results that are rounded before they are merged sum over parts and d
of (dO weight part)^2; where values are independent both are that sum again in expectation, so each counts as one more
rounding of out. Only in short documents does this show beside the rounding of dK: where one key takes nearly all of a
row, dS is next to nothing, and out as large as a value.

Beside that, tensor cores cut what they add to a float32 accumulator instead of rounding it, so a long sum shrinks: by
about half a unit in the last place a step of 16 rows, over all query heads of a group where a kernel adds them in one
accumulator. That much of the sum of dO is allowed for. Seen on an H200: 3.7e-4 at 32,768 rows and 8 heads a group.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from attnspec.execute.attention import ROUNDING
from attnspec.execute.findings import Finding
from attnspec.execute.rows import components
from attnspec.execute.tensors import Tensors
from attnspec.shape import Shape
from attnspec.slices import AttnSlices, row_counts
from attnspec.slices.edges import IntArray

Reduce = Callable[[Tensor], Tensor]
BOUND = 12.0
FLOAT32_EPS = 2.0**-23
ROWS_A_STEP = 16


class Identities:
    """The identities of one mask.

    q_rows, k_rows: positions of the rows and keys that this rank holds (None: all, in order); `reduce` then adds up the
    ranks' partial sums.
    """

    def __init__(
        self,
        shape: Shape,
        slices: AttnSlices,
        device: torch.device,
        *,
        q_rows: IntArray | None = None,
        k_rows: IntArray | None = None,
        reduce: Reduce = lambda partial: partial,
    ) -> None:
        of_q, of_k, num_parts = components(slices)
        counts = row_counts(slices)
        steps_C = np.bincount(of_q[of_q >= 0], minlength=num_parts)[:num_parts] * shape.group_size / ROWS_A_STEP
        if q_rows is not None:
            of_q, counts = of_q[q_rows], counts[q_rows]
        self.shape = shape
        self.queries = _Sums(of_q, num_parts, device, reduce)
        self.keys = _Sums(of_k if k_rows is None else of_k[k_rows], num_parts, device, reduce)
        self.shrinkage_C = torch.from_numpy(steps_C * FLOAT32_EPS / 2).to(device)
        log_counts = 1 + np.log(np.maximum(counts, 1))
        self.lse_noise_T = torch.from_numpy((2 * FLOAT32_EPS * log_counts) ** 2).to(device)

    def check(
        self, tensors: Tensors, out_BTND: Tensor, dk_BSGD: Tensor, dv_BSGD: Tensor, *, partials: int = 1
    ) -> Finding:
        """The worst part and head, of dV and dK. out_BTND, partials: as the implementation made and merged it."""
        assert tensors.dout_BTND is not None
        shape, worst = self.shape, Finding(error=0.0, bound=BOUND)
        num_roundings = 2 if partials == 1 else 3
        out_noise = num_roundings * (ROUNDING * torch.finfo(out_BTND.dtype).eps) ** 2 / shape.head_dim
        for batch in range(shape.batch):
            for head in range(shape.num_heads_kv):
                heads = slice(head * shape.group_size, (head + 1) * shape.group_size)
                dout_TMD, q_TMD = tensors.dout_BTND[batch, :, heads], tensors.q_BTND[batch, :, heads]
                dout_square_T, q_square_T = _square(dout_TMD), _square(q_TMD) / shape.group_size
                wanted_CD = self.queries(dout_TMD.sum(dim=1, dtype=torch.float64))
                dv = self._compare(dv_BSGD[batch, :, head], wanted_CD, dout_square_T * self.lse_noise_T)
                delta_noise_T = dout_square_T * q_square_T * (8 * FLOAT32_EPS) ** 2
                pull_square_TM = _squares(dout_TMD.to(torch.float32) * out_BTND[batch, :, heads])
                delta_noise_T += (pull_square_TM * _squares(q_TMD)).sum(dim=1) * out_noise
                dk = self._compare(dk_BSGD[batch, :, head], None, delta_noise_T)
                for name, demand, found in (("dV", "the sum of dO", dv), ("dK", "0", dk)):
                    if found.index is not None and found.exceeds(worst):
                        (part,) = found.index
                        rows, keys = self.queries.place(part), self.keys.place(part)
                        worst = found.with_reason(
                            "gradient_identity",
                            f"{name} of key/value head {head}, summed over {keys} (for {rows}), differs from {demand} "
                            f"by {found.error:.3g} times rounding (bound {BOUND:g})",
                        )
        return worst

    def _compare(self, grad_SD: Tensor, wanted_CD: Tensor | None, row_noise_T: Tensor) -> Finding:
        wide_SD = grad_SD.to(torch.float64)
        sum_CD = self.keys(wide_SD)
        error_CD = sum_CD if wanted_CD is None else sum_CD - wanted_CD
        rounding = torch.finfo(grad_SD.dtype).eps * ROUNDING
        square_C = self.keys(wide_SD.square_().sum(dim=-1, keepdim=True))[:, 0] * rounding**2
        square_C += self.queries(row_noise_T.to(torch.float64)[:, None])[:, 0]
        unit_C = (square_C / self.shape.head_dim).sqrt().clamp_min(1e-30)
        error_C = error_CD.square().mean(dim=-1).sqrt()
        if wanted_CD is not None:
            error_C = error_C - self.shrinkage_C * wanted_CD.square().mean(dim=-1).sqrt()
            error_C = torch.where(error_C < 0, 0.0, error_C)  # keeps NaN, which must fail
        return Finding.worst_of(error_C / unit_C, bound=BOUND)


class _Sums:
    """Sums of rows per part of the mask, by prefix sums over rows in the order of their parts."""

    def __init__(self, part_of: IntArray, num_parts: int, device: torch.device, reduce: Reduce) -> None:
        self.reduce = reduce
        order = np.argsort(part_of, kind="stable")
        self.bounds = np.searchsorted(part_of[order], np.arange(num_parts + 1))
        self.order = order
        self.whole = bool(np.all(np.diff(order) > 0))
        self.order_R = torch.from_numpy(order).to(device)
        self.bounds_C = torch.from_numpy(self.bounds).to(device)

    def __call__(self, value_RD: Tensor) -> Tensor:
        """float64 sums (parts, D)."""
        held_RD = value_RD if self.whole else value_RD[self.order_R]
        prefix_RD = torch.zeros((len(held_RD) + 1, held_RD.shape[1]), dtype=torch.float64, device=held_RD.device)
        torch.cumsum(held_RD, dim=0, out=prefix_RD[1:])
        return self.reduce(prefix_RD[self.bounds_C[1:]] - prefix_RD[self.bounds_C[:-1]])

    def place(self, part: int) -> str:
        """A part for people: how many positions this rank holds of it, from which on."""
        start, end = self.bounds[part : part + 2].tolist()
        return f"{end - start} positions from {int(self.order[start])} on" if start < end else "0 positions"


def _square(value_TMD: Tensor) -> Tensor:
    return _squares(value_TMD).sum(dim=-1)


def _squares(value_TMD: Tensor) -> Tensor:
    return value_TMD.to(torch.float32).square().sum(dim=-1)
