"""Attention over one sequence, forward and backward from a given lse, as all the stand-ins compute it."""

import itertools
import math
from dataclasses import dataclass, field

import torch


@dataclass
class Log:
    """What was called, in order: (name, arguments worth checking)."""

    calls: list = field(default_factory=list)

    def note(self, name, **arguments):
        self.calls.append((name, arguments))

    def names(self):
        return [name for name, _ in self.calls]


def band(num_rows, num_keys, left, right, *, bottom_right=True):
    """Query i attends keys [m - left, m + right] with m = i, plus num_keys - num_rows when aligned bottom right."""
    q, k = torch.arange(num_rows)[:, None], torch.arange(num_keys)[None, :]
    middle = q + (num_keys - num_rows if bottom_right else 0)
    cells = torch.ones(num_rows, num_keys, dtype=torch.bool)
    if left is not None:
        cells &= k >= middle - left
    if right is not None:
        cells &= k <= middle + right
    return cells


def attend(q, k, v, cells, scale, *, nothing=-math.inf):
    """out (T, N, D) and lse (N, T); rows without keys have out 0 and lse `nothing`."""
    if not cells.any():
        return torch.zeros_like(q), torch.full((q.shape[1], len(q)), nothing)
    group = q.shape[1] // k.shape[1]
    q, k, v = q.double().transpose(0, 1), by_query_head(k, group), by_query_head(v, group)
    scores = (q @ k.mT * scale).masked_fill(~cells, -math.inf)
    lse = torch.logsumexp(scores, -1)
    empty = lse.isneginf()
    weights = torch.exp(scores - lse.masked_fill(empty, 0)[..., None])
    return (weights @ v).transpose(0, 1), lse.masked_fill(empty, nothing)


def attend_backward(dout, q, k, v, out, lse, cells, scale):
    """(dq, dk, dv) with the weights that lse (N, T) says; whatever it and out say of all keys, not of these alone."""
    if not cells.any():
        return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    size, group = k.shape, q.shape[1] // k.shape[1]
    dout, q, out = (part.double().transpose(0, 1) for part in (dout, q, out))
    k, v = by_query_head(k, group), by_query_head(v, group)
    weights = torch.exp(q @ k.mT * scale - lse.double().masked_fill(lse.isinf(), 0)[..., None]).masked_fill(~cells, 0)
    slope = weights * (dout @ v.mT - (dout * out).sum(-1, keepdim=True)) * scale
    dk, dv = (
        part.transpose(0, 1).reshape(*size[:2], group, size[2]).sum(2) for part in (slope.mT @ q, weights.mT @ dout)
    )
    return (slope @ k).transpose(0, 1), dk, dv


def by_query_head(part, group):
    """K or V (S, G, D) as (N, S, D) in float64."""
    return part.double().transpose(0, 1).repeat_interleave(group, 0)


def sequences(cu_seqlens_q, cu_seqlens_k, q, k, max_seqlen_q, max_seqlen_k):
    """(rows, keys) of sequences that tile q and k, whose lengths are checked against the maxima."""
    assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
    cu_q, cu_k = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    assert len(cu_q) == len(cu_k)
    assert (cu_q[0], cu_k[0]) == (0, 0)
    assert (cu_q[-1], cu_k[-1]) == (len(q), len(k))
    pairs = list(zip(itertools.pairwise(cu_q), itertools.pairwise(cu_k), strict=True))
    for (q_start, q_end), (k_start, k_end) in pairs:
        assert 0 <= q_end - q_start <= max_seqlen_q
        assert 0 <= k_end - k_start <= max_seqlen_k
    return [(slice(*rows), slice(*keys)) for rows, keys in pairs]


def packed_forward(q, k, v, pairs, cells_of, scale, nothing):
    """out (total, N, D) and lse (N, total) over sequences that tile q and k."""
    out = torch.full_like(q, math.nan)
    lse = torch.full((q.shape[1], len(q)), math.nan)
    for rows, keys in pairs:
        cells = cells_of(rows.stop - rows.start, keys.stop - keys.start)
        out[rows], lse[:, rows] = typed(attend(q[rows], k[keys], v[keys], cells, scale, nothing=nothing), (out, lse))
    return out, lse


def packed_backward(dout, q, k, v, out, lse, pairs, cells_of, scale):
    """(dq, dk, dv) over sequences that tile q and k."""
    grads = [torch.full_like(part, math.nan) for part in (q, k, v)]
    for rows, keys in pairs:
        cells = cells_of(rows.stop - rows.start, keys.stop - keys.start)
        parts = attend_backward(dout[rows], q[rows], k[keys], v[keys], out[rows], lse[:, rows], cells, scale)
        for grad, where, part in zip(grads, (rows, keys, keys), parts, strict=True):
            grad[where] = part.to(grad.dtype)
    return grads


def batched_forward(q, k, v, cells, scale, nothing):
    """out (B, T, N, D) and lse (B, N, T) of one rectangle."""
    parts = [attend(*row, cells, scale, nothing=nothing) for row in zip(q, k, v, strict=True)]
    return torch.stack([out for out, _ in parts]).to(q.dtype), torch.stack([lse for _, lse in parts]).float()


def batched_backward(dout, q, k, v, out, lse, cells, scale):
    """(dq, dk, dv) of one rectangle."""
    parts = [attend_backward(*row, cells, scale) for row in zip(dout, q, k, v, out, lse, strict=True)]
    return [torch.stack(part).to(q.dtype) for part in zip(*parts, strict=True)]


def typed(parts, like):
    return [part.to(other.dtype) for part, other in zip(parts, like, strict=True)]
