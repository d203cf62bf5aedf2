"""Running a plan of varlen calls as one kernel: what fa2, fa3, fa4 and cudnn share.

Canonical tensors are packed as they are (batch rows one after another), so loading copies nothing. The first call
fills out, lse and all gradients. Each further call sees only the queries and keys it needs (where the batch is 1, as
views) and is merged by log-sum-exp; its gradients, computed from the merged (out, lse), are added. All of that is
timed.

lse is kept as a (B, T, N) view of whatever the first call wrote.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from attnspec.shape import Pass
from attnspec.support import ExpectedKernels, Forward, Problem
from attnspec.support.merging import merge_partials
from attnspec.support.varlen import VarlenCall, VarlenPlan

if TYPE_CHECKING:
    from torch import Tensor

Grads = tuple["Tensor", "Tensor", "Tensor"]


class LseLayout(Enum):
    """How a library lays out its log-sum-exp."""

    HEADS_PACKED = "(N, B T)"
    BATCH_HEADS = "(B, N, T)"
    BATCH_HEADS_ONE = "(B, N, T, 1)"
    TOKENS_ONE = "(B T, N, 1)"

    def view(self, native: Tensor, batch: int) -> Tensor:
        """The library's tensor seen as (B, T, N)."""
        if self is LseLayout.HEADS_PACKED:
            return native.view(len(native), batch, -1).permute(1, 2, 0)
        if self is LseLayout.TOKENS_ONE:
            return native.view(batch, -1, native.shape[1])
        return (native.squeeze(-1) if self is LseLayout.BATCH_HEADS_ONE else native).transpose(1, 2)

    def native(self, lse_BTN: Tensor) -> Tensor:
        """The library's tensor from (B, T, N); no copy where the values lie in memory that way."""
        if self is LseLayout.HEADS_PACKED:
            return lse_BTN.permute(2, 0, 1).flatten(1).contiguous()
        if self is LseLayout.TOKENS_ONE:
            return lse_BTN.flatten(0, 1).contiguous().unsqueeze(-1)
        native = lse_BTN.transpose(1, 2).contiguous()
        return native.unsqueeze(-1) if self is LseLayout.BATCH_HEADS_ONE else native


class Arguments(Protocol):
    """What a library prepared for one call."""

    @property
    def lse_layout(self) -> LseLayout:
        """Of this call."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NamedArguments:
    """Arguments of a library with named parameters; `packed` when they hold cu_seqlens."""

    packed: bool
    named: dict[str, Any]

    @property
    def lse_layout(self) -> LseLayout:
        """Of this call."""
        return LseLayout.HEADS_PACKED if self.packed else LseLayout.BATCH_HEADS

    def shaped(self, *tensors: Tensor) -> list[Tensor]:
        """Packed (B T, N, D) where there are cu_seqlens, else as they are."""
        return [tensor.flatten(0, 1) for tensor in tensors] if self.packed else list(tensors)


class Library(Protocol):
    """What a library does for one call.

    q, dout and out are (B, T, N, D), k and v (B, S, G, D): contiguous, or views of whole tokens where the batch is 1.
    lse is in the library's layout. Rows outside all sequences get out 0 and lse -inf (or +inf).
    """

    expected_kernels: ExpectedKernels

    def prepare(self, call: VarlenCall, num_rows: int, num_keys: int) -> Any:
        """The Arguments of one call over num_rows queries and num_keys keys per batch row, on the device (untimed)."""
        ...

    def forward(self, arguments: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """(out_BTND, native lse)."""
        ...

    def backward(
        self, arguments: Any, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, native_lse: Tensor
    ) -> Grads:
        """(dq, dk, dv) of this call, 0 outside all sequences, each in the shape of its input."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """One call: what the library prepared, and the queries and keys it gets."""

    arguments: Arguments
    rows: slice
    keys: slice


class VarlenKernel:
    """A BoundKernel over a plan and a library."""

    explicit_backward = True
    frees_graph = False
    backend: str | None = None

    def __init__(self, library: Library, plan: VarlenPlan, problem: Problem) -> None:
        self.expected_kernels: ExpectedKernels = library.expected_kernels if plan.calls else ""
        self.overlaps: frozenset[Pass] = getattr(library, "overlaps", frozenset())
        self.partials = max(len(plan.calls), 1)
        self._library = library
        self._calls: list[_Call] = []
        for number, call in enumerate(plan.calls):
            rows, keys = slice(0, plan.seqlen_q), slice(0, plan.seqlen_k)
            if number and problem.shape.batch == 1:
                call, rows, keys = call.boxed()
            arguments = library.prepare(call, rows.stop - rows.start, keys.stop - keys.start)
            self._calls.append(_Call(arguments=arguments, rows=rows, keys=keys))

    def load(self, q_BTND: Tensor, k_BSGD: Tensor, v_BSGD: Tensor) -> Grads:
        """As they are."""
        return q_BTND.contiguous(), k_BSGD.contiguous(), v_BSGD.contiguous()

    def load_dout(self, dout_BTND: Tensor) -> Tensor:
        """As it is."""
        return dout_BTND.contiguous()

    def load_forward(self, out_BTND: Tensor, lse_BNT: Tensor) -> Forward:
        """lse in the layout of the first call."""
        lse_BTN = lse_BNT.float().transpose(1, 2)
        if self._calls:
            layout = self._calls[0].arguments.lse_layout
            lse_BTN = layout.view(layout.native(lse_BTN), len(lse_BTN))
        return Forward(out=out_BTND.contiguous(), lse=lse_BTN)

    def forward(self, inputs: Grads) -> Forward:
        """All calls, merged."""
        q, k, v = inputs
        if not self._calls:
            return _nothing(q)
        first, *others = self._calls
        out, lse = self._run(first, q, k, v)
        for call in others:
            merge_partials(out[:, call.rows], lse[:, call.rows], *self._run(call, q, k, v))
        return Forward(out=out, lse=lse)

    def backward(self, inputs: Grads, forward: Forward, dout: Tensor) -> Grads:
        """The sum of all calls' gradients."""
        import torch

        q, k, v = inputs
        out, lse = forward.out, forward.lse
        assert lse is not None
        grads: Grads | None = None
        for call in self._calls:
            rows, keys = call.rows, call.keys
            native_lse = call.arguments.lse_layout.native(lse[:, rows])
            parts = self._library.backward(
                call.arguments, dout[:, rows], q[:, rows], k[:, keys], v[:, keys], out[:, rows], native_lse
            )
            if grads is None:
                grads = parts
                continue
            for total, part, where in zip(grads, parts, (rows, keys, keys), strict=True):
                total[:, where].add_(part)
        return grads if grads is not None else (torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v))

    def _run(self, call: _Call, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """(out_BTND, lse_BTN) of one call."""
        out, native = self._library.forward(call.arguments, q[:, call.rows], k[:, call.keys], v[:, call.keys])
        return out, call.arguments.lse_layout.view(native, len(out))

    def partial(self, forward: Forward) -> tuple[Tensor, Tensor]:
        """(out_BTND, lse_BTN) as the library left them: lse may hold +inf on rows without keys."""
        assert forward.lse is not None
        return forward.out, forward.lse

    def canonical_out(self, forward: Forward) -> tuple[Tensor, Tensor]:
        """out as it is; lse_BNT with -inf where the library wrote +inf for a row without keys."""
        import torch

        assert forward.lse is not None
        lse_BNT = forward.lse.transpose(1, 2).contiguous()
        return forward.out.contiguous(), lse_BNT.masked_fill(lse_BNT == torch.inf, -torch.inf)

    def canonical_grads(self, grads: Grads) -> Grads:
        """Contiguous."""
        dq, dk, dv = (part.contiguous() for part in grads)
        return dq, dk, dv


def _nothing(q: Tensor) -> Forward:
    """The forward of an empty mask: the library is not called."""
    import torch

    lse = torch.full(q.shape[:3], -torch.inf, dtype=torch.float32, device=q.device)
    return Forward(out=torch.zeros_like(q), lse=lse)
