"""Stand-ins for the context parallelism of TransformerEngine, ring-flash-attn and yunchang on CPU ranks.

They take what the real ones take, want tokens in the order that the real ones want, and compute everything everywhere.
"""

from __future__ import annotations

import sys
from enum import Enum
from types import ModuleType, SimpleNamespace

import numpy as np
import torch
import torch.distributed as dist

from attnspec.kernels import reference
from attnspec.shape import Shape
from attnspec.slices import AttnSlices
from attnspec.support import Device, Problem


def dual_chunks(padded, rank, size):
    """Where the tokens of a rank lie in the padded sequences, each in chunks rank and 2 size - 1 - rank."""
    found, start = [], 0
    for length in padded:
        assert length % (2 * size) == 0
        chunk = length // (2 * size)
        for n in (rank, 2 * size - 1 - rank):
            found += range(start + n * chunk, start + (n + 1) * chunk)
        start += length
    return found


def runs(total, size):
    assert total % size == 0
    return [list(range(rank * total // size, (rank + 1) * total // size)) for rank in range(size)]


def whole(part, orders):
    made = part.new_zeros((sum(map(len, orders)), *part.shape[1:]))
    made[orders[dist.get_rank()]] = part
    dist.all_reduce(made)
    return made


def rows_of(padded, own, causal, left):
    """The mask over padded sequences of which the first tokens are real."""
    rows, starts = [], np.cumsum(padded) - padded
    for start, length in zip(starts.tolist(), own.tolist(), strict=True):
        if left is None:
            rows.append((start, start + length, start, start + length, int(causal)))
            continue
        head = min(left + 1, length)
        rows.append((start, start + head, start, start + head, 1))
        if length > head:
            rows.append((start + head, start + length, start + 1, start + length, 3))
    return rows


class Attention(torch.autograd.Function):
    """Over packed tokens (T, N, D). frees: a second backward through the same graph fails."""

    @staticmethod
    def forward(ctx, q, k, v, orders, rows, frees):
        rank = dist.get_rank()
        assert len(q) == len(k) == len(v) == len(orders[rank])
        total = sum(map(len, orders))
        problem = Problem(
            shape=Shape(batch=1, num_heads_q=q.shape[1], num_heads_kv=k.shape[1], head_dim=q.shape[2], dtype="float64"),
            slices=AttnSlices.from_rows(rows, seqlen_q=total, seqlen_k=total),
            needs_backward=True,
            device=Device(type="cpu"),
        )
        params = reference.Params()
        kernel = reference.bind(reference.lower(problem, params, "torch"), problem, params, "torch", problem.device)
        inputs = kernel.load(*(whole(part, orders)[None] for part in (q, k, v)))
        made = kernel.forward(inputs)
        ctx.saved, ctx.frees = (kernel, inputs, made, orders), frees
        return made.out[0][orders[rank]]

    @staticmethod
    def backward(ctx, dout):
        kernel, inputs, made, orders = ctx.saved
        if ctx.frees:
            del ctx.saved
        grads = kernel.backward(inputs, made, whole(dout.contiguous(), orders)[None])
        return (*(part[0][orders[dist.get_rank()]] for part in grads), None, None, None)


def attend(q, k, v, orders, rows, frees=False):
    """Of (T, N, D), or (1, T, N, D)."""
    if q.dim() == 3:
        return Attention.apply(q, k, v, orders, rows, frees)
    assert q.shape[0] == 1
    return Attention.apply(q[0], k[0], v[0], orders, rows, frees)[None]


def check_groups(heads, ring):
    """Head groups are neighbours, rings go across them, over two ranks each."""
    rank = dist.get_rank()
    assert dist.get_process_group_ranks(heads) == [rank // 2 * 2, rank // 2 * 2 + 1]
    assert dist.get_process_group_ranks(ring) == [rank % 2, rank % 2 + 2]


def check_group(group):
    assert dist.get_process_group_ranks(group) == list(range(dist.get_world_size()))


class DotProductAttention:
    """transformer_engine.pytorch.DotProductAttention."""

    def __init__(
        self, num_heads, width, *, num_gqa_groups, attention_dropout, qkv_format, attn_mask_type, window_size, cp_group,
        cp_global_ranks, cp_stream, cp_comm_type,
    ):  # fmt: skip
        assert attention_dropout == 0 and cp_stream is None
        assert (qkv_format == "thd") == attn_mask_type.startswith("padding")
        assert cp_global_ranks == list(range(dist.get_world_size()))
        if cp_comm_type == "a2a+p2p":
            check_groups(*cp_group)
        else:
            check_group(cp_group)
        assert window_size is None or cp_comm_type in ("a2a", "all_gather")
        self.heads, self.packed = (num_heads, num_gqa_groups, width), qkv_format == "thd"
        self.causal, self.left = "causal" in attn_mask_type, window_size and window_size[0]

    def train(self, mode):
        self.training = mode

    def __call__(self, q, k, v, **given):
        assert (q.shape[-2], k.shape[-2], q.shape[-1]) == self.heads
        size = dist.get_world_size()
        if self.packed:
            padded, own = (np.diff(given[name].numpy()) for name in ("cu_seqlens_q_padded", "cu_seqlens_q"))
            assert 0 <= given["max_seqlen_q"] - padded.max() < 64 and given["max_seqlen_q"] % 64 == 0
            assert given["pad_between_seqs"] == (padded != own).any()
            assert given["cu_seqlens_kv"] is given["cu_seqlens_q"]
        else:
            assert not given
            padded = own = np.array([q.shape[1] * size])
        orders = [dual_chunks(padded, rank, size) for rank in range(size)]
        return attend(q, k, v, orders, rows_of(padded, own, self.causal, self.left), frees=True).flatten(-2)


def zigzag_ring_flash_attn_func(q, k, v, causal=False, group=None):
    assert causal, "zigzag ring is meaningless for causal=False"
    check_group(group)
    size = dist.get_world_size()
    lengths = np.array([q.shape[1] * size])
    return attend(
        q, k, v, [dual_chunks(lengths, rank, size) for rank in range(size)], rows_of(lengths, lengths, 1, None)
    )


def ring_flash_attn_func(q, k, v, causal=False, group=None):
    assert not causal
    check_group(group)
    lengths = np.array([q.shape[1] * dist.get_world_size()])
    return attend(q, k, v, runs(lengths[0], dist.get_world_size()), rows_of(lengths, lengths, 0, None))


def zigzag_ring_flash_attn_varlen_func(q, k, v, cu_seqlens, max_seqlen, causal=False, group=None):
    assert causal, "zigzag ring is meaningless for causal=False"
    check_group(group)
    size, local = dist.get_world_size(), np.diff(cu_seqlens.numpy())
    assert cu_seqlens.dtype == torch.int32 and max_seqlen == local.max() and (local % 2 == 0).all()
    orders = [dual_chunks(local * size, rank, size) for rank in range(size)]
    return attend(q, k, v, orders, rows_of(local * size, local * size, 1, None))


def llama3_flash_attn_prepare_cu_seqlens(cu_seqlens, causal, rank, world_size):
    assert (rank, world_size) == (dist.get_rank(), dist.get_world_size())
    assert cu_seqlens.dtype == torch.int32 and cu_seqlens[-1] % world_size == 0
    return cu_seqlens, ("of keys", causal), "longest", "longest of keys", slice(3, 5)


def llama3_flash_attn_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, heads_k_stride, local_k_slice, causal, window_size,
    group,
):  # fmt: skip
    assert (cu_seqlens_k, max_seqlen_q, max_seqlen_k) == (("of keys", causal), "longest", "longest of keys")
    assert local_k_slice == slice(3, 5) and k.shape[1] % heads_k_stride == 0
    check_group(group)
    lengths, left = np.diff(cu_seqlens_q.numpy()), None
    if window_size != (-1, -1):
        left, right = window_size
        assert right == 0 and causal
    return attend(q, k, v, runs(lengths.sum(), dist.get_world_size()), rows_of(lengths, lengths, causal, left))


PROCESS_GROUP = SimpleNamespace(ULYSSES_PG=None, RING_PG=None)
AttnType = Enum("AttnType", {"FA": "fa"})


class LongContextAttention:
    """yunchang.LongContextAttention over a mesh of 2 x 2."""

    def __init__(self, ring_impl_type, attn_type):
        check_groups(PROCESS_GROUP.ULYSSES_PG, PROCESS_GROUP.RING_PG)
        assert attn_type is AttnType.FA
        self.impl = ring_impl_type

    def __call__(self, q, k, v, causal):
        assert self.impl == ("zigzag" if causal else "basic")
        lengths = np.array([q.shape[1] * 4])
        orders = []
        for rank in range(4):
            ring, head = divmod(rank, 2)
            place = dual_chunks(lengths, ring, 2)
            orders.append(place[head * len(place) // 2 : (head + 1) * len(place) // 2])
        return attend(q, k, v, orders, rows_of(lengths, lengths, causal, None))


def install():
    """All of them, in the place of the real ones."""
    package, inner = ModuleType("transformer_engine"), ModuleType("transformer_engine.pytorch")
    inner.DotProductAttention = DotProductAttention
    package.pytorch = inner
    ring = ModuleType("ring_flash_attn")
    for function in (
        ring_flash_attn_func, zigzag_ring_flash_attn_func, zigzag_ring_flash_attn_varlen_func,
        llama3_flash_attn_prepare_cu_seqlens, llama3_flash_attn_varlen_func,
    ):  # fmt: skip
        setattr(ring, function.__name__, function)
    yunchang, its_globals, kernels = (ModuleType(name) for name in ("yunchang", "yunchang.globals", "yunchang.kernels"))
    yunchang.LongContextAttention = LongContextAttention
    its_globals.PROCESS_GROUP, kernels.AttnType = PROCESS_GROUP, AttnType
    sys.modules.update({one.__name__: one for one in (package, inner, ring, yunchang, its_globals, kernels)})
