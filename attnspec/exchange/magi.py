"""MagiAttention's own context parallelism: its dispatch of chunks, its group collectives, its kernel.

Read: magi_attention/api/magi_attn_interface.py, functional/dist_attn.py, meta/collection/comm_meta.py and env/ of tag
v1.1.1 of SandAI-org/MagiAttention, and its exps/dist_attn for the settings of its published page. A key, made by all
ranks together, holds the plan for one mask; chunks of the sequence are dealt out by a min-heap over their areas; K and
V of remote chunks come in `overlap_degree` stages while earlier ones are computed; outputs are merged by log-sum-exp.
Its environment variables choose between all-to-all-v and native kernels for group collectives and name the kernel;
they are read when the library is imported and when a key is made.

Tensors are packed tokens (T, N, D) of batch 1; lse is (T, N), natural.
"""

from __future__ import annotations

import os
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from attnspec.errors import UnsupportedError
from attnspec.exchange.bound import Grads
from attnspec.exchange.groups import Ranks
from attnspec.exchange.guard import Guard
from attnspec.exchange.tokens import Slots
from attnspec.exchange.transport import GroupTransport
from attnspec.shape import Shape
from attnspec.sharding.dispatched import Dispatched
from attnspec.sharding.routes import Channel
from attnspec.slices import AttnSlices, merge
from attnspec.support import Device, Forward

MIN_CHUNK_SIZE, MAX_NUM_CHUNKS = 512, 64
"""Of an overlap stage, as in the library's own benchmark."""
_KERNELS = {"ffa": "flash", "ffa_fa4": "FlashAttention(Forward|Backward)"}
_TYPES = ("full", "causal", "inv_causal", "bi_causal")


def check_environment(kernel: str, *, native: bool) -> None:
    """Raise UnsupportedError unless the process was started with what this strategy and kernel need."""
    if _fa4() != (kernel == "ffa_fa4"):
        wanted = "1" if kernel == "ffa_fa4" else "0"
        raise UnsupportedError("backend", f'{kernel} needs env: {{MAGI_ATTENTION_FA4_BACKEND: "{wanted}"}}')
    if (os.environ.get("MAGI_ATTENTION_NATIVE_GRPCOLL", "0") == "1") != native:
        wanted = "1" if native else "0"
        raise UnsupportedError(
            "backend", f'this strategy needs env: {{MAGI_ATTENTION_NATIVE_GRPCOLL: "{wanted}"}} (or its counterpart)'
        )


def _fa4() -> bool:
    return os.environ.get("MAGI_ATTENTION_FA4_BACKEND", "0") == "1"


def dispatch_plan(
    slices: AttnSlices, shape: Shape, ranks: Ranks, device: Device, *, chunk_size: int, overlap_degree: int
) -> Dispatched:
    """The library's own plan, made by all ranks together. Raises UnsupportedError for what it does not take."""
    if shape.batch != 1:
        raise UnsupportedError("backend", f"MagiAttention takes packed tokens, batch 1, not {shape.batch}")
    if slices.seqlen_q != slices.seqlen_k:
        raise UnsupportedError("seqlen", "MagiAttention dispatches queries and keys together: seqlens must be equal")
    if ranks.size == 1:
        raise UnsupportedError("mesh", "MagiAttention's distributed attention needs at least 2 ranks")
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
        cp_group_or_mesh=cast(GroupTransport, ranks.transport).group(Channel.INNER),
        dist_attn_config=DistAttnConfig(
            dispatch_config=DispatchConfig(chunk_size=chunk_size),
            overlap_config=OverlapConfig(
                degree=overlap_degree, min_chunk_size=MIN_CHUNK_SIZE, max_num_chunks=MAX_NUM_CHUNKS
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
        mesh={"chunk_size": int(key.chunk_size), "overlap_degree": overlap_degree},
        partials=overlap_degree + 1,
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


class MagiAttention:
    """A RankKernel over one rank's tokens, in the order of the library's own dispatch. Autograd does the backward."""

    explicit_backward = False
    frees_graph = False
    backend = None
    lse_tolerance = 0.0
    transport = None

    def __init__(self, plan: Dispatched, rank: int, device: Device, *, needs_backward: bool) -> None:
        from magi_attention import api

        self._calc: Any = api.calc_attn
        self._key, self._needs_backward = plan.handle, needs_backward
        self._slots = Slots(plan.slots[rank], plan.num_slots[rank], device.type)
        self.expected_kernels = _KERNELS["ffa_fa4" if _fa4() else "ffa"]

    def load(self, q_BTND: Tensor, k_BSGD: Tensor, v_BSGD: Tensor) -> Grads:
        """Packed tokens in their slots, as leaves of a graph."""
        q, k, v = (self._slots.fill(part)[0].detach() for part in (q_BTND, k_BSGD, v_BSGD))
        for part in (q, k, v):
            part.requires_grad_(self._needs_backward)
        return q, k, v

    def load_dout(self, dout_BTND: Tensor) -> Tensor:
        """Packed tokens in their slots."""
        return self._slots.fill(dout_BTND)[0]

    def load_forward(self, out_BTND: Tensor, lse_BNT: Tensor) -> Forward:
        """Never called: a strategy goes backward from its own forward."""
        raise AssertionError("a strategy has no backward from a given output")

    def forward(self, inputs: Grads) -> Forward:
        """One forward; the graph hangs on out."""
        with torch.set_grad_enabled(self._needs_backward):
            out, meta = self._calc(*inputs, self._key)
        return Forward(out=out, lse=meta.lse)

    def forward_with(self, inputs: Grads, guard: Guard) -> Forward:
        """One forward; the library's messages stop when it fails."""
        made = guard.run(self.forward, inputs)
        return Forward(out=inputs[0], lse=None) if made is None else made

    def backward(self, inputs: Grads, forward: Forward, dout: Tensor) -> Grads:
        """(dq, dk, dv) by autograd, the graph kept."""
        dq, dk, dv = torch.autograd.grad(forward.out, inputs, dout, retain_graph=True)
        return dq, dk, dv

    def backward_with(self, inputs: Grads, forward: Forward, dout: Tensor, guard: Guard) -> Grads:
        """One backward; the library's messages stop when it fails."""
        return guard.run(self.backward, inputs, forward, dout) or inputs

    def canonical_out(self, forward: Forward) -> tuple[Tensor, Tensor | None]:
        """out and lse of the rank's tokens."""
        assert forward.lse is not None
        lse_TN = self._slots.read(forward.lse.detach().float(), dim=0)
        return self._slots.read(forward.out.detach(), dim=0)[None], lse_TN.T.contiguous()[None]

    def canonical_grads(self, grads: Grads) -> Grads:
        """Of the rank's tokens."""
        dq, dk, dv = (self._slots.read(part, dim=0)[None] for part in grads)
        return dq, dk, dv
