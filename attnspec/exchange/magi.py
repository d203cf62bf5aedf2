"""MagiAttention's own context parallelism: its dispatch of chunks, its group collectives, its kernel.

Read: magi_attention/api/magi_attn_interface.py, functional/dist_attn.py, meta/collection/comm_meta.py and env/ of tag
v1.1.1 of SandAI-org/MagiAttention, and its exps/dist_attn for the settings of its published page. A key, made by all
ranks together, holds the plan for one mask; chunks of the sequence are dealt out by a min-heap over their areas; K and
V of remote chunks come in `overlap_degree` stages while earlier ones are computed; outputs are merged by log-sum-exp.
Its environment variables choose between all-to-all-v and native kernels for group collectives and name the kernel;
they are read when the library is imported and when a key is made (`attnspec.sharding.libraries.magi_variables`).

Tensors are packed tokens (T, N, D) of batch 1; lse is (T, N), natural.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnspec.errors import UnsupportedError
from attnspec.exchange.groups import Ranks, all_ranks
from attnspec.exchange.library_attention import LibraryAttention
from attnspec.exchange.tokens import Slots
from attnspec.shape import Shape
from attnspec.sharding.dispatched import Dispatched, DispatchParams
from attnspec.sharding.libraries import MAGI_FA4
from attnspec.slices import AttnSlices, merge
from attnspec.support import Device
from attnspec.support.kernel_names import FLASH_ATTENTION_3, MAGI_FLASH_ATTENTION_4
from attnspec.support.provider import UNSET

MIN_CHUNK_SIZE, MAX_NUM_CHUNKS = 512, 64
"""Of an overlap stage, as in the library's own benchmark."""
_TYPES = ("full", "causal", "inv_causal", "bi_causal")


def dispatch_plan(params: DispatchParams, slices: AttnSlices, shape: Shape, ranks: Ranks, device: Device) -> Dispatched:
    """The library's own plan, made by all ranks together. Raises UnsupportedError for what it does not take."""
    if shape.batch != 1:
        raise UnsupportedError("backend", f"MagiAttention takes packed tokens, batch 1, not {shape.batch}")
    if slices.seqlen_q != slices.seqlen_k:
        raise UnsupportedError("seqlen", "MagiAttention dispatches queries and keys together: seqlens must be equal")
    group = all_ranks(ranks.transport)
    held = merge(slices)
    if not len(held):
        raise UnsupportedError("no_lowering", "MagiAttention takes no empty mask")
    from magi_attention import api
    from magi_attention.common import AttnRanges
    from magi_attention.config import DispatchConfig, DistAttnConfig, OverlapConfig

    key: Any = api.magi_attn_flex_key(
        q_ranges=AttnRanges.from_ranges(held.ranges[:, :2].tolist()),
        k_ranges=AttnRanges.from_ranges(held.ranges[:, 2:].tolist()),
        attn_mask_type=[_TYPES[kind] for kind in held.types.tolist()],
        total_seqlen_q=slices.seqlen_q,
        total_seqlen_k=slices.seqlen_k,
        num_heads_q=shape.num_heads_q,
        num_heads_kv=shape.num_heads_kv,
        head_dim=shape.head_dim,
        pad_size=0,
        cp_group_or_mesh=group,
        dist_attn_config=DistAttnConfig(
            dispatch_config=DispatchConfig(chunk_size=params.chunk_size),
            overlap_config=OverlapConfig(
                degree=params.overlap_degree, min_chunk_size=MIN_CHUNK_SIZE, max_num_chunks=MAX_NUM_CHUNKS
            ),
        ),
    )
    every = torch.arange(slices.seqlen_q, device=device.type)
    positions = api.dispatch(every, key, pad_value=-1).cpu().numpy()
    slots = np.flatnonzero(positions >= 0)
    told = ranks.share((positions[slots], slots, len(positions), _casts(key, ranks.size)))
    return Dispatched(
        slices=slices,
        shape=shape,
        mesh={"chunk_size": int(key.chunk_size), "overlap_degree": params.overlap_degree},
        partials=params.overlap_degree + 1,
        tokens=tuple(one[0] for one in told),
        slots=tuple(one[1] for one in told),
        num_slots=tuple(one[2] for one in told),
        casts=np.stack([one[3] for one in told]),
        handle=key,
    )


def _casts(key: Any, num_ranks: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """How many keys this rank sends to each."""
    from magi_attention.api.magi_attn_interface import dist_attn_runtime_dict_mgr

    sent = np.zeros(num_ranks, dtype=np.int64)
    meta = dist_attn_runtime_dict_mgr[key].dist_attn_runtime.comm_meta
    for stage in meta.kv_group_collective_args_list:
        for length, targets in zip(stage.input_split_size_list, stage.dst_indices_list, strict=True):
            sent[targets] += length
    return sent


def bind_magi(plan: Dispatched, rank: int, device: Device, *, needs_backward: bool) -> LibraryAttention:
    """The plan of one rank, ready to run, over tokens in the order of the library's own dispatch."""
    from magi_attention import api

    calc: Any = api.calc_attn

    def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        out, meta = calc(q, k, v, plan.handle)
        return out, meta.lse

    return LibraryAttention(
        attend,
        Slots(plan.slots[rank], plan.num_slots[rank], device.type),
        packed=True,
        needs_backward=needs_backward,
        frees_graph=False,
        expected_kernels=MAGI_FLASH_ATTENTION_4 if (os.environ.get(MAGI_FA4) or UNSET) == "1" else FLASH_ATTENTION_3,
    )
