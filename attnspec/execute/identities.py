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

from collections.abc import Callable, Iterator, Sequence

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
VALUES_AT_ONCE = 2**22
"""Sums that ranks add up in one exchange, 32 MiB; those of one head where that alone has more."""


class Identities:
    """The identities of one mask.

    q_rows, k_rows: positions of the rows and keys that this rank holds (None: all, in order); `reduce` then adds up the
    ranks' partial sums, those of as many heads at once as VALUES_AT_ONCE lets in.
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
        self.shape, self.num_parts, self.reduce = shape, num_parts, reduce
        self.queries = _Sums(of_q, num_parts, device)
        self.keys = _Sums(of_k if k_rows is None else of_k[k_rows], num_parts, device)
        self.shrinkage_C = torch.from_numpy(steps_C * FLOAT32_EPS / 2).to(device)
        log_counts = 1 + np.log(np.maximum(counts, 1))
        self.lse_noise_T = torch.from_numpy((2 * FLOAT32_EPS * log_counts) ** 2).to(device)

    def check(
        self, tensors: Tensors, out_BTND: Tensor, dk_BSGD: Tensor, dv_BSGD: Tensor, *, partials: int = 1
    ) -> Finding:
        """The worst part and head, of dV and dK. out_BTND, partials: as the implementation made and merged it."""
        shape, worst = self.shape, Finding(error=0.0, bound=BOUND)
        num_roundings = 2 if partials == 1 else 3
        out_noise = num_roundings * (ROUNDING * torch.finfo(out_BTND.dtype).eps) ** 2 / shape.head_dim
        widths = (*[shape.head_dim] * 3, *[1] * 4)
        every = [(batch, head) for batch in range(shape.batch) for head in range(shape.num_heads_kv)]
        at_once = max(1, VALUES_AT_ONCE // max(1, self.num_parts * sum(widths)))
        for first in range(0, len(every), at_once):
            places = every[first : first + at_once]
            size = (len(places), self.num_parts, sum(widths))
            sums_HCW = torch.empty(size, dtype=torch.float64, device=out_BTND.device)
            for (batch, head), sums_CW in zip(places, sums_HCW, strict=True):
                held = self._sums(tensors, out_BTND, dk_BSGD, dv_BSGD, batch, head, out_noise)
                for target_C, sum_C in zip(sums_CW.split(widths, dim=-1), held, strict=True):
                    target_C.copy_(sum_C)
            for (_, head), sums_CW in zip(places, self.reduce(sums_HCW), strict=True):
                worst = self._worse(worst, head, sums_CW.split(widths, dim=-1), (dv_BSGD.dtype, dk_BSGD.dtype))
        return worst

    def _sums(
        self,
        tensors: Tensors,
        out_BTND: Tensor,
        dk_BSGD: Tensor,
        dv_BSGD: Tensor,
        batch: int,
        head: int,
        out_noise: float,
    ) -> Iterator[Tensor]:
        """Of one key/value head, over what this rank holds: dO, dV and dK (parts, D); then (parts, 1) the squares of
        dV and dK and the noise of the rows in each."""
        assert tensors.dout_BTND is not None
        heads = slice(head * self.shape.group_size, (head + 1) * self.shape.group_size)
        dout_TMD, q_TMD = tensors.dout_BTND[batch, :, heads], tensors.q_BTND[batch, :, heads]
        yield self.queries(dout_TMD.sum(dim=1, dtype=torch.float64))
        squares = []
        for grad_BSGD in (dv_BSGD, dk_BSGD):
            wide_SD = grad_BSGD[batch, :, head].to(torch.float64)
            yield self.keys(wide_SD)
            squares.append(self.keys(torch.linalg.vector_norm(wide_SD, dim=-1, keepdim=True).square()))
        yield from squares
        dout_square_T, q_square_T = _square(dout_TMD), _square(q_TMD) / self.shape.group_size
        delta_noise_T = dout_square_T * q_square_T * (8 * FLOAT32_EPS) ** 2
        pull_square_TM = _squares(dout_TMD.to(torch.float32) * out_BTND[batch, :, heads])
        delta_noise_T += (pull_square_TM * _squares(q_TMD)).sum(dim=1) * out_noise
        for noise_T in (dout_square_T * self.lse_noise_T, delta_noise_T):
            yield self.queries(noise_T.to(torch.float64)[:, None])

    def _worse(
        self, worst: Finding, head: int, sums: Sequence[Tensor], dtypes: tuple[torch.dtype, torch.dtype]
    ) -> Finding:
        """The worse of a finding and those of one head, of whose sums of all ranks there are those of `_sums`."""
        wanted_CD, dv_CD, dk_CD, dv_square_C, dk_square_C, dv_noise_C, dk_noise_C = sums
        dv = self._compare(dv_CD, wanted_CD, dv_square_C[:, 0], dv_noise_C[:, 0], dtypes[0])
        dk = self._compare(dk_CD, None, dk_square_C[:, 0], dk_noise_C[:, 0], dtypes[1])
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

    def _compare(
        self, sum_CD: Tensor, wanted_CD: Tensor | None, square_C: Tensor, row_noise_C: Tensor, dtype: torch.dtype
    ) -> Finding:
        error_CD = sum_CD if wanted_CD is None else sum_CD - wanted_CD
        variance_C = square_C * (torch.finfo(dtype).eps * ROUNDING) ** 2 + row_noise_C
        unit_C = (variance_C / self.shape.head_dim).sqrt().clamp_min(1e-30)
        error_C = error_CD.square().mean(dim=-1).sqrt()
        if wanted_CD is not None:
            error_C = error_C - self.shrinkage_C * wanted_CD.square().mean(dim=-1).sqrt()
            error_C = torch.where(error_C < 0, 0.0, error_C)  # keeps NaN, which must fail
        return Finding.worst_of(error_C / unit_C, bound=BOUND)


class _Sums:
    """Sums of rows per part of the mask, by prefix sums over rows in the order of their parts."""

    def __init__(self, part_of: IntArray, num_parts: int, device: torch.device) -> None:
        order = np.argsort(part_of, kind="stable")
        self.bounds = np.searchsorted(part_of[order], np.arange(num_parts + 1))
        self.order = order
        self.whole = bool(np.all(np.diff(order) > 0))
        self.order_R = torch.from_numpy(order).to(device)
        self.bounds_C = torch.from_numpy(self.bounds).to(device)

    def __call__(self, value_RD: Tensor) -> Tensor:
        """float64 sums (parts, D) over what this rank holds."""
        held_RD = value_RD if self.whole else value_RD[self.order_R]
        prefix_RD = torch.zeros((len(held_RD) + 1, held_RD.shape[1]), dtype=torch.float64, device=held_RD.device)
        torch.cumsum(held_RD, dim=0, out=prefix_RD[1:])
        return prefix_RD[self.bounds_C[1:]] - prefix_RD[self.bounds_C[:-1]]

    def place(self, part: int) -> str:
        """A part for people: how many positions this rank holds of it, from which on."""
        start, end = self.bounds[part : part + 2].tolist()
        return f"{end - start} positions from {int(self.order[start])} on" if start < end else "0 positions"


def _square(value_TMD: Tensor) -> Tensor:
    return _squares(value_TMD).sum(dim=-1)


def _squares(value_TMD: Tensor) -> Tensor:
    return value_TMD.to(torch.float32).square().sum(dim=-1)
