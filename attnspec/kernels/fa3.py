"""fa3: FlashAttention 3 for Hopper, from its own package or as xformers ships it.

Read: hopper/flash_attn_interface.py and hopper/flash_api_stable.cpp of Dao-AILab/flash-attention (2026-08), the
operator schemas inside xformers 0.0.34's flash_attn_3/_C.so and its ops/fmha/flash3.py. Both packages register the
same operators flash_attn_3::fwd (34 arguments) and flash_attn_3::bwd (22), which are called by argument name; what
`bwd` returns differs between the two, so dq, dk and dv are given. Sequences, causal flag and window mean what they
mean in FlashAttention 2; an unbounded side of a window is exact here. lse is natural, (N, total) or (B, N, T); a row
without keys has out 0, lse -inf. Paged keys (page_table) are for the forward only. The operators' default num_splits
= 0 lets a heuristic split keys; 1 is what the package's own functions pass.

What lowers: as fa2, by the same calls.

To build a part of it, keep all backward kernels of a head dimension in one translation unit, as the package does.
CUTLASS' kernels are static there and its launching function is not: split, a launch may take another unit's kernel,
which was not granted its shared memory, and the process ends ("CUTLASS error ... Error Internal").

Of xformers, 0.0.34 carries the library; 0.0.35 expects FlashAttention 3's own package. It wants CUDA 12's
libcudart.so.12, which nvidia-cuda-runtime-cu12 holds and which is loaded from there first. The library is loaded by
its path: xformers' other one is built for torch 2.10, and nothing of it is needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnspec.errors import UnsupportedError
from attnspec.kernels._calls import Grads, NamedArguments, VarlenKernel
from attnspec.lower.varlen import varlen_plan
from attnspec.shape import Pass
from attnspec.support import Device, Problem, Provider, Support
from attnspec.support.kernel_names import FLASH_ATTENTION_3, ExpectedKernels
from attnspec.support.varlen import VarlenCall, VarlenPlan

if TYPE_CHECKING:
    from torch import Tensor

PROVIDERS = (
    Provider(
        name="flash-attn-3",
        distribution="flash-attn-3",
        module="flash_attn_interface",
        fix="build hopper/ of github.com/Dao-AILab/flash-attention (python setup.py install)",
    ),
    Provider(
        name="xformers",
        distribution="xformers",
        module="xformers",
        requires=">=0.0.34,<0.0.35",
        fix="pip install --no-deps xformers==0.0.34 nvidia-cuda-runtime-cu12",
        apart=True,  # both packages register the same operators
    ),
)
SUPPORT = Support(
    devices=("cuda",),
    dtypes=("bfloat16", "float16"),
    max_head_dim=256,
    head_dim_multiple=8,
    capability_min=(9, 0),
    capability_max=(9, 0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Parameters of the kernel: none."""


def lower(problem: Problem, params: Params, provider: str | None) -> VarlenPlan:
    """Varlen calls; see the module's docstring."""
    return varlen_plan(problem.slices)


def bind(lowered: VarlenPlan, problem: Problem, params: Params, provider: str, device: Device) -> VarlenKernel:
    """The calls of the plan on the operators of one of the two packages."""
    return VarlenKernel(_Operators(provider, problem, device), lowered, problem)


class _Operators:
    """torch.ops.flash_attn_3."""

    expected_kernels: ExpectedKernels = FLASH_ATTENTION_3
    overlaps: frozenset[Pass] = frozenset()
    """Persistent: a ring of two H200 was up to 4 percent slower."""

    def __init__(self, provider: str, problem: Problem, device: Device) -> None:
        import torch

        _register(provider)
        self._fwd: Any = torch.ops.flash_attn_3.fwd
        self._bwd: Any = torch.ops.flash_attn_3.bwd
        self._batch = problem.shape.batch
        self._device = device.type
        self._scale = 1 / math.sqrt(problem.shape.head_dim)

    def prepare(self, call: VarlenCall, num_rows: int, num_keys: int) -> NamedArguments:
        """cu_seqlens on the device, flag and window."""
        import torch

        named: dict[str, Any] = {
            "softmax_scale": self._scale,
            "is_causal": call.kind == "causal",
            "window_size_left": -1 if call.left is None else call.left,
            "window_size_right": -1 if call.right is None else call.right,
        }
        if call.is_rectangle(num_rows, num_keys):
            return NamedArguments(packed=False, named=named)
        packed = call.packed(num_rows, num_keys, self._batch)
        named["cu_seqlens_q"] = torch.from_numpy(packed.cu_seqlens_q).to(self._device)
        named["cu_seqlens_k"] = torch.from_numpy(packed.cu_seqlens_k).to(self._device)
        named["max_seqlen_q"] = packed.max_seqlen_q
        named["max_seqlen_k"] = packed.max_seqlen_k
        return NamedArguments(packed=True, named=named)

    def forward(self, arguments: NamedArguments, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """One forward."""
        out, lse, *_ = self._fwd(*arguments.shaped(q, k, v), num_splits=1, **arguments.named)
        return out.view(q.shape), lse

    def backward(
        self, arguments: NamedArguments, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, native_lse: Tensor
    ) -> Grads:
        """One backward."""
        import torch

        dq, dk, dv = (torch.empty_like(part, memory_format=torch.contiguous_format) for part in (q, k, v))
        to_dq, to_dk, to_dv = arguments.shaped(dq, dk, dv)
        self._bwd(*arguments.shaped(dout, q, k, v, out), native_lse, dq=to_dq, dk=to_dk, dv=to_dv, **arguments.named)
        return dq, dk, dv


def _register(provider: str) -> None:
    """Load the library that defines the operators, once in a process; both packages give them the same names."""
    import importlib
    from pathlib import Path

    import torch

    if hasattr(torch.ops.flash_attn_3, "fwd"):
        # xformers gives its library to torch by path; others import theirs, TransformerEngine too.
        by_path = any("xformers" in Path(str(one)).parts for one in torch.ops.loaded_libraries)
        found = "xformers" if by_path else "flash-attn-3"
        if found != provider:
            raise UnsupportedError("broken_package", f"this process holds the operators of {found} already")
        return
    if provider == "xformers":
        load_library: Any = torch.ops.load_library
        load_library(_xformers_library())
    else:
        importlib.import_module("flash_attn_interface")


def _xformers_library() -> str:
    """The path of xformers' FlashAttention 3, after CUDA 12's runtime library has been loaded if it is installed."""
    import ctypes
    import importlib.util
    from pathlib import Path

    found = importlib.util.find_spec("nvidia")
    for folder in [] if found is None else found.submodule_search_locations or []:
        runtime = Path(folder) / "cuda_runtime" / "lib" / "libcudart.so.12"
        if runtime.is_file():
            ctypes.CDLL(str(runtime), mode=ctypes.RTLD_GLOBAL)
            break
    found = importlib.util.find_spec("xformers")
    for folder in [] if found is None else found.submodule_search_locations or []:
        library = Path(folder) / "flash_attn_3" / "_C.so"
        if library.is_file():
            return str(library)
    raise ModuleNotFoundError(
        "xformers is installed without flash_attn_3/_C.so" if found else "No module named 'xformers'"
    )
