"""cudnn: cuDNN's fused attention, through TransformerEngine or through cuDNN's own frontend.

Read: transformer_engine 2.20.2 pytorch/cpp_extensions/fused_attn.py and pytorch/attention/dot_product_attention; C++
of NVIDIA/TransformerEngine (2026-08) common/fused_attn/fused_attn.cpp and fused_attn_f16_arbitrary_seqlen.cu,
pytorch/csrc/extensions/attention.cpp; nvidia-cudnn-frontend 1.32.0
include/cudnn_frontend/node/sdpa_support_surface.h, its graph API and the tests of NVIDIA/cudnn-frontend
(test/python/sdpa/fp16.py).

Both say masks alike: sequences with lengths and starts of their own (so queries and keys that no sequence wants are
gaps, not sequences), a diagonal aligned top-left or bottom-right, and how far keys may lie left and right of it.
Stats are max + ln(sum), the natural log-sum-exp, laid out (B T, N, 1) for packed sequences. A backward takes any
(out, stats). Outside all sequences TransformerEngine leaves out 0 and stats unwritten: they are set to -inf, inside
the timed region where that is needed at all.

What lowers: as fa2, by the same calls. Not used: paged keys (forward only); score modifiers of the frontend, which
cuDNN compiles only without padding, so not for packed sequences.
"""

from __future__ import annotations

from dataclasses import dataclass

from attnspec.kernels._calls import Library, VarlenKernel
from attnspec.lower.varlen import varlen_plan
from attnspec.support import Device, Problem, Provider, Support
from attnspec.support.varlen import VarlenPlan

PROVIDERS = (
    Provider(
        name="transformer-engine",
        distribution="transformer-engine",
        module="transformer_engine.pytorch",
        requires=">=2.20",
        fix="pip install --no-build-isolation 'transformer-engine[core_cu13,pytorch]>=2.20' (compiles C++)",
    ),
    Provider(
        name="nvidia-cudnn-frontend",
        distribution="nvidia-cudnn-frontend",
        module="cudnn",
        requires=">=1.20",
        fix="pip install 'nvidia-cudnn-frontend>=1.20'",
    ),
)
SUPPORT = Support(
    devices=("cuda",),
    dtypes=("bfloat16", "float16"),
    max_head_dim=256,
    head_dim_multiple=8,
    capability_min=(8, 0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Parameters of the kernel: none."""


def lower(problem: Problem, params: Params, provider: str | None) -> VarlenPlan:
    """Varlen calls; see the module's docstring."""
    return varlen_plan(problem.slices)


def bind(lowered: VarlenPlan, problem: Problem, params: Params, provider: str, device: Device) -> VarlenKernel:
    """The calls of the plan with one of the two packages."""
    library: Library
    if provider == "transformer-engine":
        from attnspec.kernels._cudnn_transformer_engine import TransformerEngine

        library = TransformerEngine(problem, device)
    else:
        from attnspec.kernels._cudnn_frontend import Frontend

        library = Frontend(problem, device)
    return VarlenKernel(library, lowered, problem)
