"""Libraries that take a mask as slices or by columns: MagiAttention (FFA, and on FlashAttention 4) and FlashMask."""

import math
import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

import torch

from fakes.arithmetic import attend, attend_backward, batched_backward, batched_forward

FLASHMASK_FWD = """fwd(Tensor q, Tensor k, Tensor v, Tensor(k_new!)? k_new = None, Tensor(v_new!)? v_new = None,
Tensor? q_v = None, Tensor(out!)? out = None, Tensor? cu_seqlens_q = None, Tensor? cu_seqlens_k = None,
Tensor? cu_seqlens_k_new = None, Tensor? seqused_q = None, Tensor? seqused_k = None, int? max_seqlen_q = 0,
int? max_seqlen_k = 0, Tensor? page_table = None, Tensor? kv_batch_idx = None, Tensor? leftpad_k = None,
Tensor? rotary_cos = None, Tensor? rotary_sin = None, Tensor? q_descale = None, Tensor? k_descale = None,
Tensor? v_descale = None, float softmax_scale = 0.0, bool is_causal = False, int window_size_left = -1,
int window_size_right = -1, float softcap = 0.0, Tensor? startend_row_indices = None, Tensor? block_mask = None,
bool is_rotary_interleaved = True, Tensor? scheduler_metadata = None, int num_splits = 1, bool? pack_gqa = False,
int sm_margin = 0) -> (Tensor(out!), Tensor)"""
FLASHMASK_BWD = """bwd(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse, Tensor? dq = None,
Tensor? dk = None, Tensor? dv = None, Tensor? cu_seqlens_q = None, Tensor? cu_seqlens_k = None,
Tensor? seqused_q = None, Tensor? seqused_k = None, Tensor? startend_row_indices = None, Tensor? block_mask = None,
int? max_seqlen_q = None, int? max_seqlen_k = None, float softmax_scale = 0.0, bool is_causal = False,
int window_size_left = -1, int window_size_right = -1, float softcap = 0.0, bool deterministic = False,
int sm_margin = 0) -> (Tensor, Tensor, Tensor)"""


def range_cells(q_ranges, k_ranges, attn_type_map, num_rows, num_keys):
    """flex_flash_attn_func: 0 full, 1 causal (bottom right), 2 inverse causal (top left), 3 both."""
    cells = torch.zeros(num_rows, num_keys, dtype=torch.bool)
    for (q_start, q_end), (k_start, k_end), kind in zip(q_ranges, k_ranges, attn_type_map, strict=True):
        q, k = torch.arange(q_start, q_end)[:, None], torch.arange(k_start, k_end)[None, :]
        part = torch.ones(q_end - q_start, k_end - k_start, dtype=torch.bool)
        if kind in (1, 3):
            part &= k - k_end <= q - q_end
        if kind in (2, 3):
            part &= k - k_start >= q - q_start
        assert not (cells[q_start:q_end, k_start:k_end] & part).any()
        cells[q_start:q_end, k_start:k_end] |= part
    return cells


def install_magi(monkeypatch, log, *, has_fa4=True):
    """MagiAttention 1.1.1: functional.flex_flash_attn and functional.fa4."""

    def _flex_flash_attn_forward(
        q, k, v, sink, sink_layout, out, lse, q_ranges, k_ranges, attn_type_map, softmax_scale, softcap, out_type,
        disable_fwd_atomic_reduction, deterministic, sm_margin,
    ):  # fmt: skip
        assert q.dim() == 3
        assert q_ranges.dtype == k_ranges.dtype == attn_type_map.dtype == torch.int32
        log.note("forward", atomic=not disable_fwd_atomic_reduction, out_type=out_type)
        tables = (part.tolist() for part in (q_ranges, k_ranges, attn_type_map))
        made, held = attend(q, k, v, range_cells(*tables, len(q), len(k)), softmax_scale)
        return made.to(out_type), SimpleNamespace(lse=held.T.contiguous().float(), max_logits=None)

    def _flex_flash_attn_backward(
        dout, q, k, v, sink, sink_layout, out, lse, dq, dk, dv, dsink, q_ranges, k_ranges, attn_type_map,
        softmax_scale, softcap, dq_type, dk_type, dv_type, disable_bwd_dkv_atomic_reduction, deterministic, sm_margin,
        cat_gqa=False,
    ):  # fmt: skip
        assert lse.shape == q.shape[:2]
        assert lse.is_contiguous()
        log.note("backward", cat_gqa=cat_gqa)
        tables = (part.tolist() for part in (q_ranges, k_ranges, attn_type_map))
        cells = range_cells(*tables, len(q), len(k))
        grads = attend_backward(dout, q, k, v, out, lse.T, cells, softmax_scale)
        types = dq_type, dk_type, dv_type
        return *(grad.to(dtype) for grad, dtype in zip(grads, types, strict=True)), None

    class AttnRanges(list):
        @classmethod
        def from_ranges(cls, ranges):
            return cls(ranges)

    @dataclass
    class FA4AttnArg:
        q_ranges: AttnRanges
        k_ranges: AttnRanges
        attn_type_map: list
        seqlen_q: int = 0
        seqlen_k: int = 0
        headdim: int = 128

        def cells(self):
            assert isinstance(self.q_ranges, AttnRanges)
            assert isinstance(self.k_ranges, AttnRanges)
            return range_cells(self.q_ranges, self.k_ranges, self.attn_type_map, self.seqlen_q, self.seqlen_k)

    def fa4_fwd(q, k, v, sink, attn_arg, softmax_scale=None, softcap=0.0, sink_layout="sh"):
        log.note("forward")
        out, lse = attend(q, k, v, attn_arg.cells(), softmax_scale)
        return out.to(q.dtype), lse.float().contiguous().mT

    def fa4_bwd(
        do, q, k, v, sink, o, lse, attn_arg, softmax_scale=None, softcap=0.0, sink_layout="sh", deterministic=False
    ):
        log.note("backward")
        assert lse.shape == q.shape[:2]
        assert lse.mT.is_contiguous()  # else it copies
        grads = attend_backward(do, q, k, v, o, lse.mT, attn_arg.cells(), softmax_scale)
        return *(grad.to(q.dtype) for grad in grads), None

    held = {
        "magi_attention": {},
        "magi_attention.functional": {},
        "magi_attention.functional.flex_flash_attn": {
            "_flex_flash_attn_forward": _flex_flash_attn_forward,
            "_flex_flash_attn_backward": _flex_flash_attn_backward,
        },
        "magi_attention.functional.fa4": {"fa4_fwd": fa4_fwd, "fa4_bwd": fa4_bwd, "is_fa4_installed": has_fa4},
        "magi_attention.common": {},
        "magi_attention.common.ranges": {"AttnRanges": AttnRanges},
        "magi_attention.meta": {},
        "magi_attention.meta.collection": {},
        "magi_attention.meta.collection.calc_meta": {"FA4AttnArg": FA4AttnArg},
    }
    for name, values in held.items():
        module = ModuleType(name)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)


def column_cells(startend_row_indices, is_causal, num_rows):
    """flashmask_attention: rows [LTS, LTE) and [UTS, UTE) of a key are masked, with the flag those before it too."""
    (values,) = startend_row_indices  # one batch row, one head
    num_keys, width = values.shape[1:]
    end, start = torch.full((num_keys,), num_rows), torch.zeros(num_keys, dtype=torch.int64)
    columns = values[0].long().unbind(-1)
    if is_causal:
        runs = [(columns[0], columns[1] if width == 2 else end)]
        assert width in (1, 2)
    else:
        runs = [(columns[0], end), (start, columns[1])] if width == 2 else [columns[:2], columns[2:]]
        assert width in (2, 4)
    q = torch.arange(num_rows)[:, None]
    cells = torch.ones(num_rows, num_keys, dtype=torch.bool)
    for first, last in runs:
        cells &= (q < first) | (q >= last)
    return cells & (q >= torch.arange(num_keys)) if is_causal else cells


def define_flashmask(library, log):
    """The operators, in a torch.library.Library("flashmask", "FRAGMENT")."""

    def cells_of(q, k, indices, is_causal):
        assert indices.dtype == torch.int32
        assert indices.is_contiguous()
        assert indices.shape[:3] == (len(q), 1, k.shape[1])
        return column_cells(indices[:1], is_causal, q.shape[1])

    def forward(
        q, k, v, k_new=None, v_new=None, q_v=None, out=None, cu_seqlens_q=None, cu_seqlens_k=None,
        cu_seqlens_k_new=None, seqused_q=None, seqused_k=None, max_seqlen_q=0, max_seqlen_k=0, page_table=None,
        kv_batch_idx=None, leftpad_k=None, rotary_cos=None, rotary_sin=None, q_descale=None, k_descale=None,
        v_descale=None, softmax_scale=0.0, is_causal=False, window_size_left=-1, window_size_right=-1, softcap=0.0,
        startend_row_indices=None, *defaults,
    ):  # fmt: skip
        log.note("forward", causal=is_causal, values=startend_row_indices.shape[-1])
        cells = cells_of(q, k, startend_row_indices, is_causal)
        return batched_forward(q, k, v, cells, softmax_scale, -math.inf)

    def backward(
        dout, q, k, v, out, softmax_lse, dq=None, dk=None, dv=None, cu_seqlens_q=None, cu_seqlens_k=None,
        seqused_q=None, seqused_k=None, startend_row_indices=None, block_mask=None, max_seqlen_q=None,
        max_seqlen_k=None, softmax_scale=0.0, is_causal=False, *defaults,
    ):  # fmt: skip
        log.note("backward", causal=is_causal)
        cells = cells_of(q, k, startend_row_indices, is_causal)
        return tuple(batched_backward(dout, q, k, v, out, softmax_lse, cells, softmax_scale))

    library.define(FLASHMASK_FWD)
    library.define(FLASHMASK_BWD)
    library.impl("fwd", forward, "CPU")
    library.impl("bwd", backward, "CPU")
