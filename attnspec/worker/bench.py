"""What stands ready for the packs of a workload: tensors and checks, and how an implementation is prepared for them.

Two kinds with one face: kernels on one device, and strategies over the ranks of a job.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np
from torch import Tensor

from attnspec.execute.clock import Clock, Timer
from attnspec.execute.findings import Finding
from attnspec.execute.joint import Agreement, JointStrategy, JointTimer
from attnspec.execute.prepared import Prepared, Step, prepare_kernel
from attnspec.execute.strategy import plan_strategy, prepare_strategy
from attnspec.execute.tensors import TORCH_DTYPES, Tensors, make, make_tensors
from attnspec.execute.verify import Checks
from attnspec.sample.artifact import read_packs
from attnspec.sharding.sharding import Sharding
from attnspec.slices import AttnSlices
from attnspec.slices.edges import IntArray
from attnspec.support import Problem
from attnspec.wire import Implementation, JobRequest, WorkloadRequest
from attnspec.worker.environment import Environment
from attnspec.worker.inputs import read_slices, tensors_of


class Bench(Protocol):
    """One pack, ready to be computed."""

    def checks(self, implementation: Implementation) -> Checks:
        """What an implementation is checked against, all costly parts made. Raises UnsupportedError like `prepare`."""
        ...

    def prepare(
        self, implementation: Implementation, provider: str, *, needs_backward: bool
    ) -> tuple[Prepared, Tensors]:
        """The implementation bound, and the tensors that this process gives it."""
        ...

    def plan(self, implementation: Implementation) -> Sharding | None:
        """Who holds and does what; None for a kernel alone."""
        ...

    def timer(self, clock: Clock, prepared: Prepared, step: Step) -> Timer:
        """A timer of one of its steps."""
        ...

    def agree(self, found: Finding) -> Finding:
        """The finding that stands for all ranks."""
        ...


class Benches(Protocol):
    """All packs of a workload."""

    num_packs: int

    def pack(self, number: int) -> Bench:
        """One of them."""
        ...


def open_benches(
    request: JobRequest,
    workload: WorkloadRequest,
    environment: Environment,
    agreement: Agreement,
    *,
    needs_backward: bool,
) -> Benches:
    """Read a workload's slices and make what its packs share. Raises InputError, WireError, JournalError."""
    packs = read_slices(request.run_dir, workload)
    if workload.level == "kernel":
        tensors = tensors_of(workload, environment.device, needs_backward=needs_backward)
        return KernelBenches(workload, packs, tensors, environment)
    docs = read_packs(Path(request.run_dir) / workload.packs)
    return StrategyBenches(workload, packs, docs, environment, agreement, needs_backward=needs_backward)


class KernelBenches:
    """Benches of kernels: all packs share the tensors."""

    def __init__(
        self, workload: WorkloadRequest, packs: list[AttnSlices], tensors: Tensors, environment: Environment
    ) -> None:
        self.num_packs = len(packs)
        self._workload, self._packs, self._tensors, self._environment = workload, packs, tensors, environment

    def pack(self, number: int) -> KernelBench:
        """One of them."""
        return KernelBench(self._workload, self._packs[number], self._tensors, self._environment)


class KernelBench:
    """A Bench of kernels."""

    def __init__(
        self, workload: WorkloadRequest, slices: AttnSlices, tensors: Tensors, environment: Environment
    ) -> None:
        self._shape, self._slices, self._tensors, self._environment = workload.shape, slices, tensors, environment
        self._checks = Checks.of(workload.workload_id, workload.shape, slices, tensors)

    def checks(self, implementation: Implementation) -> Checks:
        """The same for all kernels."""
        self._checks.ready(partials=1)
        return self._checks

    def prepare(
        self, implementation: Implementation, provider: str, *, needs_backward: bool
    ) -> tuple[Prepared, Tensors]:
        """The kernel bound, and the shared tensors."""
        problem = Problem(
            shape=self._shape, slices=self._slices, needs_backward=needs_backward, device=self._environment.support
        )
        return prepare_kernel(implementation, problem, provider), self._tensors

    def plan(self, implementation: Implementation) -> None:
        """None."""

    def timer(self, clock: Clock, prepared: Prepared, step: Step) -> Timer:
        """The clock's own."""
        return clock.timer(step)

    def agree(self, found: Finding) -> Finding:
        """As it is."""
        return found


class StrategyBenches:
    """Benches of strategies. Every rank has all keys and values, for the oracle, and makes queries as it needs them."""

    def __init__(
        self,
        workload: WorkloadRequest,
        packs: list[AttnSlices],
        docs: list[IntArray],
        environment: Environment,
        agreement: Agreement,
        *,
        needs_backward: bool,
    ) -> None:
        self.num_packs = len(packs)
        self._workload, self._packs, self._docs = workload, packs, docs
        self._environment, self._agreement, self._needs_backward = environment, agreement, needs_backward
        self._k_BSGD, self._v_BSGD = self._whole("k"), self._whole("v")

    def pack(self, number: int) -> StrategyBench:
        """One of them."""
        workload, slices = self._workload, self._packs[number]
        checks = Checks(
            workload_id=workload.workload_id,
            shape=workload.shape,
            slices=slices,
            q_rows_of=lambda rows: self._rows("q", rows),
            dout_rows_of=(lambda rows: self._rows("dout", rows)) if self._needs_backward else None,
            k_BSGD=self._k_BSGD,
            v_BSGD=self._v_BSGD,
        )
        return StrategyBench(workload, slices, self._docs[number], checks, self._environment, self._agreement)

    def _whole(self, name: str) -> Tensor:
        shape = self._workload.shape
        return self._made(name, self._workload.seqlen_k, shape.num_heads_kv, None)

    def _rows(self, name: str, rows: IntArray) -> Tensor:
        return self._made(name, self._workload.seqlen_q, self._workload.shape.num_heads_q, rows)

    def _made(self, name: str, seqlen: int, num_heads: int, rows: IntArray | None) -> Tensor:
        shape = self._workload.shape
        return make(
            self._workload.workload_id,
            name,
            seqlen=seqlen,
            batch=shape.batch,
            num_heads=num_heads,
            head_dim=shape.head_dim,
            dtype=TORCH_DTYPES[shape.dtype],
            device=self._environment.device,
            rows=rows,
        )


class StrategyBench:
    """A Bench of strategies on one rank. checks: over the whole sequence. docs: lengths of the pack's documents."""

    def __init__(
        self,
        workload: WorkloadRequest,
        slices: AttnSlices,
        docs: IntArray,
        checks: Checks,
        environment: Environment,
        agreement: Agreement,
    ) -> None:
        self._workload, self._slices, self._docs, self._checks = workload, slices, docs, checks
        self._environment, self._agreement = environment, agreement
        self._plans: dict[str, Sharding] = {}

    def checks(self, implementation: Implementation) -> Checks:
        """Of what the rank holds."""
        plan, rank = self.plan(implementation), self._agreement.ranks.rank
        checks = self._checks.over(plan.q_tokens(rank), plan.k_tokens(rank), self._agreement.total)
        checks.ready(plan.partials)
        return checks

    def prepare(
        self, implementation: Implementation, provider: str, *, needs_backward: bool
    ) -> tuple[Prepared, Tensors]:
        """The strategy bound, and tensors of what the rank holds."""
        plan, workload = self.plan(implementation), self._workload
        problem = self._problem(needs_backward=needs_backward)
        prepared = prepare_strategy(implementation, problem, provider, plan, self._agreement)
        tensors = make_tensors(
            workload.workload_id,
            workload.shape,
            seqlen_q=workload.seqlen_q,
            seqlen_k=workload.seqlen_k,
            needs_backward=needs_backward,
            device=self._environment.device,
            q_rows=prepared.q_rows,
            k_rows=prepared.k_rows,
        )
        return prepared, tensors

    def plan(self, implementation: Implementation) -> Sharding:
        """Made once for forward and backward. Raises UnsupportedError where heads or degrees do not fit."""
        key = implementation.key
        if key not in self._plans:
            problem, ranks = self._problem(needs_backward=False), self._agreement.ranks
            self._plans[key] = plan_strategy(implementation, problem, np.asarray(self._docs), ranks)
        return self._plans[key]

    def timer(self, clock: Clock, prepared: Prepared, step: Step) -> Timer:
        """One whose rounds fail on all ranks if on one."""
        assert isinstance(prepared.bound, JointStrategy)
        return JointTimer(clock.timer(step), prepared.bound, self._agreement)

    def agree(self, found: Finding) -> Finding:
        """The worst of all ranks."""
        return self._agreement.worst(found)

    def _problem(self, *, needs_backward: bool) -> Problem:
        return Problem(
            shape=self._workload.shape,
            slices=self._slices,
            needs_backward=needs_backward,
            device=self._environment.support,
        )
