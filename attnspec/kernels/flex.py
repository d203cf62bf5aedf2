"""flex: torch's FlexAttention, compiled, with a BlockMask made straight from the slices.

The mask is arithmetic where the whole mask is one band (full, causal, sliding windows), else one or a few intervals
per query read from 1-D tensors, so that other packs of one shape run the same code. On the CPU, where compiling takes
longer than anything else, it is always intervals: masks of one shape with as many intervals share one graph.

Index tables have a fixed width while they are small, and a power of two above: FlexAttention compiles once more for
each width. Their memory grows with the non-empty blocks: 14 MiB for documents of 256K tokens, 0.5 GiB for plain
causal at 1M; over 8 GiB the mask is refused.

Compiled with fullgraph=True and dynamic=False, so that nothing runs uncompiled in silence. Backends TRITON (the
default on CUDA) and FLASH (flash-attn-4); on the CPU torch has a C++ template, forward only. torch returns the log-
sum-exp only on request and scales it in a kernel of its own, so `lse` is off unless asked for.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import math
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from attnspec.errors import UnsupportedError
from attnspec.kernels import _flash_attn_cute
from attnspec.lower.block_mask import BlockLists, BlockMask, block_mask, num_table_entries
from attnspec.lower.intervals import Band, IntervalMask, band, interval_mask
from attnspec.params import param
from attnspec.support import Device, ExpectedKernels, Forward, KernelNames, Problem, Provider, Support
from attnspec.support.kernel_names import FLASH_ATTENTION_4

if TYPE_CHECKING:
    from torch import Tensor

PROVIDERS = (
    Provider(name="torch", distribution="torch", module="torch", requires=">=2.11", fix="pip install 'torch>=2.11'"),
)
BACKEND_PACKAGES = {"FLASH": _flash_attn_cute.PROVIDER}
SUPPORT = Support(
    devices=("cpu", "cuda"),
    dtypes=("bfloat16", "float16", "float32"),
    max_head_dim=512,
    capability_min=(7, 0),
    backward={"cpu": False, "cuda": True},
    backward_reason={
        "cpu": "FlexAttention does not support backward on CPU. Please set the input requires_grad to False or use "
        "another device."
    },
)
ENVIRONMENT = _flash_attn_cute.ENVIRONMENT
COMPILES_AHEAD = "each_length"
"""Inductor and Triton keep what they compile on disk, one graph for each shape (`attnspec.worker.compile_ahead`)."""
MaskMod = Callable[["Tensor", "Tensor", "Tensor", "Tensor"], "Tensor"]
Inputs = tuple["Tensor", "Tensor", "Tensor"]
_FIXED_WIDTH_ENTRIES = 2**25
_MAX_ENTRIES = 2**31
_RECOMPILE_LIMIT = 4096
_WHOLE_BLOCK = 1 << 30
"""The block size by which torch knows that there is no mask."""
_CUDA_KERNELS = {
    "TRITON": KernelNames(fwd="triton_tem_(?!.*backward)", bwd="triton_tem_.*flex_attention_backward"),
    "FLASH": FLASH_ATTENTION_4,
}
"""Inductor names kernels made from its templates triton_tem_, those that it writes itself otherwise (triton_poi_)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Parameters of the kernel."""

    backend: Literal["TRITON", "FLASH"] | None = param(default=None, doc="Kernel template; TRITON if not given (CUDA).")
    block_q: int | None = param(
        default=None, ge=16, doc="Queries per block of the BlockMask; 128, or 256 for FLASH on Blackwell."
    )
    block_k: int | None = param(default=None, ge=16, doc="Keys per block of the BlockMask; 128 if not given.")
    lse: bool = param(default=False, doc="Also return the log-sum-exp.")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lowered:
    """The blocks and the arithmetic mask: a band, or intervals. Nothing where every query sees every key."""

    blocks: BlockMask | None = None
    mask: Band | IntervalMask | None = None


def lower(problem: Problem, params: Params, provider: str | None) -> Lowered:
    """Blocks and arithmetic mask; raises UnsupportedError for what torch refuses on this device."""
    _check_backend(problem, params)
    on_cpu = problem.device.type == "cpu"
    held = None if on_cpu else band(problem.slices)
    if held == Band():
        return Lowered()
    capability = problem.device.capability
    maybe_blackwell = capability is None or capability[0] in (10, 11)
    block_q = params.block_q or (256 if params.backend == "FLASH" and maybe_blackwell else 128)
    block_k = params.block_k or 128
    entries = num_table_entries(problem.slices, block_q, block_k)
    if entries > _MAX_ENTRIES:
        raise UnsupportedError(
            "seqlen",
            f"a BlockMask of {block_q} x {block_k} blocks would need up to {entries * 4 / 2**30:.0f} GiB of indices; "
            "at most 8 GiB, so choose a larger block_q and block_k",
        )
    return Lowered(
        blocks=block_mask(problem.slices, block_q, block_k),
        mask=held or interval_mask(problem.slices),
    )


def _check_backend(problem: Problem, params: Params) -> None:
    shape, device = problem.shape, problem.device
    if device.type == "cpu":
        if params.backend is not None:
            raise UnsupportedError("backend", f"FlexAttention's {params.backend} backend runs on CUDA only")
        if params.lse:
            raise UnsupportedError(
                "backend", "torch.compile on CPU only supports inference and `return_lse` is not supported yet."
            )
        return
    if shape.head_dim < 16:
        raise UnsupportedError(
            "head_dim", f"FlexAttention wants an embedding dimension of at least 16, got {shape.head_dim}"
        )
    if params.backend == "FLASH":
        if shape.dtype == "float32":
            raise UnsupportedError("dtype", "FlexAttention's FLASH backend takes bfloat16 and float16, not float32")
        if device.capability is not None and device.capability < (9, 0):
            raise UnsupportedError("device", "FlexAttention's FLASH backend needs compute capability 9.0 or higher")


def bind(lowered: Lowered, problem: Problem, params: Params, provider: str, device: Device) -> Flex:
    """The compiled function with its BlockMask on the device; raises UnsupportedError without a compiler or Triton."""
    if device.type == "cpu":
        _check_cpp_compiler()
        return Flex(lowered, problem, params.lse, None, device.type)
    if shutil.which(os.environ.get("CC", "")) is None and not any(map(shutil.which, ("gcc", "clang", "cc"))):
        raise UnsupportedError("no_compiler", "Triton needs a C compiler: no CC, gcc, clang or cc found")
    if importlib.util.find_spec("triton") is None:
        raise UnsupportedError("missing_package", "FlexAttention on CUDA needs triton; pip install triton")
    return Flex(lowered, problem, params.lse, params.backend or "TRITON", device.type)


def _check_cpp_compiler() -> None:
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        raise UnsupportedError(
            "no_compiler", f"torch.compile on the CPU needs a C++ compiler: {error}; install g++"
        ) from error


class Flex:
    """FlexAttention over one BlockMask. Tensors are (B, heads, length, D) views of canonical memory."""

    explicit_backward = False
    frees_graph = False

    def __init__(self, lowered: Lowered, problem: Problem, lse: bool, backend: str | None, device: str) -> None:
        self.backend = backend
        self.expected_kernels: ExpectedKernels = "" if backend is None else _CUDA_KERNELS[backend]
        self._block_mask = _torch_block_mask(lowered.blocks, lowered.mask, device)
        self._needs_backward = problem.needs_backward
        self._attend = _compiled(backend, lse)
        self._lse_scale = _lse_scale(backend)

    def load(self, q_BTND: Tensor, k_BSGD: Tensor, v_BSGD: Tensor) -> Inputs:
        """Views as leaves of a graph."""
        q, k, v = (part.transpose(1, 2).detach() for part in (q_BTND, k_BSGD, v_BSGD))
        for part in (q, k, v):
            part.requires_grad_(self._needs_backward)
        return q, k, v

    def load_dout(self, dout_BTND: Tensor) -> Tensor:
        """A view."""
        # Contiguous with heads outside: the compiled backward was traced for that, and copies anything else each time.
        return dout_BTND.transpose(1, 2).contiguous()

    def load_forward(self, out_BTND: Tensor, lse_BNT: Tensor) -> Forward:
        """Never called: the backward is autograd's."""
        raise AssertionError("flex has no explicit backward")

    def forward(self, inputs: Inputs) -> Forward:
        """One forward; the graph hangs on out. The first call compiles."""
        import torch

        with torch.set_grad_enabled(self._needs_backward):
            out, lse = self._attend(*inputs, self._block_mask)
        return Forward(out=out, lse=lse)

    def backward(self, inputs: Inputs, forward: Forward, dout: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(dq, dk, dv) by autograd, the graph kept. The first call compiles."""
        import torch

        dq, dk, dv = torch.autograd.grad(forward.out, inputs, dout, retain_graph=True)
        return dq, dk, dv

    def canonical_out(self, forward: Forward) -> tuple[Tensor, Tensor | None]:
        """out, and lse where it was asked for."""
        lse = forward.lse
        out = forward.out.detach().transpose(1, 2).contiguous()
        return out, None if lse is None else lse.detach().float() * self._lse_scale

    def canonical_grads(self, grads: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Contiguous."""
        dq, dk, dv = (part.transpose(1, 2).contiguous() for part in grads)
        return dq, dk, dv


@functools.cache
def _compiled(backend: str | None, lse: bool) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """The compiled call, one per variant and process; every shape adds a graph to it."""
    import torch
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention

    # The default limit of 8 graphs is shared by all compiled functions of the process.
    dynamo: Any = torch._dynamo.config
    dynamo.recompile_limit = max(dynamo.recompile_limit, _RECOMPILE_LIMIT)
    dynamo.accumulated_recompile_limit = max(dynamo.accumulated_recompile_limit, _RECOMPILE_LIMIT)
    # A timed backward runs many times over one graph, so it must not reuse the memory of what the forward saved.
    functorch: Any = importlib.import_module("torch._functorch.config")
    functorch.donated_buffer = False
    options: Any = None if backend is None else {"BACKEND": backend}

    def attend(q: Tensor, k: Tensor, v: Tensor, block_mask: Any) -> tuple[Tensor, Tensor | None]:
        if not lse:
            out: Any = flex_attention(q, k, v, block_mask=block_mask, enable_gqa=True, kernel_options=options)
            return out, None
        made: Any = flex_attention(
            q, k, v, block_mask=block_mask, enable_gqa=True, kernel_options=options, return_aux=AuxRequest(lse=True)
        )
        return made[0], made[1].lse

    compiled: Callable[..., tuple[Tensor, Tensor | None]] = torch.compile(attend, fullgraph=True, dynamic=False)
    return compiled


def _lse_scale(backend: str | None) -> float:
    """What makes torch's lse a natural logarithm: before 2.13 the FLASH backend's was scaled as if it were base 2."""
    import torch

    major, minor = map(int, torch.__version__.split(".")[:2])
    return 1 / math.log(2) if backend == "FLASH" and (major, minor) < (2, 13) else 1.0


def _torch_block_mask(blocks: BlockMask | None, mask: Band | IntervalMask | None, device: str) -> Any:
    """torch's BlockMask with both sides given (its own constructors would make a dense one).

    No mask is the one that torch makes where none is given, one block over everything; there it would be made anew in
    every call, by kernels of its own.
    """
    import torch
    from torch.nn.attention import flex_attention

    if blocks is None or mask is None:
        one = torch.ones((1, 1, 1), dtype=torch.int32, device=device)
        return flex_attention.BlockMask.from_kv_blocks(
            one, torch.zeros_like(one)[..., None], BLOCK_SIZE=_WHOLE_BLOCK, seq_lengths=(1, 1)
        )
    num_q_blocks, num_k_blocks = len(blocks.kv.num), len(blocks.q.num)
    # The CPU's template asserts tables as wide as there are blocks.
    fixed = device == "cpu" or 4 * num_q_blocks * num_k_blocks <= _FIXED_WIDTH_ENTRIES

    def table(lists: BlockLists, num_columns: int) -> tuple[Tensor, Tensor]:
        needed = max(lists.indices.shape[1], 1)
        width = num_columns if fixed else min(1 << (needed - 1).bit_length(), num_columns)
        indices = torch.zeros((1, 1, len(lists.num), width), dtype=torch.int32, device=device)
        indices[0, 0, :, : lists.indices.shape[1]] = torch.from_numpy(lists.indices).to(device)
        return torch.from_numpy(lists.num).to(device)[None, None], indices

    kv_num, kv_indices = table(blocks.kv, num_k_blocks)
    full_kv_num, full_kv_indices = table(blocks.full_kv, num_k_blocks)
    q_num, q_indices = table(blocks.q, num_q_blocks)
    full_q_num, full_q_indices = table(blocks.full_q, num_q_blocks)
    return flex_attention.BlockMask(
        seq_lengths=(blocks.seqlen_q, blocks.seqlen_k),
        kv_num_blocks=kv_num,
        kv_indices=kv_indices,
        full_kv_num_blocks=full_kv_num,
        full_kv_indices=full_kv_indices,
        q_num_blocks=q_num,
        q_indices=q_indices,
        full_q_num_blocks=full_q_num,
        full_q_indices=full_q_indices,
        BLOCK_SIZE=(blocks.block_q, blocks.block_k),
        mask_mod=_band_mod(mask) if isinstance(mask, Band) else _interval_mod(mask, device),
    )


def _band_mod(mask: Band) -> MaskMod:
    """mask_mod of one band, with only the comparisons that it needs."""
    k_start, k_end, lower, upper = mask.k_start, mask.k_end, mask.lower, mask.upper

    def mask_mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        allowed = k >= (0 if k_start is None else k_start)
        if k_end is not None:
            allowed = allowed & (k < k_end)
        if lower is not None:
            allowed = allowed & (k >= q + lower)
        if upper is not None:
            allowed = allowed & (k <= q + upper)
        return allowed

    return mask_mod


def _interval_mod(mask: IntervalMask, device: str) -> MaskMod:
    """mask_mod of intervals: any of (k >= lo[q]) & (k < hi[q])."""
    import torch

    los = tuple(torch.from_numpy(part).to(device) for part in mask.lo)
    his = tuple(torch.from_numpy(part).to(device) for part in mask.hi)

    def mask_mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        allowed = (k >= los[0][q]) & (k < his[0][q])
        for lo, hi in zip(los[1:], his[1:], strict=True):
            allowed = allowed | ((k >= lo[q]) & (k < hi[q]))
        return allowed

    return mask_mod
