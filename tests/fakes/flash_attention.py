"""FlashAttention 2 (flash-attn 2.8, and torch's operators) and FlashAttention 3 (two packages, one set of operators)."""

import math
import sys
from types import ModuleType

import torch

from fakes.arithmetic import band, batched_backward, batched_forward, packed_backward, packed_forward, sequences

FA3_FWD = """fwd(Tensor q, Tensor k, Tensor v, Tensor(k_new!)? k_new = None, Tensor(v_new!)? v_new = None,
Tensor? q_v = None, Tensor(out!)? out = None, Tensor? cu_seqlens_q = None, Tensor? cu_seqlens_k = None,
Tensor? cu_seqlens_k_new = None, Tensor? seqused_q = None, Tensor? seqused_k = None, int? max_seqlen_q = None,
int? max_seqlen_k = None, Tensor? page_table = None, Tensor? kv_batch_idx = None, Tensor? leftpad_k = None,
Tensor? rotary_cos = None, Tensor? rotary_sin = None, Tensor? seqlens_rotary = None, Tensor? q_descale = None,
Tensor? k_descale = None, Tensor? v_descale = None, float? softmax_scale = None, bool is_causal = False,
int window_size_left = -1, int window_size_right = -1, int attention_chunk = 0, float softcap = 0.0,
bool is_rotary_interleaved = False, Tensor? scheduler_metadata = None, int num_splits = 0, bool? pack_gqa = None,
int sm_margin = 0) -> (Tensor(out!), Tensor, Tensor, Tensor)"""
FA3_BWD = """bwd(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse, Tensor(dq!)? dq = None,
Tensor(dk!)? dk = None, Tensor(dv!)? dv = None, Tensor? cu_seqlens_q = None, Tensor? cu_seqlens_k = None,
Tensor? seqused_q = None, Tensor? seqused_k = None, int? max_seqlen_q = None, int? max_seqlen_k = None,
float? softmax_scale = None, bool is_causal = False, int window_size_left = -1, int window_size_right = -1,
float softcap = 0.0, bool deterministic = False, int sm_margin = 0) -> """
FA3_BWD_RETURNS = {
    "flash-attn-3": "(Tensor, Tensor, Tensor, Tensor, Tensor)",
    "xformers": "(Tensor(dq!), Tensor(dk!), Tensor(dv!), Tensor, Tensor, Tensor, Tensor, Tensor)",
}


def fa2_cells(causal, left, right, max_seqlen_k):
    """How csrc/flash_attn/flash_api.cpp reads its flag and window."""
    left, right = (-1 if bound >= max_seqlen_k else bound for bound in (left, right))
    right = 0 if causal else right
    if left < 0 and right >= 0:
        left = max_seqlen_k
    if left >= 0 and right < 0:
        right = max_seqlen_k
    bounds = (None, None) if left < 0 and right < 0 else (left, right)
    if causal and left >= max_seqlen_k:
        bounds = (None, 0)
    return lambda num_rows, num_keys: band(num_rows, num_keys, *bounds)


def check_fa2_sequences(pairs, max_seqlen_q):
    """A longest query of 1 makes the forward reshape for decoding, which wants one query in each sequence."""
    assert max_seqlen_q > 1 or all(rows.stop - rows.start == 1 for rows, _ in pairs)


def fa2_forward(log, q, k, v, cu_q, cu_k, max_q, max_k, scale, causal, left, right):
    """out and lse; +inf says that a row has no key."""
    log.note("forward", packed=cu_q is not None, causal=causal, window=(left, right))
    assert all(part.stride(-1) == 1 for part in (q, k, v))
    if cu_q is None:
        assert q.dim() == 4
        cells = fa2_cells(causal, left, right, k.shape[1])(q.shape[1], k.shape[1])
        return batched_forward(q, k, v, cells, scale, math.inf)
    assert q.dim() == 3
    pairs = sequences(cu_q, cu_k, q, k, max_q, max_k)
    check_fa2_sequences(pairs, max_q)
    return packed_forward(q, k, v, pairs, fa2_cells(causal, left, right, max_k), scale, math.inf)


def fa2_backward(log, dout, q, k, v, out, lse, cu_q, cu_k, max_q, max_k, scale, causal, left, right):
    """(dq, dk, dv)."""
    log.note("backward", packed=cu_q is not None, causal=causal, window=(left, right))
    assert lse.dtype == torch.float32
    assert lse.is_contiguous()
    if cu_q is None:
        assert lse.shape == (len(q), q.shape[2], q.shape[1])
        cells = fa2_cells(causal, left, right, k.shape[1])(q.shape[1], k.shape[1])
        return batched_backward(dout, q, k, v, out, lse, cells, scale)
    assert lse.shape == (q.shape[1], len(q))
    pairs = sequences(cu_q, cu_k, q, k, max_q, max_k)
    return packed_backward(dout, q, k, v, out, lse, pairs, fa2_cells(causal, left, right, max_k), scale)


def install_flash_attn(monkeypatch, log):
    """Modules flash_attn and flash_attn.flash_attn_interface."""

    def forward(
        q, k, v, dropout_p, softmax_scale, causal, window_size_left, window_size_right, softcap, alibi_slopes,
        return_softmax,
    ):  # fmt: skip
        assert (dropout_p, softcap, alibi_slopes, return_softmax) == (0, 0, None, False)
        window = window_size_left, window_size_right
        out, lse = fa2_forward(log, q, k, v, None, None, None, None, softmax_scale, causal, *window)
        return out, lse, None, None

    def varlen_forward(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal,
        window_size_left=-1, window_size_right=-1, softcap=0.0, alibi_slopes=None, return_softmax=False,
        block_table=None, leftpad_k=None, seqused_k=None, zero_tensors=False,
    ):  # fmt: skip
        assert (dropout_p, softcap, alibi_slopes, return_softmax) == (0, 0, None, False)
        lengths = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
        window = window_size_left, window_size_right
        out, lse = fa2_forward(log, q, k, v, *lengths, softmax_scale, causal, *window)
        return out, lse, None, None

    def backward(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, dropout_p, softmax_scale, causal, window_size_left,
        window_size_right, softcap, alibi_slopes, deterministic, rng_state=None,
    ):  # fmt: skip
        window = window_size_left, window_size_right
        grads = fa2_backward(
            log, dout, q, k, v, out, softmax_lse, None, None, None, None, softmax_scale, causal, *window
        )
        for into, grad in zip((dq, dk, dv), grads, strict=True):
            into.copy_(grad)

    def varlen_backward(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
        dropout_p, softmax_scale, causal, window_size_left, window_size_right, softcap, alibi_slopes, deterministic,
        rng_state=None, zero_tensors=False,
    ):  # fmt: skip
        lengths = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
        window = window_size_left, window_size_right
        grads = fa2_backward(log, dout, q, k, v, out, softmax_lse, *lengths, softmax_scale, causal, *window)
        for into, grad in zip((dq, dk, dv), grads, strict=True):
            into.copy_(grad)

    package, interface = ModuleType("flash_attn"), ModuleType("flash_attn.flash_attn_interface")
    package.flash_attn_interface = interface
    interface._flash_attn_forward, interface._flash_attn_backward = forward, backward
    interface._flash_attn_varlen_forward, interface._flash_attn_varlen_backward = varlen_forward, varlen_backward
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    monkeypatch.setitem(sys.modules, "flash_attn.flash_attn_interface", interface)


def install_aten(library, log):
    """CPU kernels of torch's own operators, in a torch.library.Library("aten", "IMPL")."""

    def forward(
        query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, return_debug_mask, *, scale=None,
        window_size_left=None, window_size_right=None, **unused,
    ):  # fmt: skip
        assert (dropout_p, return_debug_mask) == (0, False)
        lengths, window = (cum_seq_q, cum_seq_k, max_q, max_k), (window_size_left, window_size_right)
        out, lse = fa2_forward(log, query, key, value, *lengths, scale, is_causal, *window)
        return out, lse, torch.empty(2, dtype=torch.uint64), torch.empty(0), torch.empty(0)

    def backward(
        grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal,
        rng_state, unused, *, scale=None, window_size_left=None, window_size_right=None,
    ):  # fmt: skip
        assert dropout_p == 0
        lengths, window = (cum_seq_q, cum_seq_k, max_q, max_k), (window_size_left, window_size_right)
        tensors = grad_out, query, key, value, out, logsumexp
        return tuple(fa2_backward(log, *tensors, *lengths, scale, is_causal, *window))

    library.impl("_flash_attention_forward", forward, "CPU")
    library.impl("_flash_attention_backward", backward, "CPU")


def fa3_cells(is_causal, left, right):
    """A negative bound is none; the causal flag bounds the right at 0."""
    bounds = (None if left < 0 else left), (0 if is_causal else None if right < 0 else right)
    return lambda num_rows, num_keys: band(num_rows, num_keys, *bounds)


def define_fa3(library, provider, log):
    """The operators of one package, with its schema, in a torch.library.Library("flash_attn_3", "FRAGMENT")."""

    def forward(
        q, k, v, k_new=None, v_new=None, q_v=None, out=None, cu_seqlens_q=None, cu_seqlens_k=None,
        cu_seqlens_k_new=None, seqused_q=None, seqused_k=None, max_seqlen_q=None, max_seqlen_k=None, page_table=None,
        kv_batch_idx=None, leftpad_k=None, rotary_cos=None, rotary_sin=None, seqlens_rotary=None, q_descale=None,
        k_descale=None, v_descale=None, softmax_scale=None, is_causal=False, window_size_left=-1,
        window_size_right=-1, attention_chunk=0, softcap=0.0, is_rotary_interleaved=False, scheduler_metadata=None,
        num_splits=0, pack_gqa=None, sm_margin=0,
    ):  # fmt: skip
        assert num_splits == 1
        log.note("forward", packed=cu_seqlens_q is not None, causal=is_causal)
        cells = fa3_cells(is_causal, window_size_left, window_size_right)
        if cu_seqlens_q is None:
            whole = cells(q.shape[1], k.shape[1])
            made = batched_forward(q, k, v, whole, softmax_scale, -math.inf)
        else:
            pairs = sequences(cu_seqlens_q, cu_seqlens_k, q, k, max_seqlen_q, max_seqlen_k)
            made = packed_forward(q, k, v, pairs, cells, softmax_scale, -math.inf)
        return *made, torch.empty(0), torch.empty(0)

    def backward(
        dout, q, k, v, out, softmax_lse, dq=None, dk=None, dv=None, cu_seqlens_q=None, cu_seqlens_k=None,
        seqused_q=None, seqused_k=None, max_seqlen_q=None, max_seqlen_k=None, softmax_scale=None, is_causal=False,
        window_size_left=-1, window_size_right=-1, softcap=0.0, deterministic=False, sm_margin=0,
    ):  # fmt: skip
        log.note("backward", packed=cu_seqlens_q is not None, causal=is_causal)
        assert softmax_lse.is_contiguous()
        cells = fa3_cells(is_causal, window_size_left, window_size_right)
        tensors = dout, q, k, v, out, softmax_lse
        if cu_seqlens_q is None:
            grads = batched_backward(*tensors, cells(q.shape[1], k.shape[1]), softmax_scale)
        else:
            pairs = sequences(cu_seqlens_q, cu_seqlens_k, q, k, max_seqlen_q, max_seqlen_k)
            grads = packed_backward(*tensors, pairs, cells, softmax_scale)
        for into, grad in zip((dq, dk, dv), grads, strict=True):
            into.copy_(grad)
        rest = [torch.empty(0) for _ in range(5)]
        return (dq, dk, dv, *rest) if provider == "xformers" else tuple(rest)

    library.define(FA3_FWD)
    library.define(FA3_BWD + FA3_BWD_RETURNS[provider])
    library.impl("fwd", forward, "CPU")
    library.impl("bwd", backward, "CPU")
