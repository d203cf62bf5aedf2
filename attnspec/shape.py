"""Sizes, element types and passes shared by every layer. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Pass = Literal["fwd", "bwd", "fwd_bwd"]
PASSES: tuple[Pass, ...] = ("fwd", "bwd", "fwd_bwd")
DType = Literal["bfloat16", "float16", "float32", "float64"]
DTYPES: tuple[DType, ...] = ("bfloat16", "float16", "float32", "float64")
DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes shared by all tensors of a workload. num_heads_q is a multiple of num_heads_kv."""

    batch: int
    num_heads_q: int
    num_heads_kv: int
    head_dim: int
    dtype: DType

    @property
    def group_size(self) -> int:
        """Query heads per key/value head."""
        return self.num_heads_q // self.num_heads_kv
