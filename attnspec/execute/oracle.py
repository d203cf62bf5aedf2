"""The float64 oracle on sampled rows, and how far plain attention in the workload's own dtype is from it.

Computed once per workload and pack, shared by all implementations and passes. The output's gradient is taken as zero
outside the sampled rows, so that dK and dV of all columns follow from these rows alone. Memory is bounded by a budget
per matrix of scores, not by S x S.

Plain attention: scores and softmax float32, P rounded to the dtype, float32 accumulation, results rounded to the dtype.
Its error per row is the unit in which a kernel's error is measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from attnspec.execute.attention import ROUNDING, Inputs, Results, exact, plain
from attnspec.shape import Shape
from attnspec.slices import AttnSlices, RowIntervals, row_intervals
from attnspec.slices.edges import IntArray

FAST_FLOAT64 = frozenset({(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)})
"""CUDA compute capabilities whose float64 runs at half the float32 rate or better."""
SCORE_BYTES = {"cpu": 2**25, "cuda": 2**29}
"""Budget of one float64 matrix of scores per device type; about eight of them live at once."""
MILLIONTH = 4.7534
"""A standard normal variable exceeds it once in a million."""
LSE_UNIT, LSE_UNIT_RELATIVE = 1e-6, 1.5 * 2**-23
FLOOR_EPS = {torch.bfloat16: ROUNDING, torch.float16: ROUNDING, torch.float32: 1.0, torch.float64: 1.0}
"""Least unit of a row, over eps times its size: the rounding of the result, or of sums as narrow as the result."""


@dataclass(slots=True, kw_only=True)
class Truth:
    """Right values on R sampled rows and for all S columns, and the unit of error of each row.

    Shape suffixes as in attnspec.support.bound. rows_R: positions of the sampled queries. The gradients are those of a
    dO that is zero outside the sampled rows. precision: what it was computed in. partials: in how many parts plain
    attention split the keys, one key to each in turn, so that a document of few tokens is split too.
    """

    rows_R: IntArray
    precision: str
    partials: int
    out_BRND: Tensor
    lse_BNR: Tensor
    out_unit_R: Tensor
    lse_unit_BNR: Tensor
    grads: GradientTruth | None


@dataclass(slots=True, kw_only=True)
class GradientTruth:
    """Right gradients and their units."""

    dq_BRND: Tensor
    dk_BSGD: Tensor
    dv_BSGD: Tensor
    dq_unit_R: Tensor
    dk_unit_S: Tensor
    dv_unit_S: Tensor


def precision_for(device: torch.device, dtype: str) -> torch.dtype:
    """float64 where it is fast or the dtype itself needs it, else float32 (never TF32)."""
    if device.type != "cuda" or dtype in ("float32", "float64"):
        return torch.float64
    return torch.float64 if torch.cuda.get_device_capability(device) in FAST_FLOAT64 else torch.float32


@contextmanager
def exact_float32() -> Iterator[None]:
    """float32 matrix products without TF32 or bfloat16 inside; no gradients are recorded."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def truth(
    shape: Shape,
    slices: AttnSlices,
    rows: IntArray,
    *,
    q_BRND: Tensor,
    k_BSGD: Tensor,
    v_BSGD: Tensor,
    dout_BRND: Tensor | None,
    partials: int = 1,
    precision: torch.dtype | None = None,
) -> Truth:
    """The oracle on `rows` of one pack: queries and gradients of these rows, keys and values of the whole sequence."""
    device, dtype = q_BRND.device, q_BRND.dtype
    precision = precision_for(device, shape.dtype) if precision is None else precision
    intervals = row_intervals(slices, rows)
    parts = _parts(intervals, SCORE_BYTES[device.type] // (8 * shape.group_size))
    sums = _Sums(shape, len(rows), slices.seqlen_k, dtype, precision, device, backward=dout_BRND is not None)
    lo, hi = torch.from_numpy(intervals.lo).to(device), torch.from_numpy(intervals.hi).to(device)
    scale, group = 1.0 / math.sqrt(shape.head_dim), shape.group_size
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    spread = delta_spread(shape.batch * shape.num_heads_q)
    with exact_float32():
        for batch in range(shape.batch):
            for head in range(shape.num_heads_kv):
                heads = slice(head * group, (head + 1) * group)
                q_MRD = q_BRND[batch, :, heads].transpose(0, 1)
                dout_MRD = None if dout_BRND is None else dout_BRND[batch, :, heads].transpose(0, 1)
                k_SD, v_SD = k_BSGD[batch, :, head], v_BSGD[batch, :, head]
                columns = sums.columns(batch, head)
                for part in parts:
                    mine, keys = slice(part.start, part.end), slice(part.k_start, part.k_end)
                    keys_C = torch.arange(part.k_start, part.k_end, device=device)
                    inputs = Inputs(
                        q_MPD=q_MRD[:, mine],
                        k_CD=k_SD[keys],
                        v_CD=v_SD[keys],
                        mask_PC=_mask(lo[:, mine], hi[:, mine], keys_C),
                        dout_MPD=None if dout_MRD is None else dout_MRD[:, mine],
                        scale=scale,
                    )
                    right, noise = exact(inputs.to(precision), dtype, delta_spread=spread)
                    pieces_C = [keys_C % partials == piece for piece in range(partials)]
                    rough, merged = plain(inputs.to(wide), dtype, pieces_C)
                    sums.add_rows(batch, heads, mine, right, rough)
                    sums.noise["out"][mine] += noise.out_P + merged.out_P
                    if columns is not None:
                        assert right.grads is not None and rough.grads is not None
                        assert noise.dq_P is not None and noise.dk_C is not None and noise.dv_C is not None
                        assert merged.dq_P is not None
                        sums.noise["dq"][mine] += noise.dq_P + merged.dq_P
                        sums.noise["dk"][keys] += noise.dk_C
                        sums.noise["dv"][keys] += noise.dv_C
                        columns.add(keys, right, rough)
                if columns is not None:
                    sums.finish_columns(batch, head, columns)
    return sums.truth(rows, partials)


def delta_spread(num_heads: int) -> float:
    """How much more than expected delta's rounding may be by chance, in squares, where a bound of 2 allows for 4.

    It is one number per row and head, so that a mean over few heads strays: this is the one-in-a-million quantile of a
    chi-squared mean (Wilson and Hilferty's approximation, 1931).

    >>> [round(delta_spread(heads), 2) for heads in (1, 2, 4, 8, 64)]
    [6.88, 3.78, 2.2, 1.37, 1.0]
    """
    part = 2 / (9 * num_heads)
    return max(1.0, (1 - part + MILLIONTH * math.sqrt(part)) ** 3 / 4)


class _Part(NamedTuple):
    """Sampled rows [start, end) and the keys [k_start, k_end) that hold all of theirs."""

    start: int
    end: int
    k_start: int
    k_end: int


def _parts(rows: RowIntervals, max_cells: int) -> list[_Part]:
    """Neighbouring rows together while their common key range stays tight and within `max_cells`."""
    if rows.num_intervals == 0:
        return []
    first = np.where(rows.hi > rows.lo, rows.lo, np.iinfo(np.int64).max).min(axis=0)
    last = rows.hi.max(axis=0)
    parts: list[_Part] = []
    start, k_start, k_end = 0, 0, 0
    for row, (lo, hi) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        if hi == 0:
            continue
        together = (min(k_start, lo), max(k_end, hi))
        apart = (lo >= k_end or hi <= k_start) and row - start >= 8
        if k_end == 0:
            start, k_start, k_end = row, lo, hi
        elif apart or (row + 1 - start) * (together[1] - together[0]) > max_cells:
            parts.append(_Part(start, row, k_start, k_end))
            start, k_start, k_end = row, lo, hi
        else:
            k_start, k_end = together
    if k_end:
        parts.append(_Part(start, len(first), k_start, k_end))
    return parts


def _mask(lo_IP: Tensor, hi_IP: Tensor, keys_C: Tensor) -> Tensor:
    mask_PC = torch.zeros((lo_IP.shape[1], len(keys_C)), dtype=torch.bool, device=keys_C.device)
    for lo_P, hi_P in zip(lo_IP, hi_IP, strict=True):
        mask_PC |= (keys_C >= lo_P[:, None]) & (keys_C < hi_P[:, None])
    return mask_PC


class _Columns:
    """dK and dV of one key/value head over all keys: right ones, and plain attention's sums before rounding."""

    def __init__(
        self, seqlen_k: int, width: int, precision: torch.dtype, wide: torch.dtype, device: torch.device
    ) -> None:
        self.dk_SD, self.dv_SD = (torch.zeros((seqlen_k, width), dtype=precision, device=device) for _ in "kv")
        self.plain_dk_SD, self.plain_dv_SD = (torch.zeros((seqlen_k, width), dtype=wide, device=device) for _ in "kv")

    def add(self, keys: slice, right: Results, rough: Results) -> None:
        assert right.grads is not None and rough.grads is not None
        self.dk_SD[keys] += right.grads.dk_CD
        self.dv_SD[keys] += right.grads.dv_CD
        self.plain_dk_SD[keys] += rough.grads.dk_CD
        self.plain_dv_SD[keys] += rough.grads.dv_CD


class _Sums:
    """Results and squared errors gathered over heads and parts."""

    def __init__(
        self,
        shape: Shape,
        num_rows: int,
        seqlen_k: int,
        dtype: torch.dtype,
        precision: torch.dtype,
        device: torch.device,
        *,
        backward: bool,
    ) -> None:
        self.shape, self.dtype, self.precision, self.device, self.backward = shape, dtype, precision, device, backward
        self.seqlen_k = seqlen_k
        rows = (shape.batch, num_rows, shape.num_heads_q, shape.head_dim)
        columns = (shape.batch, seqlen_k, shape.num_heads_kv, shape.head_dim)
        # Columns are kept in float32 where results have 16 bits, since they are the large part.
        kept = torch.float32 if dtype in (torch.bfloat16, torch.float16) else precision
        self.out_BRND, self.dq_BRND = (torch.zeros(rows, dtype=precision, device=device) for _ in range(2))
        self.lse_BNR = torch.full((rows[0], rows[2], rows[1]), -torch.inf, dtype=precision, device=device)
        sizes = {"out": num_rows, "dq": num_rows} | ({"dk": seqlen_k, "dv": seqlen_k} if backward else {})
        self.error = {name: torch.zeros(size, dtype=precision, device=device) for name, size in sizes.items()}
        self.noise = {name: torch.zeros(size, dtype=precision, device=device) for name, size in sizes.items()}
        if backward:
            self.dk_BSGD, self.dv_BSGD = (torch.zeros(columns, dtype=kept, device=device) for _ in range(2))

    def columns(self, batch: int, head: int) -> _Columns | None:
        """Empty sums for the next key/value head."""
        wide = torch.float64 if self.dtype == torch.float64 else torch.float32
        width = self.shape.head_dim
        return _Columns(self.seqlen_k, width, self.precision, wide, self.device) if self.backward else None

    def add_rows(self, batch: int, heads: slice, mine: slice, right: Results, rough: Results) -> None:
        self.out_BRND[batch, mine, heads] = right.out_MPD.transpose(0, 1)
        self.lse_BNR[batch, heads, mine] = right.lse_MP
        self.error["out"][mine] += (rough.out_MPD.to(self.precision) - right.out_MPD).square().sum(dim=(0, 2))
        if right.grads is not None and rough.grads is not None:
            self.dq_BRND[batch, mine, heads] = right.grads.dq_MPD.transpose(0, 1)
            difference = rough.grads.dq_MPD.to(self.precision) - right.grads.dq_MPD
            self.error["dq"][mine] += difference.square().sum(dim=(0, 2))

    def finish_columns(self, batch: int, head: int, columns: _Columns) -> None:
        self.dk_BSGD[batch, :, head], self.dv_BSGD[batch, :, head] = columns.dk_SD, columns.dv_SD
        for name, rough, right in (
            ("dk", columns.plain_dk_SD, columns.dk_SD),
            ("dv", columns.plain_dv_SD, columns.dv_SD),
        ):
            self.error[name] += (rough.to(self.dtype).to(self.precision) - right).square().sum(dim=1)

    def truth(self, rows: IntArray, partials: int) -> Truth:
        lse_size_BNR = self.lse_BNR.abs().nan_to_num(posinf=0.0)
        grads = None
        if self.backward:
            grads = GradientTruth(
                dq_BRND=self.dq_BRND,
                dk_BSGD=self.dk_BSGD,
                dv_BSGD=self.dv_BSGD,
                dq_unit_R=self._unit("dq", self.dq_BRND),
                dk_unit_S=self._unit("dk", self.dk_BSGD),
                dv_unit_S=self._unit("dv", self.dv_BSGD),
            )
        return Truth(
            rows_R=rows,
            precision=str(self.precision).removeprefix("torch."),
            partials=partials,
            out_BRND=self.out_BRND,
            lse_BNR=self.lse_BNR,
            out_unit_R=self._unit("out", self.out_BRND),
            lse_unit_BNR=LSE_UNIT + LSE_UNIT_RELATIVE * lse_size_BNR,
            grads=grads,
        )

    def _unit(self, name: str, value_BRND: Tensor) -> Tensor:
        """Per row the RMS over batch, heads and head_dim of plain attention's error, at least what must be expected."""
        batch, num_rows, heads, width = value_BRND.shape
        found_R = self.error[name] / (batch * heads * width)
        norm_R = torch.stack([torch.linalg.vector_norm(part, dim=(1, 2)) for part in value_BRND]).to(self.precision)
        rounding_R = norm_R.square().sum(dim=0) * ((FLOOR_EPS[self.dtype] * torch.finfo(self.dtype).eps) ** 2)
        expected_R = self.noise[name] / (batch * heads) + rounding_R / (batch * heads * width)
        assert len(found_R) == num_rows
        return torch.maximum(found_R, expected_R).sqrt().clamp_min(1e-30)
