"""magi_attn_a2av: MagiAttention with its own dispatch, its group collectives by all-to-all-v (magi-attention 1.1)."""

from __future__ import annotations

from dataclasses import dataclass

from attnspec.params import param
from attnspec.shape import Shape
from attnspec.support import Provider

KERNELS = ("ffa", "ffa_fa4")
PROVIDERS = (
    Provider(
        name="magi-attention",
        distribution="magi-attention",
        module="magi_attention",
        requires=">=1.1",
        fix="build tag v1.1.1 of github.com/SandAI-org/MagiAttention (pip install --no-build-isolation .)",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Parameters of the strategy."""

    chunk_size: int = param(default=2048, ge=1, tokens=True, doc="Tokens of a chunk that the dispatcher places.")
    overlap_degree: int = param(default=2, ge=1, doc="Stages into which remote keys are split to hide their transfer.")


def check(params: Params, shape: Shape, cp_size: int) -> None:
    """Any heads on any number of ranks."""
