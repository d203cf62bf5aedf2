"""A right kernel in the manner of FlashAttention, small and dense, and ten wrong ones that differ from it in one place."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from attnspec import plugins
from attnspec.slices import AttnSlices, dense
from attnspec.support import Forward

TILE = 64


@dataclass(kw_only=True)
class FlashLike:
    """Tiles of keys, online softmax, P in the dtype unnormalised, float32 sums; backward from (out, lse)."""

    mask_TS: torch.Tensor
    scale: float
    kv_of: Callable[[int, int, int], int] = lambda head, heads, kv: head * kv // heads
    v_of: Callable[[int, int], int] = lambda head, kv: head
    sum_group: Callable[[torch.Tensor], torch.Tensor] = lambda part: part.sum(dim=0)
    narrow_sum: bool = False
    explicit_backward: bool = True
    frees_graph: bool = False
    expected_kernels: str = ""
    backend: str | None = None

    def load(self, q, k, v):
        return q, k, v

    def load_dout(self, dout):
        return dout

    def load_forward(self, out, lse):
        return Forward(out=out, lse=lse)

    def canonical_out(self, forward):
        return forward.out, forward.lse

    def canonical_grads(self, grads):
        return grads

    def _heads(self, q, k, v):
        heads, kv = q.shape[2], k.shape[2]
        place = [self.kv_of(head, heads, kv) for head in range(heads)]
        turned = [self.v_of(one, kv) for one in place]
        wide = (q.transpose(1, 2), k[:, :, place].transpose(1, 2), v[:, :, turned].transpose(1, 2))
        return place, turned, *(one.float() for one in wide)

    def forward(self, inputs):
        dtype = inputs[0].dtype
        _, _, q, k, v = self._heads(*inputs)
        top = torch.full(q.shape[:-1], -math.inf)
        total, out = torch.zeros_like(top), torch.zeros_like(q)
        for start in range(0, k.shape[2], TILE):
            tile = slice(start, start + TILE)
            scores = (q @ k[:, :, tile].mT * self.scale).masked_fill(~self.mask_TS[:, tile], -math.inf)
            new = torch.maximum(top, scores.amax(dim=-1))
            safe = new.nan_to_num(neginf=0.0)
            p = torch.exp(scores - safe[..., None])
            fade = torch.exp(top - safe)
            total = total * fade + p.sum(dim=-1)
            out = out * fade[..., None] + p.to(dtype).float() @ v[:, :, tile]
            if self.narrow_sum:
                out = out.to(dtype).float()
            top = new
        out = out / total.clamp_min(1e-37)[..., None]
        return Forward(out=out.transpose(1, 2).to(dtype), lse=top + total.log())

    def backward(self, inputs, forward, dout):
        dtype = inputs[0].dtype
        place, turned, q, k, v = self._heads(*inputs)
        dout = dout.float().transpose(1, 2)
        delta = (dout * forward.out.float().transpose(1, 2)).sum(dim=-1, keepdim=True)
        scores = (q @ k.mT * self.scale).masked_fill(~self.mask_TS, -math.inf)
        p = torch.exp(scores - forward.lse.nan_to_num(neginf=0.0)[..., None])
        ds = (p * (dout @ v.mT - delta)).to(dtype).float()
        dq = ds @ k * self.scale
        dk, dv = ds.mT @ q * self.scale, p.to(dtype).float().mT @ dout
        num_kv = inputs[1].shape[2]
        dk = torch.stack([self.sum_group(dk[:, np.array(place) == g].transpose(0, 1)) for g in range(num_kv)], dim=2)
        dv = torch.stack([dv[:, np.array(turned) == g].sum(dim=1) for g in range(num_kv)], dim=2)
        return dq.transpose(1, 2).to(dtype), dk.to(dtype), dv.to(dtype)


def right_kernel(slices: AttnSlices, head_dim: int) -> FlashLike:
    return FlashLike(mask_TS=torch.from_numpy(dense(slices)), scale=head_dim**-0.5)


def slices_of(mask: str, seqlen: int, docs=None, seqlen_k=None, **params) -> AttnSlices:
    module = plugins.load("masks", mask)
    lengths = np.array([seqlen] if docs is None else docs, dtype=np.int64)
    if seqlen_k is not None:
        params["seqlen_k"] = seqlen_k
    return module.slices(plugins.make_params(module, params), lengths, seqlen, seqlen_k or seqlen)


def _other_mask(mask_TS) -> Callable[[FlashLike], FlashLike]:
    return lambda kernel: replace(kernel, mask_TS=torch.from_numpy(np.ascontiguousarray(mask_TS)))


def window_off_by_one(rng):
    seqlen, window = int(rng.integers(300, 700)), int(rng.integers(2, 200))
    wrong = slices_of("sliding_window_causal", seqlen, window=window + 1)
    return slices_of("sliding_window_causal", seqlen, window=window), _other_mask(dense(wrong))


def causal_corner_top_left(rng):
    seqlen_q, seqlen_k = int(rng.integers(200, 500)), int(rng.integers(200, 500)) + 120
    slices = AttnSlices.from_rows([(0, seqlen_q, 0, seqlen_k, 1)], seqlen_q=seqlen_q, seqlen_k=seqlen_k)
    return slices, _other_mask(np.tril(np.ones((seqlen_q, seqlen_k), dtype=bool)))


def block_grid_not_per_document(rng):
    docs, block = _docs(rng), 32
    right = slices_of("varlen_block_causal", sum(docs), docs, block=block)
    document = np.repeat(np.arange(len(docs)), docs)
    at = np.arange(sum(docs))
    wrong = (document[:, None] == document) & (at[None] < (at[:, None] // block + 1) * block)
    return right, _other_mask(wrong)


def last_partial_block_dropped(rng):
    docs, block = _docs(rng), 32
    right = slices_of("varlen_block_causal", sum(docs), docs, block=block)
    wrong, end = dense(right).copy(), sum(docs)
    wrong[:, end - (docs[-1] % block or 1) : end] = False
    return right, _other_mask(wrong)


def one_boundary_shifted(rng):
    docs = _docs(rng)
    moved = list(docs)
    place = int(rng.integers(len(docs) - 1))
    moved[place] += 1
    moved[place + 1] -= 1
    mask = ["varlen_full", "varlen_causal"][int(rng.integers(2))]
    return slices_of(mask, sum(docs), docs), _other_mask(dense(slices_of(mask, sum(docs), moved)))


def kv_heads_rotated(rng):
    return _any_mask(rng), lambda kernel: replace(kernel, kv_of=lambda head, heads, kv: (head * kv // heads + 1) % kv)


def gqa_group_order(rng):
    return _any_mask(rng), lambda kernel: replace(kernel, kv_of=lambda head, heads, kv: head % kv)


def scale_missing(rng):
    return _any_mask(rng), lambda kernel: replace(kernel, scale=1.0)


def dk_not_summed_over_group(rng):
    return _any_mask(rng), lambda kernel: replace(kernel, sum_group=lambda part: part[0])


def pv_accumulated_narrow(rng):
    # Short sums are as good in bfloat16 as anything, so this fault needs rows with many keys.
    mask = ["full", "causal", "varlen_causal"][int(rng.integers(3))]
    return slices_of(mask, 1300, [1200, 100] if mask.startswith("varlen") else None), lambda kernel: replace(
        kernel, narrow_sum=True
    )


FAULTS = {
    fault.__name__: fault
    for fault in (
        window_off_by_one,
        causal_corner_top_left,
        block_grid_not_per_document,
        last_partial_block_dropped,
        one_boundary_shifted,
        kv_heads_rotated,
        gqa_group_order,
        scale_missing,
        dk_not_summed_over_group,
        pv_accumulated_narrow,
    )
}


def _docs(rng) -> list[int]:
    return [int(one) for one in rng.integers(3, 200, size=int(rng.integers(3, 6)))]


def _any_mask(rng) -> AttnSlices:
    mask = ["full", "causal", "varlen_full", "varlen_causal"][int(rng.integers(4))]
    docs = _docs(rng)
    return slices_of(mask, sum(docs), docs if mask.startswith("varlen") else None)
