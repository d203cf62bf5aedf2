"""Attention by its definition, on some rows, some keys and one key/value head: exactly, and as plain attention does it.

Shape suffixes: M query heads that share a key/value head, P query rows, C keys, D head_dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

ROUNDING = 0.25
"""RMS of rounding to nearest, over eps times what is rounded: 0.21 for spread mantissas, 0.29 at worst."""
SOFTMAX_EPS = 6.0
"""RMS error of P computed in float32, over eps times P: scores, lse and exponential."""
PULL_EPS = 4.0
"""RMS error of dO V^T and delta computed in float32, over eps times the size of their terms."""


@dataclass(slots=True, kw_only=True)
class Inputs:
    """What one call sees. dout_MPD is None for a forward alone; mask_PC is true on allowed cells."""

    q_MPD: Tensor
    k_CD: Tensor
    v_CD: Tensor
    mask_PC: Tensor
    dout_MPD: Tensor | None
    scale: float

    def to(self, dtype: torch.dtype) -> Inputs:
        """The same values in another element type."""
        return Inputs(
            q_MPD=self.q_MPD.to(dtype),
            k_CD=self.k_CD.to(dtype),
            v_CD=self.v_CD.to(dtype),
            mask_PC=self.mask_PC,
            dout_MPD=None if self.dout_MPD is None else self.dout_MPD.to(dtype),
            scale=self.scale,
        )


@dataclass(slots=True, kw_only=True)
class Gradients:
    """dk_CD and dv_CD are these rows' share."""

    dq_MPD: Tensor
    dk_CD: Tensor
    dv_CD: Tensor


@dataclass(slots=True, kw_only=True)
class Results:
    """A row without keys has out 0, lse -inf and no gradient."""

    out_MPD: Tensor
    lse_MP: Tensor
    grads: Gradients | None


@dataclass(slots=True, kw_only=True)
class Noise:
    """Expected squared rounding error inside a kernel, mean over head_dim, summed over heads (columns: over rows too).

    Where few numbers are rounded, one plain computation can be right by luck; this is its expectation.
    """

    out_P: Tensor
    dq_P: Tensor | None = None
    dk_C: Tensor | None = None
    dv_C: Tensor | None = None


def softmax(scores_MPC: Tensor, mask_PC: Tensor) -> tuple[Tensor, Tensor]:
    """(P, lse) under a mask; a row without keys has P = 0 and lse = -inf."""
    scores_MPC = scores_MPC.masked_fill(~mask_PC, -torch.inf)
    top_MP1 = scores_MPC.amax(dim=-1, keepdim=True).nan_to_num(neginf=0.0)
    p_MPC = torch.exp(scores_MPC - top_MP1)
    sum_MP1 = p_MPC.sum(dim=-1, keepdim=True)
    lse_MP = (top_MP1 + sum_MP1.log()).squeeze(-1)
    return p_MPC / sum_MP1.clamp_min(torch.finfo(p_MPC.dtype).tiny), lse_MP


def exact(inputs: Inputs, dtype: torch.dtype, *, delta_spread: float = 1.0) -> tuple[Results, Noise]:
    """The definition in the element type of `inputs`, and what a kernel that computes in `dtype` may round.

    delta_spread: what is expected of delta's rounding in dQ is taken so many times, in squares.
    """
    p_MPC, lse_MP = softmax(inputs.q_MPD @ inputs.k_CD.T * inputs.scale, inputs.mask_PC)
    out_MPD = p_MPC @ inputs.v_CD
    eps = torch.finfo(dtype).eps
    inside = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
    p_error = (ROUNDING * eps) ** 2 + (SOFTMAX_EPS * inside) ** 2
    square_MPC = p_MPC.square()
    noise = Noise(out_P=p_error * (square_MPC @ _mean_square(inputs.v_CD)).sum(dim=0))
    if inputs.dout_MPD is None:
        return Results(out_MPD=out_MPD, lse_MP=lse_MP, grads=None), noise
    dout_MPD, scale = inputs.dout_MPD, inputs.scale
    pull_MPC = p_MPC * (dout_MPD @ inputs.v_CD.T)
    ds_MPC = pull_MPC - p_MPC * pull_MPC.sum(dim=-1, keepdim=True)
    grads = Gradients(
        dq_MPD=ds_MPC @ inputs.k_CD * scale,
        dk_CD=ds_MPC.flatten(0, 1).T @ inputs.q_MPD.flatten(0, 1) * scale,
        dv_CD=p_MPC.flatten(0, 1).T @ dout_MPD.flatten(0, 1),
    )
    # delta is taken from the rounded output; dO V^T and delta cancel, so their own rounding shows.
    delta_MP1 = (dout_MPD * out_MPD).square().sum(dim=-1, keepdim=True) * (ROUNDING * eps) ** 2
    terms_MP1 = dout_MPD.square().sum(dim=-1, keepdim=True) * (PULL_EPS * inside) ** 2
    noise_MPC = ds_MPC.square() * p_error + square_MPC * (delta_MP1 + terms_MP1)
    noise_MPC += pull_MPC.square_() * (SOFTMAX_EPS * inside) ** 2
    key_C = _mean_square(inputs.k_CD)
    noise.dq_P = (noise_MPC @ key_C).sum(dim=0) * scale**2
    noise.dq_P += ((delta_spread - 1) * delta_MP1[..., 0] * (square_MPC @ key_C)).sum(dim=0) * scale**2
    noise.dk_C = _mean_square(inputs.q_MPD).flatten() @ noise_MPC.flatten(0, 1) * scale**2
    noise.dv_C = p_error * (_mean_square(dout_MPD).flatten() @ square_MPC.flatten(0, 1))
    return Results(out_MPD=out_MPD, lse_MP=lse_MP, grads=grads), noise


def plain(inputs: Inputs, dtype: torch.dtype, pieces_C: Sequence[Tensor]) -> tuple[Results, Noise]:
    """Plain attention in `dtype`: scores and softmax wide (the element type of `inputs`), P and dS rounded, wide sums.

    pieces_C: disjoint sets of keys whose partial results are rounded and merged by lse; one set is the usual case. The
    noise is what these roundings add (columns: none). dk_CD and dv_CD are not rounded: they are shares of sums.
    """
    wide = inputs.q_MPD.dtype
    scores_MPC = inputs.q_MPD @ inputs.k_CD.T * inputs.scale
    p_MPC, lse_MP = softmax(scores_MPC, inputs.mask_PC)
    whole, merged_error = len(pieces_C) == 1, (ROUNDING * torch.finfo(dtype).eps) ** 2
    merged = Noise(out_P=scores_MPC.new_zeros(scores_MPC.shape[1]))
    out_MPD = torch.zeros_like(inputs.q_MPD)
    for piece_C in pieces_C:
        piece_p_MPC, piece_lse_MP = (p_MPC, lse_MP) if whole else softmax(scores_MPC, inputs.mask_PC & piece_C)
        weight_MP1 = torch.exp(piece_lse_MP - lse_MP.nan_to_num(neginf=0.0))[..., None]
        piece_MPD = weight_MP1 * (piece_p_MPC.to(dtype).to(wide) @ inputs.v_CD).to(dtype).to(wide)
        out_MPD += piece_MPD
        if not whole:
            merged.out_P += merged_error * _mean_square(piece_MPD).sum(dim=0)
    out_MPD = out_MPD.to(dtype).to(wide)
    if inputs.dout_MPD is None:
        return Results(out_MPD=out_MPD, lse_MP=lse_MP, grads=None), merged
    dout_MPD, scale = inputs.dout_MPD, inputs.scale
    delta_MP1 = (dout_MPD * out_MPD).sum(dim=-1, keepdim=True)
    ds_MPC = (p_MPC * (dout_MPD @ inputs.v_CD.T - delta_MP1)).to(dtype).to(wide)
    dq_MPD, merged.dq_P = torch.zeros_like(out_MPD), torch.zeros_like(merged.out_P)
    for piece_C in pieces_C:
        piece_MPD = ((ds_MPC if whole else ds_MPC * piece_C) @ inputs.k_CD * scale).to(dtype).to(wide)
        dq_MPD += piece_MPD
        if not whole:
            merged.dq_P += merged_error * _mean_square(piece_MPD).sum(dim=0)
    grads = Gradients(
        dq_MPD=dq_MPD.to(dtype).to(wide),
        dk_CD=ds_MPC.flatten(0, 1).T @ inputs.q_MPD.flatten(0, 1) * scale,
        dv_CD=p_MPC.to(dtype).to(wide).flatten(0, 1).T @ dout_MPD.flatten(0, 1),
    )
    return Results(out_MPD=out_MPD, lse_MP=lse_MP, grads=grads), merged


def _mean_square(value_D: Tensor) -> Tensor:
    return value_D.square().mean(dim=-1)
