"""FlashAttention 4: flash_attn.cute of flash-attn-4, with as much of CuTe DSL as a mask function needs."""

import math
import sys
from types import ModuleType
from typing import NamedTuple

import torch

from fakes.arithmetic import (
    band,
    batched_backward,
    batched_forward,
    packed_backward,
    packed_forward,
    sequences,
)


class BlockSparseTensorsTorch(NamedTuple):
    mask_block_cnt: torch.Tensor
    mask_block_idx: torch.Tensor
    full_block_cnt: torch.Tensor | None = None
    full_block_idx: torch.Tensor | None = None
    cu_total_m_blocks: torch.Tensor | None = None
    cu_block_idx_offsets: torch.Tensor | None = None
    block_size: tuple[int, int] | None = None
    dq_write_order: torch.Tensor | None = None
    dq_write_order_full: torch.Tensor | None = None
    spt: bool | None = None


def varlen_cells(causal, left, right):
    """None is no bound; the causal flag bounds the right at 0."""
    assert left is None or left >= 0
    assert right is None or right >= 0
    return lambda num_rows, num_keys: band(num_rows, num_keys, left, 0 if causal else right)


def block_cells(tensors, mask_mod, aux_tensors, num_rows, num_keys, *, by_keys):
    """Cells of full blocks, and of partial blocks where mask_mod says so.

    Rows of the lists are blocks of queries that name blocks of keys, or the other way round in the backward.
    """
    size_q, size_k = tensors.block_size
    cells = torch.zeros(num_rows, num_keys, dtype=torch.bool)
    lists = (tensors.mask_block_cnt, tensors.mask_block_idx), (tensors.full_block_cnt, tensors.full_block_idx)
    rows = num_keys if by_keys else num_rows
    for partial, (counts, indices) in zip((True, False), lists, strict=True):
        assert counts.dtype == indices.dtype == torch.int32
        assert counts.shape == (1, 1, -(-rows // (size_k if by_keys else size_q)))
        assert indices.shape[:3] == counts.shape
        for row, count in enumerate(counts[0, 0].tolist()):
            for column in indices[0, 0, row, :count].tolist():
                block_q, block_k = (column, row) if by_keys else (row, column)
                queries = slice(block_q * size_q, min((block_q + 1) * size_q, num_rows))
                keys = slice(block_k * size_k, min((block_k + 1) * size_k, num_keys))
                assert not cells[queries, keys].any()
                if not partial:
                    cells[queries, keys] = True
                    continue
                n_idx = torch.arange(keys.start, keys.stop)
                for query in range(queries.start, queries.stop):
                    cells[query, keys] = mask_mod(0, 0, torch.tensor([query]), n_idx, None, aux_tensors)
    return cells


def install(monkeypatch, log):
    """Modules flash_attn.cute and cutlass."""

    def cells_of(q, k, causal, left, right, mask_mod, block_sparse_tensors, aux_tensors, *, by_keys):
        if block_sparse_tensors is None:
            return varlen_cells(causal, left, right)(q.shape[1], k.shape[1])
        assert (causal, left, right) == (False, None, None)
        sizes = q.shape[1], k.shape[1]
        return block_cells(block_sparse_tensors, mask_mod, aux_tensors, *sizes, by_keys=by_keys)

    def forward(
        q, k, v, qv=None, cu_seqlens_q=None, cu_seqlens_k=None, seqused_q=None, seqused_k=None, max_seqlen_q=None,
        max_seqlen_k=None, min_seqlen_k=None, page_table=None, softmax_scale=None, causal=False, softcap=None,
        window_size_left=None, window_size_right=None, learnable_sink=None, tile_mn=None, mma_pv_is_rs=None,
        intra_wg_overlap=None, num_threads=384, num_splits=1, pack_gqa=None, _arch=None, score_mod=None,
        mask_mod=None, block_sparse_tensors=None, return_lse=False, out=None, lse=None, aux_tensors=None,
    ):  # fmt: skip
        assert return_lse
        log.note("forward", packed=cu_seqlens_q is not None, sparse=block_sparse_tensors is not None)
        if cu_seqlens_q is None:
            mask = mask_mod, block_sparse_tensors, aux_tensors
            cells = cells_of(q, k, causal, window_size_left, window_size_right, *mask, by_keys=False)
            return *batched_forward(q, k, v, cells, softmax_scale, -math.inf), None, None, None
        assert block_sparse_tensors is None
        pairs = sequences(cu_seqlens_q, cu_seqlens_k, q, k, max_seqlen_q, max_seqlen_k)
        cells = varlen_cells(causal, window_size_left, window_size_right)
        return *packed_forward(q, k, v, pairs, cells, softmax_scale, -math.inf), None, None, None

    def backward(
        q, k, v, out, dout, lse, softmax_scale=None, causal=False, softcap=0.0, window_size_left=None,
        window_size_right=None, m_block_size=64, n_block_size=128, num_threads=256, pack_gqa=False, num_stages_Q=2,
        num_stages_dO=2, SdP_swapAB=False, dKV_swapAB=False, dQ_swapAB=False, AtomLayoutMSdP=2, AtomLayoutNdKV=2,
        AtomLayoutMdQ=2, V_in_regs=False, cu_seqlens_q=None, cu_seqlens_k=None, seqused_q=None, seqused_k=None,
        max_seqlen_q=None, max_seqlen_k=None, deterministic=False, dq=None, dk=None, dv=None, score_mod=None,
        score_mod_bwd=None, mask_mod=None, aux_tensors=None, aux_scalars=None, block_sparse_tensors=None, dlse=None,
        learnable_sink=None,
    ):  # fmt: skip
        log.note("backward", packed=cu_seqlens_q is not None, sparse=block_sparse_tensors is not None)
        tensors = dout, q, k, v, out, lse
        if cu_seqlens_q is None:
            assert lse.shape == (len(q), q.shape[2], q.shape[1])
            mask = mask_mod, block_sparse_tensors, aux_tensors
            cells = cells_of(q, k, causal, window_size_left, window_size_right, *mask, by_keys=True)
            return batched_backward(*tensors, cells, softmax_scale)
        pairs = sequences(cu_seqlens_q, cu_seqlens_k, q, k, max_seqlen_q, max_seqlen_k)
        cells = varlen_cells(causal, window_size_left, window_size_right)
        return packed_backward(*tensors, pairs, cells, softmax_scale)

    names = ("flash_attn", "flash_attn.cute", "flash_attn.cute.interface", "flash_attn.cute.block_sparsity")
    modules = {name: ModuleType(name) for name in (*names, "flash_attn.cute.utils", "cutlass", "cutlass.cute")}
    for name, module in modules.items():
        parent, _, own = name.rpartition(".")
        if parent:
            setattr(modules[parent], own, module)
        monkeypatch.setitem(sys.modules, name, module)
    modules["flash_attn.cute.interface"]._flash_attn_fwd = forward
    modules["flash_attn.cute.interface"]._flash_attn_bwd = backward
    modules["flash_attn.cute.block_sparsity"].BlockSparseTensorsTorch = BlockSparseTensorsTorch
    modules["flash_attn.cute.utils"].scalar_to_ssa = lambda value, dtype: value
    modules["cutlass"].Int32 = int
    modules["cutlass"].range_constexpr = range
    modules["cutlass.cute"].jit = lambda function: function
    monkeypatch.delitem(sys.modules, "attnspec.kernels._fa4_masks", raising=False)
