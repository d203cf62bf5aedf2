"""TransformerEngine's own context parallelism, by its DotProductAttention with cuDNN's fused attention.

Read: attn_forward_func_with_cp and its autograd functions in context_parallel.py, DotProductAttention, and
tests/pytorch/attention/run_attention_with_cp.py of TransformerEngine 2.20. cu_seqlens are those of the whole sequence,
without and with padding; outputs have the heads of a token in one axis. There is no log-sum-exp to be had, and a
backward frees its graph.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from attnspec.errors import UnsupportedError
from attnspec.exchange.bound import Grads
from attnspec.exchange.guard import Guard
from attnspec.exchange.tokens import Slots
from attnspec.exchange.transport import GroupTransport, Transport
from attnspec.sharding.dual_chunk import DualChunk
from attnspec.sharding.mesh import Mesh
from attnspec.sharding.routes import Channel
from attnspec.support import Device, Forward

_MAX_SEQLEN_MULTIPLE = 64
_groups: dict[tuple[int, ...], dist.ProcessGroup] = {}
"""Process groups of parts of the job, made once."""


class TransformerEngineAttention:
    """A RankKernel over one rank's tokens. way: p2p, all_gather, a2a, or a2a+p2p with its mesh."""

    explicit_backward = False
    frees_graph = True
    expected_kernels = "cudnn|sdpa|fprop|bprop"
    backend = None
    lse_tolerance = 0.0
    transport = None

    def __init__(
        self,
        plan: DualChunk,
        way: str,
        mesh: Mesh | None,
        transport: Transport,
        device: Device,
        *,
        needs_backward: bool,
    ) -> None:
        from transformer_engine.pytorch import DotProductAttention

        new_stream: Any = torch.cuda.Stream
        rank, shape = transport.rank, plan.shape
        self._plan, self._needs_backward = plan, needs_backward
        self._slots = Slots(plan.layout.slots(rank), plan.layout.num_slots, device.type)
        mask = "causal" if plan.causal else "no_mask"
        packed = {"no_mask": "padding", "causal": "padding_causal"}
        self._module: Any = DotProductAttention(
            shape.num_heads_q,
            shape.head_dim,
            num_gqa_groups=shape.num_heads_kv,
            attention_dropout=0.0,
            qkv_format="thd" if plan.packed else "bshd",
            attn_mask_type=packed[mask] if plan.packed else mask,
            window_size=None if plan.left is None else (plan.left, 0),
            cp_group=_cp_group(transport, mesh),
            cp_global_ranks=list(range(transport.size)),
            cp_stream=new_stream() if device.type == "cuda" else None,
            cp_comm_type=way,
        )
        self._module.train(needs_backward)
        self._named = _cu_seqlens(plan, device) if plan.packed else {}

    def load(self, q_BTND: Tensor, k_BSGD: Tensor, v_BSGD: Tensor) -> Grads:
        """Tokens in their slots, packed (T, N, D) or (B, T, N, D), as leaves of a graph."""
        q, k, v = (self._filled(part).detach() for part in (q_BTND, k_BSGD, v_BSGD))
        for part in (q, k, v):
            part.requires_grad_(self._needs_backward)
        return q, k, v

    def load_dout(self, dout_BTND: Tensor) -> Tensor:
        """As outputs are: the heads of a token in one axis."""
        return self._filled(dout_BTND).flatten(-2)

    def load_forward(self, out_BTND: Tensor, lse_BNT: Tensor) -> Forward:
        """Never called: a strategy goes backward from its own forward."""
        raise AssertionError("a strategy has no backward from a given output")

    def forward_with(self, inputs: Grads, guard: Guard) -> Forward:
        """One forward; the library's messages stop when it fails."""
        made = guard.run(self._run, inputs)
        return Forward(out=inputs[0], lse=None) if made is None else made

    def backward_with(self, inputs: Grads, forward: Forward, dout: Tensor, guard: Guard) -> Grads:
        """One backward by autograd, which consumes the graph; the library's messages stop when it fails."""
        made = guard.run(torch.autograd.grad, forward.out, inputs, dout)
        return inputs if made is None else cast(Grads, made)

    def canonical_out(self, forward: Forward) -> tuple[Tensor, None]:
        """out of the rank's tokens."""
        heads = self._plan.shape.num_heads_q
        return self._read(torch.unflatten(forward.out.detach(), -1, (heads, -1))), None

    def canonical_grads(self, grads: Grads) -> Grads:
        """Of the rank's tokens."""
        dq, dk, dv = map(self._read, grads)
        return dq, dk, dv

    def _run(self, inputs: Grads) -> Forward:
        with torch.set_grad_enabled(self._needs_backward):
            return Forward(out=self._module(*inputs, **self._named), lse=None)

    def _filled(self, part_BTND: Tensor) -> Tensor:
        filled = self._slots.fill(part_BTND)
        return filled[0] if self._plan.packed else filled

    def _read(self, part: Tensor) -> Tensor:
        return self._slots.read(part[None] if self._plan.packed else part)


def _cu_seqlens(plan: DualChunk, device: Device) -> Mapping[str, Any]:
    """Of queries and keys alike, without and with the padding that the layout has."""
    multiple = 2 * plan.num_ranks
    padded = -(-plan.lengths // multiple) * multiple
    own, whole = (
        torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)).to(device.type)
        for lengths in (plan.lengths, padded)
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


def _cp_group(transport: Transport, mesh: Mesh | None) -> Any:
    """The group of all ranks, or those of the rank's head group and of its ring; all ranks make them together."""
    if not isinstance(transport, GroupTransport):
        raise UnsupportedError("mesh", "TransformerEngine's context parallelism needs at least 2 ranks")
    if mesh is None:
        return transport.group(Channel.INNER)
    parts = [mesh.head_group(ring) for ring in range(mesh.ring_degree)]
    parts += [mesh.ring(head) for head in range(mesh.ulysses_degree)]
    for part in parts:
        if part not in _groups:
            _groups[part] = dist.new_group(part, backend=transport.backend)
    head, ring = mesh.place(transport.rank)
    return [_groups[mesh.head_group(ring)], _groups[mesh.ring(head)]]
