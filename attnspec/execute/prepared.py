"""One implementation of a workload's pack, ready to run: what verification and the timing loop see.

A kernel alone and a strategy over ranks look the same here: something with the methods of a BoundKernel, and which rows
and keys of the whole sequence this rank's tensors hold.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from attnspec import plugins
from attnspec.errors import UnsupportedError
from attnspec.execute.tensors import Tensors
from attnspec.shape import Pass
from attnspec.slices.edges import IntArray
from attnspec.support import BoundKernel, Forward, Problem
from attnspec.wire import Implementation


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one timed iteration does. `before` is untimed and runs ahead of the flush; `run`'s result is dropped."""

    run: Callable[[], object]
    before: Callable[[], object] | None = None


@dataclass(slots=True, kw_only=True)
class Prepared:
    """A bound implementation and, after `load`, its inputs.

    needs_backward: it was bound for a backward (passes bwd, fwd_bwd). lse_tolerance: as in BoundKernel. q_rows, k_rows:
    positions that this rank's tensors hold, None for the whole sequence in order. partials: into how many parts the
    keys of a row are split and merged; kernel_partials: into how many the kernel splits each of these again. mesh,
    comm_bytes, load_imbalance and padding_tokens are facts of a strategy.
    """

    bound: BoundKernel
    needs_backward: bool
    lower_s: float
    backend: str | None = None
    lse_tolerance: float = 0.0
    q_rows: IntArray | None = None
    k_rows: IntArray | None = None
    partials: int = 1
    kernel_partials: int = 1
    mesh: str | None = None
    comm_bytes: int | None = None
    load_imbalance: float | None = None
    padding_tokens: int | None = None
    inputs: Any = None
    dout: Any = None
    forward: Forward | None = None

    def load(self, tensors: Tensors) -> None:
        """Bring the workload's tensors into the library's layout (untimed)."""
        self.inputs = self.bound.load(tensors.q_BTND, tensors.k_BSGD, tensors.v_BSGD)
        if self.needs_backward:
            assert tensors.dout_BTND is not None
            self.dout = self.bound.load_dout(tensors.dout_BTND)

    def step(self, pass_: Pass) -> Step:
        """The timed iteration of a pass. A backward that frees its graph gets an untimed forward before."""
        assert self.needs_backward == (pass_ != "fwd"), pass_
        if pass_ == "fwd":
            return Step(run=self._run_forward)
        if pass_ == "fwd_bwd":
            return Step(run=self._run_both)
        return Step(
            run=self._run_backward, before=self._renew_forward if self.bound.frees_graph else self._keep_forward
        )

    def free(self) -> None:
        """Let go of everything that holds memory."""
        self.inputs = self.dout = self.forward = None

    def _run_forward(self) -> Tensor:
        return self.bound.forward(self.inputs).out

    def _run_both(self) -> object:
        return self.bound.backward(self.inputs, self.bound.forward(self.inputs), self.dout)

    def _run_backward(self) -> object:
        forward = self.forward
        assert forward is not None
        if self.bound.frees_graph:
            self.forward = None
        return self.bound.backward(self.inputs, forward, self.dout)

    def _renew_forward(self) -> None:
        self.forward = None
        self.forward = self.bound.forward(self.inputs)

    def _keep_forward(self) -> None:
        if self.forward is None:
            self.forward = self.bound.forward(self.inputs)


def prepare_kernel(implementation: Implementation, problem: Problem, provider: str) -> Prepared:
    """Check, lower and bind a kernel. Raises UnsupportedError where the library cannot do it."""
    module = plugins.load("kernels", implementation.kernel)
    module.SUPPORT.check(problem)
    params = kernel_params(implementation)
    started = time.perf_counter()
    lowered = module.lower(problem, params, provider)
    bound: BoundKernel = module.bind(lowered, problem, params, provider, problem.device)
    return Prepared(
        bound=bound,
        needs_backward=problem.needs_backward,
        lower_s=time.perf_counter() - started,
        backend=bound.backend,
        lse_tolerance=getattr(bound, "lse_tolerance", 0.0),
        kernel_partials=getattr(bound, "partials", 1),
    )


def kernel_params(implementation: Implementation) -> Any:
    """The kernel's Params; `backend` is one of them where the kernel has variants."""
    module = plugins.load("kernels", implementation.kernel)
    values = dict(implementation.kernel_params)
    if implementation.backend is not None:
        if "backend" not in module.Params.__dataclass_fields__:
            raise UnsupportedError(
                "backend", f"{implementation.kernel} has no variants, got {implementation.backend!r}"
            )
        values["backend"] = implementation.backend
    return plugins.make_params(module, values)
