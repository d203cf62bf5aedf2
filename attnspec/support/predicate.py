"""What a kernel supports as plain data, and the predicate over it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from attnspec.errors import UnsupportedError
from attnspec.support.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """Limits that a library documents. What slices it can express is decided by the kernel's `lower`.

    capability: lowest and highest CUDA compute capability (inclusive on the major number), None = any.
    backward: whether the kernel has a backward per device type.
    """

    devices: tuple[str, ...]
    dtypes: tuple[str, ...]
    max_head_dim: int
    head_dim_multiple: int = 1
    capability_min: tuple[int, int] | None = None
    capability_max: tuple[int, int] | None = None
    backward: Mapping[str, bool] = field(default_factory=lambda: {"cpu": True, "cuda": True})
    backward_reason: Mapping[str, str] = field(default_factory=dict)
    gqa: bool = True

    def check(self, problem: Problem) -> None:
        """Raise UnsupportedError naming the first limit that `problem` breaks."""
        shape, device = problem.shape, problem.device
        if device.type not in self.devices:
            raise UnsupportedError("device", f"runs on {', '.join(self.devices)}, not on {device.type}")
        if shape.dtype not in self.dtypes:
            raise UnsupportedError("dtype", f"{shape.dtype} is not supported; allowed: {', '.join(self.dtypes)}")
        if shape.head_dim > self.max_head_dim:
            raise UnsupportedError("head_dim", f"head_dim {shape.head_dim} is over {self.max_head_dim}")
        if shape.head_dim % self.head_dim_multiple:
            raise UnsupportedError(
                "head_dim", f"head_dim {shape.head_dim} is not a multiple of {self.head_dim_multiple}"
            )
        if not self.gqa and shape.group_size != 1:
            raise UnsupportedError(
                "heads", f"grouped-query attention ({shape.num_heads_q}:{shape.num_heads_kv}) is not supported"
            )
        if device.capability is not None:
            if self.capability_min is not None and device.capability < self.capability_min:
                raise UnsupportedError(
                    "device",
                    f"needs compute capability {_dotted(self.capability_min)}, got {_dotted(device.capability)}",
                )
            if self.capability_max is not None and device.capability[0] > self.capability_max[0]:
                raise UnsupportedError(
                    "device",
                    f"built up to compute capability {_dotted(self.capability_max)}, got {_dotted(device.capability)}",
                )
        if problem.needs_backward and not self.backward.get(device.type, False):
            raise UnsupportedError("direction", self.backward_reason.get(device.type, f"no backward on {device.type}"))


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))
