"""sdpa: torch's scaled_dot_product_attention, each of its backends by itself.

Backends cudnn, flash, efficient and math; without one, what torch itself would pick, and that is recorded. How slices
are expressed, in this order: one full or causal rectangle natively (on views of its queries and keys); documents packed
one after another by the flash backend's varlen operator, which is what torch calls for jagged nested tensors; else a
dense mask added to the scores, where the backend takes one. A dense mask costs seqlen_q x seqlen_k elements of the
inputs' type and every cell is computed; it is built before timing.

Rows that see no key have output 0 and no gradient; torch's backends disagree there, so with a dense mask such rows are
let see key 0 and are cleared, in the forward and in the gradient of the output, inside the timed region.

`kv_repeat` repeats K and V to all query heads inside the timed region, for the backend that refuses grouped queries.

The CPU's flash backward adds the query heads of a group into dK and dV in the inputs' type. In bfloat16 that doubles
their error with 8 heads (measured: 5.9 times plain attention's at 2K, causal, against 2.9 where heads are repeated and
summed in float32), past the bound of 4: long sequences of such groups end as wrong on the CPU. CUDA's passes.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from attnspec.errors import UnsupportedError
from attnspec.kernels._aten import Cudnn, Efficient, FlashCpu, FlashCuda, FlashPacked, Operator
from attnspec.kernels._sdpa_bound import MathSdpa, OperatorSdpa, additive, allowed_cells, make_frame
from attnspec.lower.dense import DenseMask, Rectangle, dense_mask, rectangle
from attnspec.lower.varlen import varlen_plan
from attnspec.params import param
from attnspec.support import BoundKernel, Device, ExpectedKernels, KernelNames, Problem, Provider, Support
from attnspec.support.kernel_names import CUDNN, FLASH_ATTENTION_2
from attnspec.support.varlen import VarlenCall

if TYPE_CHECKING:
    from torch import Tensor

PROVIDERS = (
    Provider(name="torch", distribution="torch", module="torch", requires=">=2.11", fix="pip install 'torch>=2.11'"),
)
SUPPORT = Support(
    devices=("cpu", "cuda"),
    dtypes=("bfloat16", "float16", "float32", "float64"),
    max_head_dim=2**16,
)
Backend = Literal["cudnn", "flash", "efficient", "math"]
_CUDA_KERNELS = {
    "cudnn": CUDNN,
    "flash": FLASH_ATTENTION_2,
    "efficient": KernelNames(fwd="fmha_cutlassF", bwd="fmha_cutlassB"),
    "math": KernelNames(fwd="(?i)softmax.*forward", bwd="(?i)softmax.*backward"),
}
_HALF = ("bfloat16", "float16")
_CPU_LSE_TOLERANCE = 1e-4
"""torch's CPU flash attention has a fast exponential for half precision: its lse is off by up to 6e-5 (measured against
float64 with torch 2.13, 64 to 8192 causal tokens, bfloat16 and float16 alike)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Parameters of the kernel."""

    backend: Backend | None = param(default=None, doc="torch's backend; what torch would pick if not given.")
    kv_repeat: bool = param(default=False, doc="Repeat K and V to all query heads, inside the timed region.")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lowered:
    """One rectangle, or documents packed one after another, or a dense mask."""

    rectangle: Rectangle | None = None
    documents: VarlenCall | None = None
    mask: DenseMask | None = None

    @property
    def dense(self) -> bool:
        """Whether the device holds a mask of seqlen_q x seqlen_k elements; planning counts its memory."""
        return self.mask is not None


def lower(problem: Problem, params: Params, provider: str | None) -> Lowered:
    """The rectangle or mask; raises UnsupportedError where the backend cannot run this shape or takes no mask."""
    on_cpu = problem.device.type == "cpu"
    _check_backend(problem, params, on_cpu)
    held = rectangle(problem.slices)
    if held is not None and (not held.causal or held.square or (_bottom_right(problem, params) and not on_cpu)):
        return Lowered(rectangle=held)
    if params.backend == "flash" and not on_cpu:
        return Lowered(documents=_documents(problem))
    return Lowered(mask=dense_mask(problem.slices))


def _documents(problem: Problem) -> VarlenCall:
    """The slices as documents that cover all queries and keys, all full or all causal."""
    try:
        plan = varlen_plan(problem.slices, max_calls=1)
    except UnsupportedError:
        plan = None
    if plan is not None and plan.calls:
        call = plan.calls[0]
        whole = call.covers_rows(problem.slices.seqlen_q) and call.covers_keys(problem.slices.seqlen_k)
        if call.kind != "window" and whole:
            return call
    raise UnsupportedError(
        "no_lowering",
        "torch's flash backend takes no mask: only full, causal, and documents that are all full or causal",
    )


def _check_backend(problem: Problem, params: Params, on_cpu: bool) -> None:
    """Raise UnsupportedError for what torch excludes on any machine of this kind; the rest torch says when bound."""
    shape, backend = problem.shape, params.backend
    if on_cpu:
        if backend in ("cudnn", "efficient"):
            raise UnsupportedError("backend", f"torch's {backend} backend runs on CUDA only; on the CPU: flash, math")
        return
    if backend in ("cudnn", "flash"):
        if shape.dtype not in _HALF:
            raise UnsupportedError(
                "dtype", f"torch's {backend} backend takes {' and '.join(_HALF)} on CUDA, not {shape.dtype}"
            )
        if shape.head_dim % 8 or shape.head_dim > 256:
            raise UnsupportedError(
                "head_dim",
                f"torch's {backend} backend takes head_dim up to 256 in multiples of 8, not {shape.head_dim}",
            )
    if backend == "efficient":
        if shape.dtype == "float64":
            raise UnsupportedError(
                "dtype", "torch's efficient backend takes bfloat16, float16 and float32, not float64"
            )
        if shape.group_size != 1 and not params.kv_repeat:
            raise UnsupportedError(
                "heads",
                f"torch's efficient backend refuses grouped queries ({shape.num_heads_q}:{shape.num_heads_kv}); "
                "kv_repeat: true repeats K and V to all query heads, inside the timed region",
            )


def _bottom_right(problem: Problem, params: Params) -> bool:
    """Whether a causal rectangle with more keys than rows is native: what causal_lower_right calls."""
    if params.backend is None:
        return problem.shape.dtype in _HALF and problem.shape.head_dim <= 256 and problem.shape.head_dim % 8 == 0
    return params.backend in ("flash", "efficient")


def bind(lowered: Lowered, problem: Problem, params: Params, provider: str, device: Device) -> BoundKernel:
    """The chosen backend, or torch's own choice; raises UnsupportedError with torch's reason when it refuses."""
    backend = params.backend or _torch_choice(lowered, problem, params, device)
    if device.type == "cuda" and backend != "math":
        _ask_torch(backend, lowered, problem, params, device)
    frame = make_frame(lowered.rectangle, lowered.mask, problem, params.kv_repeat, device.type)
    allowed = None if lowered.mask is None else allowed_cells(lowered.mask, problem.slices.seqlen_k, device.type)
    if backend == "math":
        grouped = problem.shape.group_size != 1 and not params.kv_repeat
        return MathSdpa(frame, allowed, grouped, problem.needs_backward, _kernels("math", device))
    bias = None if allowed is None else additive(allowed, problem.shape.dtype)
    operator: Operator
    if backend == "cudnn":
        operator = Cudnn(frame.causal, bias, device.type)
    elif backend == "efficient":
        square = lowered.rectangle is None or lowered.rectangle.square
        operator = Efficient((1 if square else 2) if frame.causal else 0, bias)
    elif device.type == "cpu":
        operator = FlashCpu(frame.causal, bias)
    elif lowered.documents is not None:
        operator = _packed_operator(lowered.documents, problem, device)
    else:
        operator = FlashCuda(frame.causal, device.type)
    approximate = device.type == "cpu" and problem.shape.dtype in _HALF
    tolerance = _CPU_LSE_TOLERANCE if approximate else 0.0
    return OperatorSdpa(frame, operator, backend, _kernels(backend, device), tolerance)


def _packed_operator(documents: VarlenCall, problem: Problem, device: Device) -> FlashPacked:
    import torch

    batch = problem.shape.batch
    packed = documents.packed(problem.slices.seqlen_q, problem.slices.seqlen_k, batch)
    return FlashPacked(
        documents.kind == "causal",
        batch,
        torch.from_numpy(packed.cu_seqlens_q).to(device.type),
        torch.from_numpy(packed.cu_seqlens_k).to(device.type),
        packed.max_seqlen_q,
        packed.max_seqlen_k,
    )


def _kernels(backend: Backend, device: Device) -> ExpectedKernels:
    return _CUDA_KERNELS[backend] if device.type == "cuda" else ""


def _samples(lowered: Lowered, problem: Problem, device: Device, repeat: bool) -> tuple[Tensor, ...]:
    """Small q, k, v and mask that torch's checks judge like the real ones (they look at no length over 128)."""
    import torch

    shape = problem.shape
    lengths = [min(length, 128) for length in (problem.slices.seqlen_q, problem.slices.seqlen_k)]
    heads_kv = shape.num_heads_q if repeat else shape.num_heads_kv
    q, k, v = (
        torch.empty(
            (shape.batch, length, heads, shape.head_dim),
            dtype=getattr(torch, shape.dtype),
            device=device.type,
            requires_grad=problem.needs_backward,
        ).transpose(1, 2)
        for length, heads in ((lengths[0], shape.num_heads_q), (lengths[1], heads_kv), (lengths[1], heads_kv))
    )
    if lowered.mask is None:
        return q, k, v
    return q, k, v, torch.zeros(lengths, dtype=q.dtype, device=device.type)


def _torch_choice(lowered: Lowered, problem: Problem, params: Params, device: Device) -> Backend:
    """The backend that scaled_dot_product_attention would pick by itself."""
    import torch

    held = lowered.rectangle
    if held is not None and held.causal and not held.square:
        return "flash"
    q, k, v, *mask = _samples(lowered, problem, device, params.kv_repeat)
    causal = held is not None and held.causal
    choice = torch._fused_sdp_choice(
        q, k, v, mask[0] if mask else None, 0.0, causal, enable_gqa=q.shape[1] != k.shape[1]
    )
    names: dict[int, Backend] = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn"}
    return names[choice]


def _ask_torch(backend: Backend, lowered: Lowered, problem: Problem, params: Params, device: Device) -> None:
    """Raise UnsupportedError with torch's own reason when the backend refuses this problem on this device."""
    import torch

    allowed = {
        "cudnn": torch.backends.cuda.can_use_cudnn_attention,
        "flash": torch.backends.cuda.can_use_flash_attention,
        "efficient": torch.backends.cuda.can_use_efficient_attention,
    }[backend]
    causal = lowered.rectangle is not None and lowered.rectangle.causal and lowered.rectangle.square

    def refusal(repeat: bool) -> str | None:
        q, k, v, *mask = _samples(lowered, problem, device, repeat)
        asked = torch.backends.cuda.SDPAParams(
            q, k, v, mask[0] if mask else None, 0.0, causal, q.shape[1] != k.shape[1]
        )
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            if allowed(asked, debug=True):
                return None
        reasons = [str(one.message).split(" (Triggered internally")[0] for one in said]
        return f"torch's {backend} backend: {' '.join(reasons) or 'not available on this device'}"

    reason = refusal(params.kv_repeat)
    if reason is not None:
        only_heads = problem.shape.group_size != 1 and not params.kv_repeat and refusal(True) is None
        raise UnsupportedError("heads" if only_heads else "backend", reason)
