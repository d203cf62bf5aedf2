"""The shape that every prepared kernel has on the container side. Types only: nothing here imports torch at run time.

Shape suffixes: B batch, T query tokens, S key tokens, N query heads, G key/value heads, D head_dim.
Canonical tensors are contiguous q_BTND, k_BSGD, v_BSGD, out_BTND, dout_BTND; lse_BNT is float32, natural log, -inf on
rows without keys (whose output and gradients are 0).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from attnspec.support.kernel_names import ExpectedKernels

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True, kw_only=True)
class Forward:
    """What a forward left. `saved` is whatever this kernel's own backward wants besides out and lse (may be None)."""

    out: Tensor
    lse: Tensor | None
    saved: Any = None


class BoundKernel(Protocol):
    """A kernel bound to one problem, provider and device. Its mask is already lowered and on the device.

    `load` and `load_dout` bring canonical tensors into the library's layout (untimed); `forward` and `backward` are
    what is timed: device work of the library alone, no copies that a user of the library would not need.
    `canonical_*` bring results back to canonical layout (untimed).

    On CUDA `forward` and `backward` start on the current stream, and it waits for what they start on others before they
    return: the clock's end event is recorded on it alone.

    A kernel whose exponential is approximate may have one more attribute, `lse_tolerance: float`: the absolute error of
    its lse that this causes, as measured, with where from in a comment. Without it lse must be right to float32.

    A kernel of which two calls at once take less time than one after the other may name the passes of which that holds
    by `overlaps: frozenset[Pass]`, with where that was measured in a comment; persistent kernels, which fill the device
    from start to end, take more.

    A kernel that merges rounded results over parts of a row's keys may say so by `partials: int`, how many at most.

    A kernel may have one more method, `partial(forward) -> (out_BTND, lse_BTN)`: its results for merging, without
    copies; lse may hold +inf on rows without keys. Without it `canonical_out` is called inside the timed region.
    """

    explicit_backward: bool
    """Whether `backward` takes any (out, lse), also merged ones that it did not compute itself (strategies need it)."""
    frees_graph: bool
    """Whether a backward consumes the forward's state, so that each timed backward needs an untimed forward before."""
    expected_kernels: ExpectedKernels
    """Names that device kernels of a profiled iteration must have, of each direction where they differ; empty on the
    CPU."""
    backend: str | None
    """The kernel's own variant that runs, also where the spec left it open; None for a kernel without variants."""

    def load(self, q_BTND: Tensor, k_BSGD: Tensor, v_BSGD: Tensor) -> Any:
        """Inputs in the library's layout."""
        ...

    def load_dout(self, dout_BTND: Tensor) -> Any:
        """The output's gradient in the library's layout."""
        ...

    def forward(self, inputs: Any) -> Forward:
        """One forward; out and lse in the library's layout."""
        ...

    def load_forward(self, out_BTND: Tensor, lse_BNT: Tensor) -> Forward:
        """A forward that this kernel did not compute (merged partials), as `backward` takes it.

        Called only where `explicit_backward` is true.
        """
        ...

    def backward(self, inputs: Any, forward: Forward, dout: Any) -> tuple[Any, Any, Any]:
        """(dq, dk, dv) in the library's layout, freshly written, nothing accumulated."""
        ...

    def canonical_out(self, forward: Forward) -> tuple[Tensor, Tensor | None]:
        """(out_BTND, lse_BNT or None)."""
        ...

    def canonical_grads(self, grads: tuple[Any, Any, Any]) -> tuple[Tensor, Tensor, Tensor]:
        """(dq_BTND, dk_BSGD, dv_BSGD)."""
        ...
