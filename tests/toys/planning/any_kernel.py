"""any_kernel: a kernel that lowers everything and remembers what it was asked to lower; computes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from attnspec.params import param
from attnspec.support import Provider, Support

PLUGIN_KIND = "kernels"
PROVIDERS = (Provider(name="here", distribution="toy", module="toy"),)
SUPPORT = Support(devices=("cpu", "cuda"), dtypes=("float32", "bfloat16"), max_head_dim=256)
LOWERED: list[int] = []
"""seqlen_q of every problem lowered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    backend: Literal["FAST", "SLOW"] | None = param(default=None, doc="Variant.")
    block: int = param(default=128, ge=1, doc="Tokens of a block.")


def lower(problem, params, provider):
    LOWERED.append(problem.slices.seqlen_q)
