"""ring-flash-attn's own context parallelism, over flash-attn (FlashAttention 2), which it imports itself.

Read: zigzag_ring_flash_attn.py, zigzag_ring_flash_attn_varlen.py, ring_flash_attn.py, llama3_flash_attn_varlen.py and
utils.py of ring-flash-attn 0.1.8. The zigzag functions are causal only; their varlen one wants cu_seqlens of what a
rank holds, with every sequence as long as the multiple of 2 x ranks that follows. The Llama 3 function takes contiguous
runs of the packed sequences, gathers keys of `heads_k_stride` heads at a time, and slices those that a rank's rows see.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnspec.exchange.groups import all_ranks
from attnspec.exchange.library_attention import LibraryAttention
from attnspec.exchange.tokens import Slots
from attnspec.exchange.transport import Transport
from attnspec.sharding.adapted import Adapted
from attnspec.support import Device
from attnspec.support.kernel_names import FLASH_ATTENTION_2


def bind_zigzag(plan: Adapted, transport: Transport, device: Device, *, needs_backward: bool) -> LibraryAttention:
    """The plan of one rank by a ring, ready to run."""
    import ring_flash_attn

    named: dict[str, Any] = {"causal": plan.sequences.causal, "group": all_ranks(transport)}
    call: Any = ring_flash_attn.zigzag_ring_flash_attn_func
    if plan.packed:
        call = ring_flash_attn.zigzag_ring_flash_attn_varlen_func
        chunks = -(-plan.sequences.lengths // (2 * plan.num_ranks))
        named |= {"cu_seqlens": _cu_seqlens(2 * chunks, device), "max_seqlen": int(2 * chunks.max())}
    elif not plan.sequences.causal:
        call = ring_flash_attn.ring_flash_attn_func
    return _bound(lambda q, k, v: call(q, k, v, **named), plan, transport, device, needs_backward)


def bind_llama3(plan: Adapted, transport: Transport, device: Device, *, needs_backward: bool) -> LibraryAttention:
    """The plan of one rank by gathering keys, ready to run."""
    import ring_flash_attn

    group, sequences = all_ranks(transport), plan.sequences
    cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, local_k_slice = (
        ring_flash_attn.llama3_flash_attn_prepare_cu_seqlens(
            _cu_seqlens(sequences.lengths, device),
            causal=sequences.causal,
            rank=transport.rank,
            world_size=transport.size,
        )
    )
    named: dict[str, Any] = {
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k,
        "max_seqlen_q": max_seqlen_q,
        "max_seqlen_k": max_seqlen_k,
        **plan.settings,
        "local_k_slice": local_k_slice,
        "causal": sequences.causal,
        "window_size": (-1, -1) if sequences.left is None else (sequences.left, 0),
        "group": group,
    }
    call: Any = ring_flash_attn.llama3_flash_attn_varlen_func
    return _bound(lambda q, k, v: call(q, k, v, **named), plan, transport, device, needs_backward)


def _bound(
    call: Callable[[Tensor, Tensor, Tensor], Tensor],
    plan: Adapted,
    transport: Transport,
    device: Device,
    needs_backward: bool,
) -> LibraryAttention:
    return LibraryAttention(
        lambda q, k, v: (call(q, k, v), None),
        Slots(plan.layout.slots(transport.rank), plan.layout.num_slots, device.type),
        packed=plan.packed,
        needs_backward=needs_backward,
        frees_graph=False,
        expected_kernels=FLASH_ATTENTION_2,
    )


def _cu_seqlens(lengths: np.ndarray[Any, np.dtype[np.int64]], device: Device) -> Tensor:
    return torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)).to(device.type)
