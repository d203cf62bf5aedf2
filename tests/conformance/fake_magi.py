"""A stand-in for magi_attention on CPU ranks: its calls and layouts as documented, its work done by the reference kernel."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

import numpy as np
import torch
import torch.distributed as dist

from attnspec.kernels import reference
from attnspec.shape import Shape
from attnspec.slices import AttnSlices
from attnspec.slices.table import SliceType
from attnspec.support import Device, Problem

TYPES = ("full", "causal", "inv_causal", "bi_causal")
min_chunks = 8
"""Chunks that a rank has at least; with 0 a rank may hold nothing but padding."""


@dataclass(frozen=True, kw_only=True)
class Key:
    pad_size: int
    chunk_size: int
    seqlen: int
    slices: object
    heads: tuple[int, int, int]
    group: object


class Attention(torch.autograd.Function):
    """Everything is gathered and computed by everybody."""

    @staticmethod
    def forward(ctx, q, k, v, key):
        rank, size = dist.get_rank(), dist.get_world_size()
        whole = [undispatched(part, key) for part in (q, k, v)]
        problem = Problem(
            shape=Shape(
                batch=1, num_heads_q=key.heads[0], num_heads_kv=key.heads[1], head_dim=key.heads[2], dtype="float64"
            ),
            slices=key.slices,
            needs_backward=True,
            device=Device(type="cpu"),
        )
        kernel = reference.bind(
            reference.lower(problem, reference.Params(), "torch"), problem, reference.Params(), "torch", problem.device
        )
        inputs = kernel.load(*(part[None, : key.seqlen] for part in whole))
        made = kernel.forward(inputs)
        ctx.saved = kernel, inputs, made, key
        lse = made.lse[0].T.float()
        assert 0 <= rank < size
        return local(made.out[0], key), local(lse, key)

    @staticmethod
    def backward(ctx, dout, _):
        kernel, inputs, made, key = ctx.saved
        whole = undispatched(dout, key)[None, : key.seqlen]
        return (*(local(part[0], key) for part in kernel.backward(inputs, made, whole)), None)


def chunks(key):
    """Chunks of this rank: dealt out one by one, so that tokens are not in order."""
    return list(range(dist.get_rank(), (key.seqlen + key.pad_size) // key.chunk_size, dist.get_world_size()))[::-1]


def local(part, key):
    padded = torch.cat([part, part.new_zeros((key.pad_size, *part.shape[1:]))])
    return torch.cat([padded[n * key.chunk_size : (n + 1) * key.chunk_size] for n in chunks(key)])


def undispatched(part, key):
    whole = part.new_zeros((key.seqlen + key.pad_size, *part.shape[1:]))
    for place, n in enumerate(chunks(key)):
        whole[n * key.chunk_size : (n + 1) * key.chunk_size] = part[
            place * key.chunk_size : (place + 1) * key.chunk_size
        ]
    whole = whole.contiguous()
    dist.all_reduce(whole)
    return whole


def magi_attn_flex_key(
    *,
    q_ranges,
    k_ranges,
    attn_mask_type,
    total_seqlen_q,
    total_seqlen_k,
    num_heads_q,
    num_heads_kv,
    head_dim,
    pad_size,
    cp_group_or_mesh,
    dist_attn_config,
):
    assert isinstance(cp_group_or_mesh, dist.ProcessGroup) and pad_size == 0 and total_seqlen_q == total_seqlen_k
    size = dist.get_world_size()
    chunk_size = dist_attn_config.dispatch_config.chunk_size
    if min_chunks:
        chunk_size = min(-(-total_seqlen_q // (min_chunks * size)), chunk_size)
    assert dist_attn_config.overlap_config.degree == 2
    rows = [
        (*q, *k, SliceType(TYPES.index(kind))) for q, k, kind in zip(q_ranges, k_ranges, attn_mask_type, strict=True)
    ]
    return Key(
        pad_size=-total_seqlen_q % (chunk_size * size),
        chunk_size=chunk_size,
        seqlen=total_seqlen_q,
        slices=AttnSlices.from_rows(rows, seqlen_q=total_seqlen_q, seqlen_k=total_seqlen_k),
        heads=(num_heads_q, num_heads_kv, head_dim),
        group=cp_group_or_mesh,
    )


def dispatch(x, key, pad_value=0.0):
    padded = torch.cat([x, torch.full((key.pad_size, *x.shape[1:]), pad_value, dtype=x.dtype)])
    return torch.cat([padded[n * key.chunk_size : (n + 1) * key.chunk_size] for n in chunks(key)])


def calc_attn(q, k, v, key):
    assert q.dim() == 3
    out, lse = Attention.apply(q, k, v, key)
    return out, SimpleNamespace(lse=lse)


def install(chunks=8):
    global min_chunks
    min_chunks = chunks
    api, interface = ModuleType("magi_attention.api"), ModuleType("magi_attention.api.magi_attn_interface")
    common, config = ModuleType("magi_attention.common"), ModuleType("magi_attention.config")
    api.magi_attn_flex_key, api.dispatch, api.calc_attn = magi_attn_flex_key, dispatch, calc_attn

    class Managers(dict):
        def __missing__(self, key):
            sent = SimpleNamespace(input_split_size_list=[3, 5], dst_indices_list=[[1], [0, 1]])
            return SimpleNamespace(
                dist_attn_runtime=SimpleNamespace(comm_meta=SimpleNamespace(kv_group_collective_args_list=[sent, sent]))
            )

    interface.dist_attn_runtime_dict_mgr = Managers()
    common.AttnRanges = SimpleNamespace(from_ranges=lambda ranges: np.array(ranges).reshape(-1, 2).tolist())
    for name in ("DispatchConfig", "OverlapConfig", "DistAttnConfig"):
        setattr(config, name, lambda **given: SimpleNamespace(**given))
    sys.modules.update(
        {
            "magi_attention": ModuleType("magi_attention"),
            api.__name__: api,
            interface.__name__: interface,
            common.__name__: common,
            config.__name__: config,
        }
    )
    sys.modules["magi_attention"].api = api
