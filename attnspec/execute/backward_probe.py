"""The mask probe's backward: one more call, whose exact dQ is known for every row, without S x S.

The probe has q = 0 and codes for V; with dO = 1 in every element, dP of a key is the sum c of its codes and P is 1 / n
on a row of n keys, so dQ = scale / n x sum over keys of (c - mean c) k. Sums over a row's key intervals are differences
of prefix sums. A row that is left out is off by all of its size, of which rounding is some 1 / 400 in bfloat16; m keys
too many or too few of n are off by about sqrt(m / n) of it. Single keys of long rows and what softmax does are for the
oracle's rows and the identities.

The unit of a row's error is what rounding must be expected to do: of P and dS per key, of delta by the output as stored
(one number per row and head), of the result, and once more each where partial results are merged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from attnspec.execute.attention import PULL_EPS, ROUNDING, SOFTMAX_EPS
from attnspec.execute.findings import Finding, where
from attnspec.execute.oracle import FLOOR_EPS
from attnspec.execute.probe import CHUNK_VALUES, Codes

BOUND = 12.0
PREFIX_EPS = 2.0**-52


def check_dq(
    codes: Codes, k_BSGD: Tensor, dq_BTND: Tensor, *, lse_tolerance: float = 0.0, partials: int = 1
) -> Finding:
    """Compare dQ of all rows that `codes` is about with what the mask demands; rows without keys must be exactly 0.

    k_BSGD: keys of the whole sequence. dq_BTND: of the probe with dO = 1. partials: into how many parts the keys of a
    row may be split and merged.
    """
    worst, dtype = Finding(error=0.0, bound=BOUND), dq_BTND.dtype
    group = dq_BTND.shape[2] // codes.codes_SGD.shape[1]
    for batch, head_kv, rows, expected_PD, unit_P in _expected(
        codes, k_BSGD, dtype, lse_tolerance, merged=partials > 1
    ):
        heads = slice(head_kv * group, (head_kv + 1) * group)
        error_PMD = dq_BTND[batch, rows, heads].to(torch.float64) - expected_PD[:, None]
        error_PM = error_PMD.square().mean(dim=-1).sqrt()
        found = Finding.worst_of(error_PM / unit_P[:, None], bound=BOUND)
        if found.index is not None and found.exceeds(worst):
            row, head = found.index
            size = float(expected_PD[row].square().mean().sqrt())
            worst = found.with_reason(
                "dq",
                f"dq of the mask probe: {where(codes.rows[rows.start + row], heads.start + head)}: RMS error "
                f"{float(error_PM[row, head]):.3g} of {size:.3g} over {int(codes.counts_T[rows.start + row])} keys is "
                f"{found.error:.3g} times rounding (bound {BOUND:g}); the backward leaves the row out, or sees other "
                "keys than the mask allows",
            )
    return worst


def _expected(
    codes: Codes, k_BSGD: Tensor, dtype: torch.dtype, lse_tolerance: float, *, merged: bool
) -> Iterator[tuple[int, int, slice, Tensor, Tensor]]:
    """(batch, key/value head, chunk of rows, expected dQ (rows, D), unit (rows,)), in float64."""
    width, scale = k_BSGD.shape[3], 1.0 / math.sqrt(k_BSGD.shape[3])
    rounded = (ROUNDING * torch.finfo(dtype).eps) ** 2
    inside = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
    result = (FLOOR_EPS[dtype] * torch.finfo(dtype).eps) ** 2 * (1 + merged) + lse_tolerance**2
    chunk = max(1, CHUNK_VALUES[k_BSGD.device.type] // (3 * width))
    for batch, head in ((batch, head) for batch in range(k_BSGD.shape[0]) for head in range(k_BSGD.shape[2])):
        prefix_SW = _prefix_sums(codes.codes_SGD[:, head].to(torch.float64), k_BSGD[batch, :, head].to(torch.float64))
        blur = PREFIX_EPS**2 * len(prefix_SW) * (prefix_SW[-1, -3] + width * prefix_SW[-1, -1])
        for start in range(0, len(codes.counts_T), chunk):
            rows = slice(start, min(start + chunk, len(codes.counts_T)))
            total_PW = prefix_SW.new_zeros((rows.stop - start, prefix_SW.shape[1]))
            for lo_T, hi_T in zip(codes.lo_IT, codes.hi_IT, strict=True):
                total_PW += prefix_SW[hi_T[rows]] - prefix_SW[lo_T[rows]]
            count_P = codes.counts_T[rows].to(torch.float64)
            some_P = count_P.clamp_min(1.0)
            pulled_PD, key_PD, out_PD, sums_P4 = torch.split(
                total_PW / some_P[:, None], [width, width, width, 4], dim=1
            )
            mean_P, square_P, cross_P, size_P = sums_P4.unbind(dim=1)
            expected_PD = (pulled_PD - mean_P[:, None] * key_PD) * scale
            spread_P = (square_P - 2 * mean_P * cross_P + mean_P.square() * size_P).clamp_min(0.0) / some_P
            out_P = out_PD.square().sum(dim=1) + merged * (width / some_P + codes.spelt)
            variance_P = spread_P * (rounded * (1 + merged) + (SOFTMAX_EPS * inside) ** 2)
            variance_P += rounded * out_P * key_PD.square().sum(dim=1)
            variance_P += ((PULL_EPS * inside) ** 2 * width * size_P + blur / some_P) / some_P
            variance_P = scale**2 * variance_P + result * expected_PD.square().sum(dim=1)
            unit_P = torch.where(count_P > 0, (variance_P / width).sqrt(), 0.0).clamp_min(1e-30)
            yield batch, head, rows, expected_PD, unit_P


def _prefix_sums(code_SD: Tensor, key_SD: Tensor) -> Tensor:
    """Before each key and after the last, sums of c k, of k and of codes, and of c, c^2 |k|^2, c |k|^2, |k|^2."""
    pull_S1, size_S1 = code_SD.sum(dim=1, keepdim=True), key_SD.square().sum(dim=1, keepdim=True)
    parts = (
        *(pull_S1 * key_SD, key_SD, code_SD),
        *(pull_S1, pull_S1.square() * size_S1, pull_S1 * size_S1, size_S1),
    )
    every_SW = torch.cat(parts, dim=1)
    prefix_SW = every_SW.new_zeros((len(every_SW) + 1, every_SW.shape[1]))
    torch.cumsum(every_SW, dim=0, out=prefix_SW[1:])
    return prefix_SW
