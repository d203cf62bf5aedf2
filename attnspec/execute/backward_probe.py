"""The mask probe's backward: exact dQ of every row, and dK and dV of every key, are known without S x S.

In the probe q has values in the first half of head_dim alone and k in the second, so all scores are 0 and P is 1 / n on
a row of n keys. V holds codes and dO of a row is one sign s in every element, so dP of a key is s times the sum c of
its codes, and dS is s (c - m) / n with m the mean of c over the row's keys. So

    dQ = scale x s / n x sum over keys of (c - m) k,   dK = scale x sum over rows of s (c - m) / n x q,
    dV = sum over rows of s / n.

Sums over a row's key intervals are differences of prefix sums, sums over a key's rows are prefix sums of differences. A
row that is left out is off by all of its size, of which rounding is some 1 / 400 in bfloat16; m keys of a row, or rows
of a key, too many or too few of n alike ones are off by about sqrt(m / n) of it. Single keys of long rows and what
softmax does are for the oracle's rows and the identities.

The unit of an error is what rounding must be expected to do: of P and dS per pair, of delta by the output as stored
(one number per row and head), of the result, and once more each where partial results are merged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from attnspec.execute.attention import PULL_EPS, ROUNDING, SOFTMAX_EPS
from attnspec.execute.findings import Finding, where
from attnspec.execute.oracle import FLOOR_EPS
from attnspec.execute.probe import CHUNK_VALUES, Codes
from attnspec.slices.edges import IntArray

BOUND = 12.0
PREFIX_EPS = 2.0**-52
ROWS_AT_ONCE = 2**14
"""Of q of the whole sequence, which a rank makes anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """What a kernel that computes in `dtype` does to numbers, as squared shares of them.

    pair: to P or dS of a row and a key; stored: to an output; result: to a gradient; inside: eps of sums inside.
    """

    pair: float
    stored: float
    result: float
    inside: float
    merged: bool

    @classmethod
    def of(cls, dtype: torch.dtype, lse_tolerance: float, *, merged: bool) -> Rounding:
        """lse_tolerance: as in BoundKernel. merged: whether partial results are rounded and merged."""
        inside = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
        stored, times = (ROUNDING * torch.finfo(dtype).eps) ** 2, 1 + merged
        return cls(
            pair=stored * times + (SOFTMAX_EPS * inside) ** 2 + lse_tolerance**2,
            stored=stored,
            result=(FLOOR_EPS[dtype] * torch.finfo(dtype).eps) ** 2 * times + lse_tolerance**2,
            inside=inside,
            merged=merged,
        )


def halves(q_BTND: Tensor, k_BSGD: Tensor) -> tuple[Tensor, Tensor]:
    """The probe's q and k: all products of a query and a key are 0.

    >>> [one.tolist() for one in halves(torch.ones(4), torch.ones(4))]
    [[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]]
    """
    half = q_BTND.shape[-1] // 2
    q_BTND, k_BSGD = q_BTND.clone(), k_BSGD.clone()
    q_BTND[..., half:], k_BSGD[..., :half] = 0, 0
    return q_BTND, k_BSGD


def dout_of(codes: Codes, like_BTND: Tensor) -> Tensor:
    """dO of the rows that `codes` is about."""
    return codes.signs_T.to(like_BTND.dtype)[:, None, None].expand_as(like_BTND).contiguous()


def check_dq(codes: Codes, k_BSGD: Tensor, dq_BTND: Tensor, rounding: Rounding) -> Finding:
    """Compare dQ of all rows that `codes` is about with what the mask demands; rows without keys must be exactly 0.

    k_BSGD: keys of the whole sequence, before `halves`.
    """
    worst, group = Finding(error=0.0, bound=BOUND), dq_BTND.shape[2] // k_BSGD.shape[2]
    for batch, head_kv, rows, right_PD, unit_P in _dq(codes, k_BSGD, rounding):
        heads = slice(head_kv * group, (head_kv + 1) * group)
        error_PMD = dq_BTND[batch, rows, heads].to(torch.float64) - right_PD[:, None]
        error_PM = error_PMD.square().mean(dim=-1).sqrt()
        found = Finding.worst_of(error_PM / unit_P[:, None], bound=BOUND)
        if found.index is not None and found.exceeds(worst):
            row, head = found.index
            size = float(right_PD[row].square().mean().sqrt())
            worst = found.with_reason(
                "dq",
                f"dq of the mask probe: {where(codes.rows[rows.start + row], heads.start + head)}: RMS error "
                f"{float(error_PM[row, head]):.3g} of {size:.3g} over {int(codes.counts_T[rows.start + row])} keys is "
                f"{found.error:.3g} times rounding (bound {BOUND:g}); the backward leaves the row out, or sees other "
                "keys than the mask allows",
            )
    return worst


def check_dk_dv(
    every: Codes,
    q_rows_of: Callable[[IntArray], Tensor],
    dk_BSGD: Tensor,
    dv_BSGD: Tensor,
    k_rows: IntArray | None,
    rounding: Rounding,
) -> Finding:
    """Compare dK and dV of all keys that a rank holds (`k_rows`; None: all) with what the mask demands.

    every: codes with the intervals of all rows. q_rows_of: q of chosen rows of the whole sequence, before `halves`.
    """
    worst = Finding(error=0.0, bound=BOUND)
    for batch, head, right in _dk_dv(every, q_rows_of, rounding):
        for name, got_BSGD in (("dk", dk_BSGD), ("dv", dv_BSGD)):
            right_SD, unit_S = right[name]
            if k_rows is not None:
                held = torch.from_numpy(k_rows).to(right_SD.device)
                right_SD, unit_S = right_SD[held], unit_S[held]
            error_S = (got_BSGD[batch, :, head].to(torch.float64) - right_SD).square().mean(dim=-1).sqrt()
            found = Finding.worst_of(error_S / unit_S, bound=BOUND)
            if found.index is not None and found.exceeds(worst):
                (key,) = found.index
                place = key if k_rows is None else int(k_rows[key])
                size = float(right_SD[key].square().mean().sqrt())
                worst = found.with_reason(
                    name,
                    f"{name} of the mask probe: key {place}, key/value head {head}: RMS error "
                    f"{float(error_S[key]):.3g} of {size:.3g} is {found.error:.3g} times rounding (bound {BOUND:g}); "
                    "the backward leaves rows out, or sees others than the mask allows",
                )
    return worst


def _dq(codes: Codes, k_BSGD: Tensor, rounding: Rounding) -> Iterator[tuple[int, int, slice, Tensor, Tensor]]:
    """(batch, key/value head, chunk of rows, right dQ (rows, D), unit (rows,)), in float64."""
    width, scale, inside = k_BSGD.shape[3], 1.0 / math.sqrt(k_BSGD.shape[3]), rounding.inside
    for batch, head in ((batch, head) for batch in range(k_BSGD.shape[0]) for head in range(k_BSGD.shape[2])):
        code_SD, key_SD = codes.codes_SGD[:, head].to(torch.float64), k_BSGD[batch, :, head].to(torch.float64)
        key_SD = torch.cat([torch.zeros_like(key_SD[:, : width // 2]), key_SD[:, width // 2 :]], dim=1)
        pull_S1, size_S1 = code_SD.sum(dim=1, keepdim=True), key_SD.square().sum(dim=1, keepdim=True)
        products = pull_S1.square() * size_S1, pull_S1 * size_S1, size_S1
        means = _Means(codes, torch.cat([pull_S1 * key_SD, key_SD, code_SD, pull_S1, *products], dim=1))
        blur = PREFIX_EPS**2 * len(key_SD) * float((products[0] + width * size_S1).sum())
        for rows, some_P, mean_PW in means.chunks():
            pulled_PD, key_PD, out_PD, sums_P4 = torch.split(mean_PW, [width, width, width, 4], dim=1)
            mean_P, square_P, cross_P, size_P = sums_P4.unbind(dim=1)
            right_PD = (pulled_PD - mean_P[:, None] * key_PD) * scale
            spread_P = (square_P - 2 * mean_P * cross_P + mean_P.square() * size_P).clamp_min(0.0) / some_P
            variance_P = spread_P * rounding.pair
            variance_P += _stored(out_PD, some_P, codes.spelt, rounding) * key_PD.square().sum(dim=1)
            variance_P += ((PULL_EPS * inside) ** 2 * width * size_P + blur / some_P) / some_P
            variance_P = scale**2 * variance_P + rounding.result * right_PD.square().sum(dim=1)
            unit_P = torch.where(codes.counts_T[rows] > 0, (variance_P / width).sqrt(), 0.0).clamp_min(1e-30)
            yield batch, head, rows, codes.signs_T[rows, None] * right_PD, unit_P


def _stored(out_PD: Tensor, some_P: Tensor, spelt: int, rounding: Rounding) -> Tensor:
    """Squared error of delta by the output as stored; of merged parts the outputs are larger than their sum."""
    parts_P = rounding.merged * (out_PD.shape[1] / some_P + spelt)
    return rounding.stored * (out_PD.square().sum(dim=1) + parts_P)


Right = dict[str, tuple[Tensor, Tensor]]


def _dk_dv(
    every: Codes, q_rows_of: Callable[[IntArray], Tensor], rounding: Rounding
) -> Iterator[tuple[int, int, Right]]:
    """(batch, key/value head, right values (S, D) and units (S,) of dk and dv), in float64."""
    num_keys, num_heads, width = every.codes_SGD.shape
    half, scale, device = width // 2, 1.0 / math.sqrt(width), every.codes_SGD.device
    group, sums_BTGH = _group_sums(every.rows, q_rows_of, num_heads, half)
    for head in range(num_heads):
        code_SD = every.codes_SGD[:, head].to(torch.float64)
        means = _Means(every, torch.cat([code_SD, code_SD.sum(dim=1, keepdim=True)], dim=1))
        steps_BSW = torch.zeros((len(sums_BTGH), num_keys + 1, 2 * half + 6), dtype=torch.float64, device=device)
        for rows, some_P, mean_PW in means.chunks():
            weight_P, mean_P = every.signs_T[rows] / some_P, mean_PW[:, -1]
            stored_P = _stored(mean_PW[:, :-1], some_P, every.spelt, rounding)
            for steps_SW, sum_PD in zip(steps_BSW, sums_BTGH[:, rows, head], strict=True):
                size_P = sum_PD.square().sum(dim=1) / some_P.square()
                scalars = torch.stack(
                    [size_P, mean_P * size_P, mean_P.square() * size_P, stored_P * size_P, weight_P, some_P**-2], dim=1
                )
                weighted_PD = weight_P[:, None] * sum_PD
                change_PW = torch.cat([weighted_PD, mean_P[:, None] * weighted_PD, scalars], dim=1)
                for lo_T, hi_T in zip(every.lo_IT[:, rows], every.hi_IT[:, rows], strict=True):
                    used_P = lo_T < hi_T
                    steps_SW.index_add_(0, lo_T[used_P], change_PW[used_P])
                    steps_SW.index_add_(0, hi_T[used_P], change_PW[used_P], alpha=-1)
        for batch, steps_SW in enumerate(steps_BSW):
            blur_W = PREFIX_EPS**2 * num_keys * steps_SW.square().sum(dim=0)
            sums_SW = torch.cumsum(steps_SW, dim=0)[:-1]
            own_SD, mean_SD, scalars_S6 = torch.split(sums_SW, [half, half, 6], dim=1)
            size_S, cross_S, square_S, stored_S, weight_S, count_S = scalars_S6.unbind(dim=1)
            pull_S = every.codes_SGD[:, head].sum(dim=1, dtype=torch.float64)
            dk_SD = torch.zeros((num_keys, width), dtype=torch.float64, device=device)
            dk_SD[:, :half] = (pull_S[:, None] * own_SD - mean_SD) * scale
            spread_S = (pull_S.square() * size_S - 2 * pull_S * cross_S + square_S).clamp_min(0.0)
            pulls_S = (PULL_EPS * rounding.inside) ** 2 * width * size_S
            blur_S = pull_S.square() * blur_W[:half].sum() + blur_W[half : 2 * half].sum()
            variance_S = scale**2 * (spread_S * rounding.pair + stored_S + pulls_S + blur_S)
            variance_S += rounding.result * dk_SD.square().sum(dim=1)
            dv_S = group * weight_S
            # Rows of nearly as many keys round P alike.
            dv_variance_S = group**2 * (rounding.pair * count_S + blur_W[-2])
            dv_variance_S += (rounding.pair + rounding.result) * dv_S.square()
            seen_S = _seen(every, num_keys)
            units = ((variance_S / width), dv_variance_S)
            dk_unit_S, dv_unit_S = (
                torch.where(seen_S, one.clamp_min(0.0).sqrt(), 0.0).clamp_min(1e-30) for one in units
            )
            dk_SD[~seen_S], dv_S = 0, torch.where(seen_S, dv_S, 0.0)
            yield batch, head, {"dk": (dk_SD, dk_unit_S), "dv": (dv_S[:, None].expand(-1, width), dv_unit_S)}


def _group_sums(
    rows: IntArray, q_rows_of: Callable[[IntArray], Tensor], num_heads_kv: int, half: int
) -> tuple[int, Tensor]:
    """(query heads of a key/value head, sums over these of the first half of q (B, T, G, D / 2), float64)."""
    group, sums = 1, []
    for start in range(0, len(rows), ROWS_AT_ONCE):
        q_BPND = q_rows_of(rows[start : start + ROWS_AT_ONCE])[..., :half]
        q_BPGMD = torch.unflatten(q_BPND, 2, (num_heads_kv, -1))
        group = q_BPGMD.shape[3]
        sums.append(q_BPGMD.sum(dim=3, dtype=torch.float64))
    return group, torch.cat(sums, dim=1)


def _seen(every: Codes, num_keys: int) -> Tensor:
    """Which keys any row sees."""
    steps_S = torch.zeros(num_keys + 1, dtype=torch.int64, device=every.lo_IT.device)
    for lo_T, hi_T in zip(every.lo_IT, every.hi_IT, strict=True):
        one_T = torch.ones_like(lo_T)
        steps_S.index_add_(0, lo_T, one_T)
        steps_S.index_add_(0, hi_T, one_T, alpha=-1)
    return torch.cumsum(steps_S, dim=0)[:-1] > 0


class _Means:
    """Means over the keys of rows, by prefix sums; 0 for rows without keys."""

    def __init__(self, codes: Codes, values_SW: Tensor) -> None:
        self._codes = codes
        self._prefix_SW = values_SW.new_zeros((len(values_SW) + 1, values_SW.shape[1]))
        torch.cumsum(values_SW, dim=0, out=self._prefix_SW[1:])

    def chunks(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """(rows, their number of keys but at least 1, means (rows, W))."""
        codes, width = self._codes, self._prefix_SW.shape[1]
        chunk = max(1, CHUNK_VALUES[self._prefix_SW.device.type] // width)
        for start in range(0, len(codes.counts_T), chunk):
            rows = slice(start, min(start + chunk, len(codes.counts_T)))
            total_PW = self._prefix_SW.new_zeros((rows.stop - start, width))
            for lo_T, hi_T in zip(codes.lo_IT, codes.hi_IT, strict=True):
                total_PW += self._prefix_SW[hi_T[rows]] - self._prefix_SW[lo_T[rows]]
            some_P = codes.counts_T[rows].to(torch.float64).clamp_min(1.0)
            yield rows, some_P, total_PW / some_P[:, None]
