"""A stand-in for TransformerEngine's DotProductAttention with context parallelism on CPU ranks.

It takes what the real one documents and computes everything everywhere, from tensors in DualChunkSwap order.
"""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as np
import torch
import torch.distributed as dist

from attnspec.kernels import reference
from attnspec.shape import Shape
from attnspec.slices import AttnSlices
from attnspec.support import Device, Problem


class DotProductAttention:
    def __init__(
        self, num_heads, width, *, num_gqa_groups, attention_dropout, qkv_format, attn_mask_type, window_size, cp_group,
        cp_global_ranks, cp_stream, cp_comm_type,
    ):  # fmt: skip
        assert attention_dropout == 0 and cp_stream is None
        assert (qkv_format == "thd") == attn_mask_type.startswith("padding")
        size = dist.get_world_size()
        if cp_comm_type == "a2a+p2p":
            heads, ring = (dist.get_process_group_ranks(group) for group in cp_group)
            assert heads == [dist.get_rank() // 2 * 2, dist.get_rank() // 2 * 2 + 1]
            assert ring == [dist.get_rank() % 2, dist.get_rank() % 2 + 2]
        else:
            assert dist.get_process_group_ranks(cp_group) == cp_global_ranks == list(range(size))
        self.heads, self.format = (num_heads, num_gqa_groups, width), qkv_format
        self.causal, self.window, self.way = "causal" in attn_mask_type, window_size, cp_comm_type

    def train(self, mode):
        self.training = mode

    def __call__(self, q, k, v, **given):
        return Attention.apply(q, k, v, self, given)


def order_of(padded, rank, size):
    """Where the tokens of a rank lie in the padded sequence."""
    found, start = [], 0
    for length in padded:
        chunk = length // (2 * size)
        for n in (rank, 2 * size - 1 - rank):
            found += range(start + n * chunk, start + (n + 1) * chunk)
        start += length
    return found


def whole(part, orders):
    made = part.new_zeros((sum(map(len, orders)), *part.shape[1:]))
    made[orders[dist.get_rank()]] = part
    dist.all_reduce(made)
    return made


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, module, given):
        size = dist.get_world_size()
        packed = module.format == "thd"
        tokens = q if packed else q.transpose(0, 1).flatten(1, 2)
        if packed:
            padded, own = (np.diff(given[name].numpy()) for name in ("cu_seqlens_q_padded", "cu_seqlens_q"))
            assert 0 <= given["max_seqlen_q"] - padded.max() < 64 and given["max_seqlen_q"] % 64 == 0
            assert given["pad_between_seqs"] == (padded != own).any()
            assert given["cu_seqlens_kv"] is given["cu_seqlens_q"]
        else:
            assert not given and q.shape[0] == 1
            padded = own = np.array([len(tokens) * size])
        orders = [order_of(padded, rank, size) for rank in range(size)]
        starts = np.cumsum(padded) - padded
        rows = []
        for start, length in zip(starts, own, strict=True):
            if module.window is not None:
                left = module.window[0]
                head = min(left + 1, length)
                rows += [(start, start + head, start, start + head, 1)]
                if length > head:
                    rows += [(start + head, start + length, start + 1, start + length, 3)]
            else:
                rows += [(start, start + length, start, start + length, int(module.causal))]
        total = int(padded.sum())
        num_heads, num_groups, width = module.heads
        problem = Problem(
            shape=Shape(batch=1, num_heads_q=num_heads, num_heads_kv=num_groups, head_dim=width, dtype="float64"),
            slices=AttnSlices.from_rows(rows, seqlen_q=total, seqlen_k=total),
            needs_backward=True,
            device=Device(type="cpu"),
        )
        params = reference.Params()
        kernel = reference.bind(reference.lower(problem, params, "torch"), problem, params, "torch", problem.device)
        inputs = kernel.load(*(whole(part if packed else part[0], orders)[None] for part in (q, k, v)))
        made = kernel.forward(inputs)
        ctx.saved, ctx.packed = (kernel, inputs, made, orders), packed
        out = made.out[0][orders[dist.get_rank()]].flatten(1)
        return out if packed else out[None]

    @staticmethod
    def backward(ctx, dout):
        kernel, inputs, made, orders = ctx.saved
        del ctx.saved  # a second backward through the same graph fails, as the library's does
        tokens = dout if ctx.packed else dout[0]
        dout_BTND = whole(tokens.unflatten(-1, made.out.shape[2:]), orders)[None]
        grads = (part[0][orders[dist.get_rank()]] for part in kernel.backward(inputs, made, dout_BTND))
        return (*(part if ctx.packed else part[None] for part in grads), None, None)


def install():
    package, inner = ModuleType("transformer_engine"), ModuleType("transformer_engine.pytorch")
    inner.DotProductAttention = DotProductAttention
    package.pytorch = inner
    sys.modules.update({"transformer_engine": package, "transformer_engine.pytorch": inner})
