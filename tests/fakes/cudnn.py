"""cuDNN's attention: TransformerEngine's functions, and the graph API of nvidia-cudnn-frontend."""

import math
import sys
from dataclasses import dataclass, make_dataclass
from enum import Enum, IntEnum
from types import ModuleType, SimpleNamespace

import torch

from fakes.arithmetic import attend, attend_backward, band

PARAMS = """is_training attn_mask_type bias_type window_size_left window_size_right bottom_right_diagonal softmax_type
attn_scale qkv_dtype o_dtype do_dtype dqkv_dtype qkv_layout o_format do_format dqkv_layout batch_size num_attn_heads
num_gqa_groups head_dim_qk head_dim_v max_seqlen_q max_seqlen_kv num_tokens_q num_tokens_kv""".split()


class FusedAttnBackend(IntEnum):
    No_Backend = -1
    F16_arbitrary_seqlen = 1
    FP8 = 2


def over_sequences(q, k, starts_q, starts_k, lengths_q, lengths_k):
    """(rows, keys) of sequences of packed tokens."""
    for start_q, start_k, num_q, num_k in zip(starts_q, starts_k, lengths_q, lengths_k, strict=True):
        assert start_q + num_q <= len(q)
        assert start_k + num_k <= len(k)
        yield slice(start_q, start_q + num_q), slice(start_k, start_k + num_k)


def te_cells(mask_type, window_size, bottom_right):
    """fused_attn_fwd: keys within the window around a diagonal, and up to it for causal masks."""
    left, right = (None if bound < 0 else bound for bound in window_size)
    kind = mask_type.removeprefix("padding").removeprefix("_")
    if "causal" in kind:
        assert right == 0
        assert bottom_right == kind.endswith("bottom_right")
    return lambda num_q, num_k: band(num_q, num_k, left, right, bottom_right=bottom_right)


def install_transformer_engine(monkeypatch, log, refuse=None):
    """refuse: the reason why there is no backend, or None."""

    def ranges(q, k, named, max_q, max_k, cu_q, cu_k):
        padding, thd = named["attn_mask_type"].startswith("padding"), named["qkv_layout"] == "thd_thd_thd"
        assert padding == thd
        lengths_q, lengths_k = (cu[1:] - cu[:-1] for cu in (cu_q, cu_k))
        assert max_q >= lengths_q.max()
        assert max_k >= lengths_k.max()
        assert max_k >= max_q or named["window_size"] == (-1, -1)
        if not thd:
            assert named["qkv_layout"] == "bshd_bshd_bshd"
            assert (max_q, max_k) == (q.shape[1], k.shape[1])  # cuDNN reads as many as it is told
            assert (cu_q == torch.arange(len(q) + 1) * q.shape[1]).all()
            assert (cu_k == torch.arange(len(k) + 1) * k.shape[1]).all()
            return None
        padded = named["cu_seqlens_q_padded"], named["cu_seqlens_kv_padded"]
        assert all(part.dtype == torch.int32 for part in (cu_q, cu_k, *padded))
        assert all(len(part) == len(cu_q) for part in padded)
        starts = (part[:-1].tolist() for part in padded)
        return list(over_sequences(q, k, *starts, lengths_q.tolist(), lengths_k.tolist()))

    def fused_attn_fwd(
        is_training, max_seqlen_q, max_seqlen_kv, cu_seqlens_q, cu_seqlens_kv, q, k, v, fake_dtype,
        fused_attention_backend, *, attn_mask_type, window_size, bottom_right_diagonal, attn_scale, qkv_layout,
        o_format, cu_seqlens_q_padded=None, cu_seqlens_kv_padded=None,
    ):  # fmt: skip
        named = dict(locals())
        assert fake_dtype == torch.bfloat16
        assert fused_attention_backend == FusedAttnBackend.F16_arbitrary_seqlen
        assert o_format == qkv_layout.split("_")[0]
        log.note("forward", packed=o_format == "thd", mask=attn_mask_type, window=window_size, training=is_training)
        pairs = ranges(q, k, named, max_seqlen_q, max_seqlen_kv, cu_seqlens_q, cu_seqlens_kv)
        cells = te_cells(attn_mask_type, window_size, bottom_right_diagonal)
        if pairs is None:
            parts = [attend(*row, cells(len(row[0]), len(row[1])), attn_scale) for row in zip(q, k, v, strict=True)]
            out, stats = torch.stack([part[0] for part in parts]), torch.stack([part[1] for part in parts])
            return out.to(q.dtype), [stats.float().unsqueeze(-1), torch.empty(2)]
        out, stats = torch.zeros_like(q), torch.full((*q.shape[:2], 1), math.nan)
        for rows, keys in pairs:
            part, lse = attend(q[rows], k[keys], v[keys], cells(q[rows].shape[0], k[keys].shape[0]), attn_scale)
            out[rows], stats[rows, :, 0] = part.to(q.dtype), lse.T.float()
        return out, [stats, torch.empty(2)]

    def fused_attn_bwd(
        max_seqlen_q, max_seqlen_kv, cu_seqlens_q, cu_seqlens_kv, q, k, v, o, d_o, fake_dtype, aux_ctx_tensors,
        fused_attention_backend, *, attn_mask_type, window_size, bottom_right_diagonal, attn_scale, qkv_layout,
        o_format, do_format, dqkv_layout, cu_seqlens_q_padded=None, cu_seqlens_kv_padded=None,
    ):  # fmt: skip
        named = dict(locals())
        assert fake_dtype == torch.bfloat16
        assert (do_format, dqkv_layout) == (o_format, qkv_layout)
        log.note("backward", packed=o_format == "thd")
        stats, rng_state = aux_ctx_tensors
        assert rng_state.dtype == torch.int64
        assert stats.is_contiguous()
        pairs = ranges(q, k, named, max_seqlen_q, max_seqlen_kv, cu_seqlens_q, cu_seqlens_kv)
        cells = te_cells(attn_mask_type, window_size, bottom_right_diagonal)
        grads = [torch.zeros_like(part) for part in (q, k, v)]
        if pairs is None:
            assert stats.shape == (len(q), q.shape[2], q.shape[1], 1)
            for row in range(len(q)):
                made = attend_backward(
                    d_o[row], q[row], k[row], v[row], o[row], stats[row, ..., 0], cells(q.shape[1], k.shape[1]),
                    attn_scale,
                )  # fmt: skip
                for grad, part in zip(grads, made, strict=True):
                    grad[row] = part.to(grad.dtype)
            return *grads, None
        assert stats.shape == (*q.shape[:2], 1)
        for rows, keys in pairs:
            lse = stats[rows, :, 0].T
            assert not lse.isnan().any()
            made = attend_backward(
                d_o[rows], q[rows], k[keys], v[keys], o[rows], lse, cells(q[rows].shape[0], k[keys].shape[0]),
                attn_scale,
            )  # fmt: skip
            for grad, where, part in zip(grads, (rows, keys, keys), made, strict=True):
                grad[where] = part.to(grad.dtype)
        return *grads, None

    class Names:
        """A table of enumerators whose names are checked."""

        def __init__(self, *names):
            self._names = names

        def __getitem__(self, name):
            assert name in self._names, name
            return name

    fused_attn = ModuleType("transformer_engine.pytorch.cpp_extensions.fused_attn")
    fused_attn.fused_attn_fwd, fused_attn.fused_attn_bwd = fused_attn_fwd, fused_attn_bwd
    fused_attn.FusedAttnBackend = FusedAttnBackend
    masks = "no_mask", "padding", "causal", "padding_causal", "causal_bottom_right", "padding_causal_bottom_right"
    fused_attn.AttnMaskType = Names(*masks)
    fused_attn.AttnBiasType, fused_attn.SoftmaxType = Names("no_bias"), Names("vanilla")
    fused_attn.QKVLayout, fused_attn.QKVFormat = Names("thd_thd_thd", "bshd_bshd_bshd"), Names("thd", "bshd")
    fields = [(name, object) for name in PARAMS]
    params = make_dataclass("FusedAttentionParams", fields, kw_only=True)

    def get_fused_attn_backend(asked):
        assert asked.num_attn_heads % asked.num_gqa_groups == 0
        log.note("ask", tokens=(asked.num_tokens_q, asked.num_tokens_kv), batch=asked.batch_size)
        return (FusedAttnBackend.F16_arbitrary_seqlen, "") if refuse is None else (FusedAttnBackend.No_Backend, refuse)

    utils = "transformer_engine.pytorch.attention.dot_product_attention.utils"
    held = {
        "transformer_engine.pytorch.cpp_extensions": {"fused_attn": fused_attn},
        "transformer_engine.pytorch.constants": {"TE_DType": {torch.bfloat16: "kBFloat16", torch.float16: "kFloat16"}},
        utils: {"FusedAttentionParams": params},
        "transformer_engine_torch": {"get_fused_attn_backend": get_fused_attn_backend},
    }
    for name in (*held, "transformer_engine.pytorch.attention.dot_product_attention"):
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            module = sys.modules.get(".".join(parts[:length])) or ModuleType(".".join(parts[:length]))
            monkeypatch.setitem(sys.modules, ".".join(parts[:length]), module)
            if length > 1:
                setattr(sys.modules[".".join(parts[: length - 1])], parts[length - 1], module)
        vars(sys.modules[name]).update(held.get(name, {}))
    monkeypatch.setitem(sys.modules, fused_attn.__name__, fused_attn)


class NotSupportedError(RuntimeError):
    pass


@dataclass
class GraphTensor:
    """A tensor of a graph: uid, size, strides, type, ragged offset."""

    uid: int | None = None
    dim: tuple | None = None
    stride: tuple | None = None
    data_type: object = None
    offset: object = None
    is_output: bool = False

    def set_uid(self, uid):
        self.uid = uid
        return self

    def set_output(self, value):
        self.is_output = value
        return self

    def set_dim(self, dim):
        self.dim = dim
        return self

    def set_stride(self, stride):
        self.stride = stride
        return self

    def set_data_type(self, data_type):
        self.data_type = data_type
        return self

    def set_ragged_offset(self, offset):
        self.offset = offset
        return self

    def entry(self, memory, pack, batch, length):
        """One batch entry in memory: a view (heads, length, last)."""
        first = batch * self.stride[0] if self.offset is None else int(pack[self.offset.uid].flatten()[batch])
        size = (self.dim[1], length, self.dim[3])
        return memory.view(-1).as_strided(size, self.stride[1:], memory.storage_offset() + first)


class Graph:
    """cudnn.pygraph with one sdpa or sdpa_backward node."""

    def __init__(self, cudnn, log, io_data_type, intermediate_data_type, compute_data_type, handle):
        assert io_data_type == cudnn.data_type.BFLOAT16
        assert intermediate_data_type == compute_data_type == cudnn.data_type.FLOAT
        self._cudnn, self._log, self._steps = cudnn, log, []

    def tensor(self, *, uid, dim, stride, data_type):
        return GraphTensor(uid=uid, dim=dim, stride=stride, data_type=data_type)

    def sdpa(
        self, *, name, q, k, v, generate_stats, attn_scale, diagonal_alignment, diagonal_band_left_bound,
        diagonal_band_right_bound, use_padding_mask=False, seq_len_q=None, seq_len_kv=None,
    ):  # fmt: skip
        assert generate_stats
        self._inputs = {"q": q, "k": k, "v": v}
        self._mask(diagonal_alignment, diagonal_band_left_bound, diagonal_band_right_bound)
        self._lengths(use_padding_mask, seq_len_q, seq_len_kv)
        self._scale, self._outputs, self._backward = attn_scale, [GraphTensor(), GraphTensor()], False
        return self._outputs

    def sdpa_backward(
        self, *, name, q, k, v, o, dO, stats, attn_scale, diagonal_alignment, diagonal_band_left_bound,
        diagonal_band_right_bound, use_padding_mask=False, seq_len_q=None, seq_len_kv=None, max_total_seq_len_q=None,
        max_total_seq_len_kv=None,
    ):  # fmt: skip
        self._inputs = {"q": q, "k": k, "v": v, "o": o, "dO": dO, "stats": stats}
        self._mask(diagonal_alignment, diagonal_band_left_bound, diagonal_band_right_bound)
        self._lengths(use_padding_mask, seq_len_q, seq_len_kv)
        self._scale, self._outputs, self._backward = attn_scale, [GraphTensor() for _ in range(3)], True
        assert (max_total_seq_len_q is None) == (max_total_seq_len_kv is None) == (not use_padding_mask)
        return self._outputs

    def _mask(self, alignment, left_bound, right_bound):
        assert left_bound is None or left_bound > 0
        self._bounds = None if left_bound is None else left_bound - 1, right_bound
        self._bottom_right = alignment == self._cudnn.diagonal_alignment.BOTTOM_RIGHT

    def _lengths(self, use_padding_mask, seq_len_q, seq_len_kv):
        assert use_padding_mask == (seq_len_q is not None) == (seq_len_kv is not None)
        self._of_entries = (seq_len_q, seq_len_kv) if use_padding_mask else None

    def validate(self):
        for tensor in (*self._inputs.values(), *self._outputs):
            assert tensor.uid is not None
            assert len(tensor.dim) == len(tensor.stride) == 4
            assert (tensor.offset is not None) == (self._of_entries is not None)
        if self._of_entries is None and self._inputs["q"].dim[2] > self._inputs["k"].dim[2]:
            # sdpa_support_surface.h: only with a padding mask
            assert not self._bottom_right or self._bounds == (None, None)
            assert self._bounds[0] is None
        self._steps.append("validate")

    def build_operation_graph(self):
        self._steps.append("build_operation_graph")

    def create_execution_plans(self, modes):
        assert modes == [self._cudnn.heur_mode.A, self._cudnn.heur_mode.FALLBACK]
        self._steps.append("create_execution_plans")

    def check_support(self):
        if self._cudnn.refuse:
            raise NotSupportedError(self._cudnn.refuse)
        self._steps.append("check_support")

    def build_plans(self):
        assert self._steps == ["validate", "build_operation_graph", "create_execution_plans", "check_support"]
        self._steps.append("build_plans")

    def get_workspace_size(self):
        return 0

    def execute(self, pack, workspace, handle):
        assert self._steps[-1] == "build_plans"
        assert workspace.dtype == torch.uint8
        assert handle == "handle"
        self._log.note("backward" if self._backward else "forward", packed=self._of_entries is not None)
        for batch in range(self._inputs["q"].dim[0]):
            lengths = self._inputs["q"].dim[2], self._inputs["k"].dim[2]
            if self._of_entries is not None:
                for tensor in self._of_entries:
                    assert pack[tensor.uid].dtype == torch.int32
                held = tuple(int(pack[tensor.uid].flatten()[batch]) for tensor in self._of_entries)
                assert held[0] <= lengths[0]
                assert held[1] <= lengths[1]
                lengths = held
            cells = band(*lengths, *self._bounds, bottom_right=self._bottom_right)
            self._execute(pack, batch, lengths, cells)

    def _execute(self, pack, batch, lengths, cells):
        def view(tensor, of_keys):
            assert pack[tensor.uid].is_contiguous()
            return tensor.entry(pack[tensor.uid], pack, batch, lengths[of_keys])

        held = {name: view(tensor, name in ("k", "v")) for name, tensor in self._inputs.items()}
        tokens = {name: part.transpose(0, 1) for name, part in held.items()}
        q, k, v = tokens["q"], tokens["k"], tokens["v"]
        if not self._backward:
            out, lse = attend(q, k, v, cells, self._scale)
            view(self._outputs[0], False).copy_(out.transpose(0, 1))
            assert not lse.isinf().any()
            view(self._outputs[1], False).copy_(lse.unsqueeze(-1))
            return
        stats = held["stats"][..., 0]
        assert not stats.isinf().any()
        made = attend_backward(tokens["dO"], q, k, v, tokens["o"], stats, cells, self._scale)
        for tensor, part, of_keys in zip(self._outputs, made, (False, True, True), strict=True):
            view(tensor, of_keys).copy_(part.transpose(0, 1))


def install_frontend(monkeypatch, log, refuse=None):
    """refuse: the reason why cuDNN has no plan, or None."""
    cudnn = ModuleType("cudnn")
    cudnn.refuse = refuse
    cudnn.cudnnGraphNotSupportedError = NotSupportedError
    cudnn.data_type = Enum("data_type", "BFLOAT16 HALF FLOAT INT32 INT64")
    cudnn.diagonal_alignment = Enum("diagonal_alignment", "TOP_LEFT BOTTOM_RIGHT")
    cudnn.heur_mode = Enum("heur_mode", "A FALLBACK")
    cudnn.create_handle = lambda: "handle"
    cudnn.set_stream = lambda *, handle, stream: None
    cudnn.backend_version = lambda: 91900
    cudnn.pygraph = lambda **named: Graph(cudnn, log, **named)
    monkeypatch.setitem(sys.modules, "cudnn", cudnn)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
