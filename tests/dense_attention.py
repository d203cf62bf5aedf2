"""Attention by its definition in float64, dense, with autograd: the truth of small tests."""

import math
from dataclasses import dataclass

import torch

from attnspec.slices import dense


@dataclass(kw_only=True)
class Truth:
    out: torch.Tensor
    lse: torch.Tensor
    grads: tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def inputs(slices, *, heads_q=4, heads_kv=2, head_dim=16, batch=1, dtype=torch.float32, seed=0):
    """(q, k, v, dout), canonical."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [(slices.seqlen_q, heads_q), (slices.seqlen_k, heads_kv), (slices.seqlen_k, heads_kv)]
    sizes.append((slices.seqlen_q, heads_q))
    return [torch.randn(batch, *size, head_dim, generator=generator).to(dtype) for size in sizes]


def truth(slices, q, k, v, dout):
    """out, lse and gradients; rows without keys have 0, -inf and 0."""
    q, k, v = (part.detach().clone().double().requires_grad_() for part in (q, k, v))
    group = q.shape[2] // k.shape[2]
    heads = torch.arange(q.shape[2]) // group
    scores = torch.einsum("btnd,bsnd->bnts", q, k[:, :, heads]) / math.sqrt(q.shape[-1])
    scores = scores.masked_fill(~torch.from_numpy(dense(slices)).to(q.device), -math.inf)
    lse = torch.logsumexp(scores, -1)
    weights = torch.exp(scores - lse.masked_fill(lse.isneginf(), 0)[..., None])
    out = torch.einsum("bnts,bsnd->btnd", weights, v[:, :, heads])
    grads = torch.autograd.grad(out, (q, k, v), dout.double())
    return Truth(out=out.detach(), lse=lse.detach(), grads=grads)


def relative_error(found, wanted):
    """RMS error over RMS value; 0 where both are 0, NaN where anything found is not finite."""
    error, size = (found.double() - wanted.double()).norm(), wanted.double().norm()
    return float(error / size) if size > 0 else float(error)
