"""TransformerEngine's own context parallelism, by its DotProductAttention with cuDNN's fused attention.

Read: attn_forward_func_with_cp and its autograd functions in context_parallel.py, DotProductAttention, the selection of
backends in utils.py (cuDNN's goes first on Hopper and later), all of TransformerEngine 2.20.2, and its
tests/pytorch/attention/run_attention_with_cp.py. cu_seqlens are those of the whole sequence, without and with padding;
outputs have the heads of a token in one axis. There is no log-sum-exp to be had, and a backward frees its graph.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnspec.exchange.groups import all_ranks, mesh_groups
from attnspec.exchange.library_attention import LibraryAttention
from attnspec.exchange.tokens import Slots
from attnspec.exchange.transport import Transport
from attnspec.sharding.adapted import Adapted
from attnspec.support import Device
from attnspec.support.kernel_names import CUDNN

_MAX_SEQLEN_MULTIPLE = 64


def bind_transformer_engine(
    plan: Adapted, way: str, transport: Transport, device: Device, *, needs_backward: bool
) -> LibraryAttention:
    """The plan of one rank, ready to run. way: p2p, all_gather, a2a or a2a+p2p."""
    from transformer_engine.pytorch import DotProductAttention

    new_stream: Any = torch.cuda.Stream
    shape, sequences = plan.shape, plan.sequences
    mask = ("padding_causal" if sequences.causal else "padding") if plan.packed else None
    module: Any = DotProductAttention(
        shape.num_heads_q,
        shape.head_dim,
        num_gqa_groups=shape.num_heads_kv,
        attention_dropout=0.0,
        qkv_format="thd" if plan.packed else "bshd",
        attn_mask_type=mask or ("causal" if sequences.causal else "no_mask"),
        window_size=None if sequences.left is None else (sequences.left, 0),
        cp_group=mesh_groups(transport, plan.degrees) if "+" in way else all_ranks(transport),
        cp_global_ranks=list(range(transport.size)),
        cp_stream=new_stream() if device.type == "cuda" else None,
        cp_comm_type=way,
    )
    module.train(needs_backward)
    named = _cu_seqlens(plan, device) if plan.packed else {}

    def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, None]:
        return module(q, k, v, **named).unflatten(-1, (shape.num_heads_q, -1)), None

    return LibraryAttention(
        attend,
        Slots(plan.layout.slots(transport.rank), plan.layout.num_slots, device.type),
        packed=plan.packed,
        needs_backward=needs_backward,
        frees_graph=True,
        expected_kernels=CUDNN,
    )


def _cu_seqlens(plan: Adapted, device: Device) -> Mapping[str, Any]:
    """Of queries and keys alike, without and with the padding that the layout has."""
    multiple, lengths = 2 * plan.num_ranks, plan.sequences.lengths
    padded = -(-lengths // multiple) * multiple
    own, whole = (
        torch.from_numpy(np.concatenate([[0], np.cumsum(one)]).astype(np.int32)).to(device.type)
        for one in (lengths, padded)
    )
    # Rounded as the library rounds when it looks itself, for which the host would have to wait for the device.
    steps = math.lcm(_MAX_SEQLEN_MULTIPLE, multiple)
    longest = -(-int(padded.max()) // steps) * steps
    return {
        "cu_seqlens_q": own,
        "cu_seqlens_kv": own,
        "cu_seqlens_q_padded": whole,
        "cu_seqlens_kv_padded": whole,
        "max_seqlen_q": longest,
        "max_seqlen_kv": longest,
        "pad_between_seqs": plan.padding_tokens > 0,
    }
