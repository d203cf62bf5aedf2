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

from attnspec.shape import Shape
from attnspec.slices import AttnSlices, RowIntervals, row_intervals
from attnspec.slices.edges import IntArray

FAST_FLOAT64 = frozenset({(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)})
"""CUDA compute capabilities whose float64 runs at half the float32 rate or better."""
SCORE_BYTES = {"cpu": 2**25, "cuda": 2**29}
"""Budget of one matrix of scores per device type; about six of them live at once."""
LSE_UNIT, LSE_UNIT_RELATIVE = 1e-6, 1.5 * 2**-23
FLOOR_EPS = {torch.bfloat16: 0.25, torch.float16: 0.25, torch.float32: 1.0, torch.float64: 16.0}
"""No correct kernel is asked for less error than this many eps of its own row: the rounding of a result (RMS 0.2 to
0.29 eps), and where the dtype is as wide as the accumulation, the order of summation."""


@dataclass(slots=True, kw_only=True)
class Truth:
    """Right values on R sampled rows and for all S columns, and the unit of error of each row.

    Shape suffixes as in attnspec.support.bound. rows_R: positions of the sampled queries. With `needs_backward` dq, dk
    and dv are what a gradient dout_BRND on the sampled rows and zero elsewhere gives. `precision` is what it was
    computed in, `partials` in how many parts plain attention split the keys.
    """

    rows_R: IntArray
    precision: str
    partials: int
    out_BRND: Tensor
    lse_BNR: Tensor
    out_unit_R: Tensor
    lse_unit_BNR: Tensor
    dout_BRND: Tensor | None = None
    dq_BRND: Tensor | None = None
    dk_BSGD: Tensor | None = None
    dv_BSGD: Tensor | None = None
    dq_unit_R: Tensor | None = None
    dk_unit_S: Tensor | None = None
    dv_unit_S: Tensor | None = None


def precision_for(device: torch.device, dtype: str) -> torch.dtype:
    """float64 where it is fast or the dtype itself needs it, else float32 (never TF32)."""
    if device.type != "cuda" or dtype in ("float32", "float64"):
        return torch.float64
    return torch.float64 if torch.cuda.get_device_capability(device) in FAST_FLOAT64 else torch.float32


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
) -> Truth:
    """The oracle on `rows` of one pack: queries and gradients of these rows, keys and values of the whole sequence."""
    with exact_float32():
        return _Computation(shape, slices, rows, q_BRND, k_BSGD, v_BSGD, dout_BRND, partials).run()


@contextmanager
def exact_float32() -> Iterator[None]:
    """float32 matrix products without TF32 or bfloat16 inside."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_float32_matmul_precision(before)


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
    used = rows.hi > rows.lo
    first = np.where(used, rows.lo, np.iinfo(np.int64).max).min(axis=0)
    last = rows.hi.max(axis=0)
    parts: list[_Part] = []
    start, k_start, k_end = 0, 0, 0
    for row, (lo, hi) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        if hi == 0:
            continue
        if k_end == 0:
            start, k_start, k_end = row, lo, hi
            continue
        together = (min(k_start, lo), max(k_end, hi))
        apart = lo >= k_end or hi <= k_start
        if (row + 1 - start) * (together[1] - together[0]) > max_cells or (apart and row - start >= 8):
            parts.append(_Part(start, row, k_start, k_end))
            start, k_start, k_end = row, lo, hi
        else:
            k_start, k_end = together
    if k_end:
        parts.append(_Part(start, len(first), k_start, k_end))
    return parts


class _Computation:
    """One pass over key/value heads and parts of the sampled rows. Suffixes: P rows of a part, C its keys, M heads of a
    group, g one key/value head."""

    def __init__(
        self,
        shape: Shape,
        slices: AttnSlices,
        rows: IntArray,
        q_BRND: Tensor,
        k_BSGD: Tensor,
        v_BSGD: Tensor,
        dout_BRND: Tensor | None,
        partials: int,
    ) -> None:
        self.shape, self.partials, self.rows, self.seqlen_k = shape, partials, rows, slices.seqlen_k
        self.q_BRND, self.k_BSGD, self.v_BSGD, self.dout_BRND = q_BRND, k_BSGD, v_BSGD, dout_BRND
        self.device, self.dtype = q_BRND.device, q_BRND.dtype
        self.precision = precision_for(self.device, shape.dtype)
        self.scale = 1.0 / math.sqrt(shape.head_dim)
        intervals = row_intervals(slices, rows)
        self.lo = torch.from_numpy(intervals.lo).to(self.device)
        self.hi = torch.from_numpy(intervals.hi).to(self.device)
        max_cells = SCORE_BYTES[self.device.type] // (8 * shape.group_size * shape.batch)
        self.parts = _parts(intervals, max_cells)

    def run(self) -> Truth:
        shape, dout_BRND = self.shape, self.dout_BRND
        num_rows, kv, width = len(self.rows), shape.num_heads_kv, shape.head_dim
        # Grouped layout: (batch, kv head, head in group, row, head_dim).
        q_BGMRD = self._grouped(self.q_BRND)
        dout_BGMRD = None if dout_BRND is None else self._grouped(dout_BRND)
        exact = {
            "out": self._zeros(*q_BGMRD.shape),
            "lse": torch.full(q_BGMRD.shape[:-1], -torch.inf, dtype=self.precision, device=self.device),
            "dq": self._zeros(*q_BGMRD.shape),
        }
        # Columns are kept in float32 where the results are 16 bits wide, since they are the large part.
        kept = torch.float32 if self.dtype in (torch.bfloat16, torch.float16) else self.precision
        columns = (shape.batch, self.seqlen_k, kv, width)
        backward = dout_BRND is not None
        dk_BSGD, dv_BSGD = (torch.zeros(columns, dtype=kept, device=self.device) if backward else None for _ in "kv")
        errors = {"out": self._zeros(num_rows), "dq": self._zeros(num_rows), "dq_noise": self._zeros(num_rows)}
        errors |= {name: self._zeros(self.seqlen_k) for name in ("dk", "dv", "dk_noise")}
        for b in range(shape.batch):
            for g in range(kv):
                k_SD, v_SD = self.k_BSGD[b, :, g], self.v_BSGD[b, :, g]
                q_MRD = q_BGMRD[b, g]
                dout_MRD = None if dout_BGMRD is None else dout_BGMRD[b, g]
                plain = _Columns(self.seqlen_k, width, torch.float32, self.device) if backward else None
                right = _Columns(self.seqlen_k, width, self.precision, self.device) if backward else None
                for part in self.parts:
                    mask_PC = self._mask(part)
                    mine = slice(part.start, part.end)
                    to_right = self._right(part, mask_PC, q_MRD, k_SD, v_SD, dout_MRD, right, errors)
                    to_plain = self._plain(part, mask_PC, q_MRD, k_SD, v_SD, dout_MRD, plain)
                    for name, value in to_right.items():
                        exact[name][b, g, :, mine] = value
                    for name, value in to_plain.items():
                        errors[name][mine] += (value.to(self.precision) - to_right[name]).square().sum(dim=(0, -1))
                if right is not None and plain is not None and dk_BSGD is not None and dv_BSGD is not None:
                    dk_BSGD[b, :, g], dv_BSGD[b, :, g] = right.dk_SD, right.dv_SD
                    errors["dk"] += (plain.dk_SD.to(self.dtype).to(self.precision) - right.dk_SD).square().sum(dim=-1)
                    errors["dv"] += (plain.dv_SD.to(self.dtype).to(self.precision) - right.dv_SD).square().sum(dim=-1)
                    errors["dk_noise"] += right.noise_S
        out_BRND = self._ungrouped(exact["out"])
        dq_BRND = self._ungrouped(exact["dq"]) if backward else None
        lse_BNR = exact["lse"].flatten(1, 2)
        per_row, per_column = shape.batch * shape.num_heads_q * width, shape.batch * kv * width
        made = Truth(
            rows_R=self.rows,
            precision=str(self.precision).removeprefix("torch."),
            partials=self.partials,
            out_BRND=out_BRND,
            lse_BNR=lse_BNR,
            out_unit_R=self._unit(errors["out"] / per_row, out_BRND.square().mean(dim=(0, 2, 3))),
            lse_unit_BNR=LSE_UNIT + LSE_UNIT_RELATIVE * lse_BNR.abs().nan_to_num(posinf=0.0),
        )
        if dk_BSGD is not None and dv_BSGD is not None and dq_BRND is not None:
            made.dout_BRND, made.dq_BRND, made.dk_BSGD, made.dv_BSGD = dout_BRND, dq_BRND, dk_BSGD, dv_BSGD
            dq_size, dk_size, dv_size = (
                one.square().mean(dim=(0, 2, 3), dtype=torch.float32).to(self.precision)
                for one in (dq_BRND, dk_BSGD, dv_BSGD)
            )
            made.dq_unit_R = self._unit(errors["dq"] / per_row, dq_size, errors["dq_noise"] / per_row * width)
            made.dk_unit_S = self._unit(errors["dk"] / per_column, dk_size, errors["dk_noise"] / per_column * width)
            made.dv_unit_S = self._unit(errors["dv"] / per_column, dv_size)
        return made

    def _right(
        self,
        part: _Part,
        mask_PC: Tensor,
        q_MRD: Tensor,
        k_SD: Tensor,
        v_SD: Tensor,
        dout_MRD: Tensor | None,
        columns: _Columns | None,
        errors: dict[str, Tensor],
    ) -> dict[str, Tensor]:
        """The definition, in the oracle's precision."""
        mine, keys = slice(part.start, part.end), slice(part.k_start, part.k_end)
        q_MPD, k_CD, v_CD = (one.to(self.precision) for one in (q_MRD[:, mine], k_SD[keys], v_SD[keys]))
        p_MPC, lse_MP = _softmax(q_MPD @ k_CD.T * self.scale, mask_PC)
        found = {"out": p_MPC @ v_CD, "lse": lse_MP}
        if dout_MRD is None or columns is None:
            return found
        dout_MPD = dout_MRD[:, mine].to(self.precision)
        pull_MPC = p_MPC * (dout_MPD @ v_CD.T)
        # Size of dQ and dK if nothing cancelled: rounding in float32 is relative to it, also where they are zero.
        pull_square_MPC = pull_MPC.square()
        errors["dq_noise"][mine] += pull_square_MPC.sum(dim=(0, -1)) * self.scale**2
        columns.noise_S[keys] += pull_square_MPC.sum(dim=(0, 1)) * self.scale**2
        ds_MPC = pull_MPC - p_MPC * pull_MPC.sum(dim=-1, keepdim=True)
        found["dq"] = ds_MPC @ k_CD * self.scale
        columns.dk_SD[keys] += ds_MPC.flatten(0, 1).T @ q_MPD.flatten(0, 1) * self.scale
        columns.dv_SD[keys] += p_MPC.flatten(0, 1).T @ dout_MPD.flatten(0, 1)
        return found

    def _plain(
        self,
        part: _Part,
        mask_PC: Tensor,
        q_MRD: Tensor,
        k_SD: Tensor,
        v_SD: Tensor,
        dout_MRD: Tensor | None,
        columns: _Columns | None,
    ) -> dict[str, Tensor]:
        """Plain attention in the workload's dtype, in `partials` pieces of the keys merged by lse."""
        mine, keys = slice(part.start, part.end), slice(part.k_start, part.k_end)
        wide = torch.float64 if self.dtype == torch.float64 else torch.float32
        q_MPD, k_CD, v_CD = (one.to(wide) for one in (q_MRD[:, mine], k_SD[keys], v_SD[keys]))
        scores_MPC = q_MPD @ k_CD.T * self.scale
        p_MPC, lse_MP = _softmax(scores_MPC, mask_PC)
        out_MPD = torch.zeros_like(q_MPD)
        for piece_C in self._pieces(part):
            piece_p_MPC, piece_lse_MP = (
                (p_MPC, lse_MP) if self.partials == 1 else _softmax(scores_MPC, mask_PC & piece_C)
            )
            weight_MP1 = torch.exp(piece_lse_MP - lse_MP.nan_to_num(neginf=0.0))[..., None]
            out_MPD += weight_MP1 * (piece_p_MPC.to(self.dtype).to(wide) @ v_CD).to(self.dtype).to(wide)
        out_MPD = out_MPD.to(self.dtype)
        found = {"out": out_MPD}
        if dout_MRD is None or columns is None:
            return found
        dout_MPD = dout_MRD[:, mine].to(wide)
        delta_MP1 = (dout_MPD * out_MPD.to(wide)).sum(dim=-1, keepdim=True)
        ds_MPC = (p_MPC * (dout_MPD @ v_CD.T - delta_MP1)).to(self.dtype).to(wide)
        dq_MPD = torch.zeros_like(q_MPD)
        for piece_C in self._pieces(part):
            piece_ds_MPC = ds_MPC if self.partials == 1 else ds_MPC * piece_C
            dq_MPD += (piece_ds_MPC @ k_CD * self.scale).to(self.dtype).to(wide)
        found["dq"] = dq_MPD.to(self.dtype)
        columns.dk_SD[keys] += ds_MPC.flatten(0, 1).T @ q_MPD.flatten(0, 1) * self.scale
        columns.dv_SD[keys] += p_MPC.to(self.dtype).to(wide).flatten(0, 1).T @ dout_MPD.flatten(0, 1)
        return found

    def _pieces(self, part: _Part) -> Iterator[Tensor]:
        """Which keys of a part belong to each of the equal pieces of the whole sequence."""
        keys_C = torch.arange(part.k_start, part.k_end, device=self.device)
        for piece in range(self.partials):
            yield keys_C * self.partials // self.seqlen_k == piece

    def _mask(self, part: _Part) -> Tensor:
        keys_C = torch.arange(part.k_start, part.k_end, device=self.device)
        mask_PC = torch.zeros((part.end - part.start, len(keys_C)), dtype=torch.bool, device=self.device)
        for lo_R, hi_R in zip(self.lo, self.hi, strict=True):
            mask_PC |= (keys_C >= lo_R[part.start : part.end, None]) & (keys_C < hi_R[part.start : part.end, None])
        return mask_PC

    def _unit(self, error_square: Tensor, size_square: Tensor, noise_square: Tensor | None = None) -> Tensor:
        """Unit of error per row: plain attention's RMS, at least the rounding of the result and of float32 inside."""
        eps = torch.finfo(self.dtype).eps
        inside = torch.finfo(torch.float64 if self.dtype == torch.float64 else torch.float32).eps
        unit = torch.maximum(error_square.sqrt(), size_square.sqrt() * (FLOOR_EPS[self.dtype] * eps))
        if noise_square is not None:
            unit = torch.maximum(unit, noise_square.sqrt() * (eps / 64 + 4 * inside))
        return unit.clamp_min(1e-30)

    def _zeros(self, *size: int) -> Tensor:
        return torch.zeros(size, dtype=self.precision, device=self.device)

    def _grouped(self, value_BRND: Tensor) -> Tensor:
        batch, num_rows, _, width = value_BRND.shape
        grouped = value_BRND.reshape(batch, num_rows, self.shape.num_heads_kv, self.shape.group_size, width)
        return grouped.permute(0, 2, 3, 1, 4)

    @staticmethod
    def _ungrouped(value_BGMRD: Tensor) -> Tensor:
        return value_BGMRD.flatten(1, 2).transpose(1, 2)


class _Columns:
    """Sums over rows for all keys of one key/value head."""

    def __init__(self, seqlen_k: int, head_dim: int, precision: torch.dtype, device: torch.device) -> None:
        self.dk_SD = torch.zeros((seqlen_k, head_dim), dtype=precision, device=device)
        self.dv_SD = torch.zeros((seqlen_k, head_dim), dtype=precision, device=device)
        self.noise_S = torch.zeros(seqlen_k, dtype=precision, device=device)


def _softmax(scores_MPC: Tensor, mask_PC: Tensor) -> tuple[Tensor, Tensor]:
    """(P, lse) under a mask; a row without keys has P = 0 and lse = -inf."""
    scores_MPC = scores_MPC.masked_fill(~mask_PC, -torch.inf)
    top_MP1 = scores_MPC.amax(dim=-1, keepdim=True).nan_to_num(neginf=0.0)
    p_MPC = torch.exp(scores_MPC - top_MP1)
    sum_MP1 = p_MPC.sum(dim=-1, keepdim=True)
    lse_MP = (top_MP1 + sum_MP1.log()).squeeze(-1)
    return p_MPC / sum_MP1.clamp_min(torch.finfo(p_MPC.dtype).tiny), lse_MP
