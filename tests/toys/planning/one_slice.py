"""one_slice: a kernel for masks of one slice, on CUDA, forward only before Blackwell; computes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from attnspec.errors import UnsupportedError
from attnspec.support import Support

PLUGIN_KIND = "kernels"
PROVIDERS = ()
SUPPORT = Support(
    devices=("cuda",),
    dtypes=("float32", "bfloat16"),
    max_head_dim=128,
    backward={"cuda": False},
    backward_reason={"cuda": "one_slice has no backward"},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    pass


def lower(problem, params, provider):
    if len(problem.slices) != 1:
        raise UnsupportedError("no_lowering", f"{problem.slices.seqlen_q} tokens in {len(problem.slices)} slices")
