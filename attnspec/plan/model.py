"""What a plan holds: sample and mask nodes, workloads, cases, jobs, and the plan itself. Pure data.

A case is one row of the table to come, so there may be 10^5 of them: cases are slotted and share their workload,
implementation and environment with their neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from attnspec.sample.lengths import Lengths
from attnspec.shape import Pass, Shape
from attnspec.support import Device
from attnspec.wire import Implementation, Measure

if TYPE_CHECKING:
    import networkx as nx

Level = Literal["kernel", "distributed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleNode:
    """How the packs of some masks are filled.

    lengths: the length distribution as the spec names it; None stands for one document of seqlen tokens, which is what
    masks without documents get. data_sha256: its checksum. seed: of the drawing.
    """

    sample_id: str
    seqlen: int
    num_packs: int = 1
    lengths: str | None = None
    data_sha256: str | None = None
    max_doc_fraction: Fraction | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskNode:
    """One mask over the packs of one sample node."""

    mask_id: str
    sample: SampleNode
    mask: str
    params: Mapping[str, Any]
    seqlen_q: int
    seqlen_k: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A mask node with a shape and the seed of its tensors: what several implementations are asked to compute."""

    workload_id: str
    mask_node: MaskNode
    shape: Shape
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A workload on one implementation, pass, cp_size and environment. `sweep` is the index of the sweep that asks."""

    case_id: str
    workload: Workload
    implementation: Implementation
    pass_: Pass
    level: Level
    cp_size: int
    env: Mapping[str, str]
    sweep: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A container image as a runner names it, and the kernels and strategies that it holds; None: not known.

    providers: packages that its kernels come from.
    """

    name: str
    kernels: tuple[str, ...] | None = None
    strategies: tuple[str, ...] | None = None
    providers: tuple[str, ...] | None = None

    def holds(self, implementation: Implementation) -> bool:
        """Whether it is said to hold what this takes."""
        asked = (
            (implementation.kernel, self.kernels),
            (implementation.strategy, self.strategies),
            (implementation.provider, self.providers),
        )
        return all(one is None or held is None or one in held for one, held in asked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsupported:
    """Why a case cannot run, decided while planning. `reason_code` as in `attnspec.record.status`."""

    reason_code: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadGroup:
    """Cases of one workload and level inside a job: they are measured interleaved."""

    workload: Workload
    level: Level
    cases: tuple[Case, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Run nodes that share runner, image, world size and environment: one launch, one warm process group.

    apart: `kernel provider` of a job that holds only that provider, since no process holds it beside another.
    """

    job_id: str
    runner: str
    image: str | None
    world_size: int
    env: Mapping[str, str]
    apart: str | None
    groups: tuple[WorkloadGroup, ...]

    @property
    def cases(self) -> tuple[Case, ...]:
        """All cases of this job, unsupported ones included, in the order of measurement."""
        return tuple(case for group in self.groups for case in group.cases)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A compiled spec. Mappings are keyed by id, in the order of the spec.

    device: the kind of device that `unsupported` was decided for; None where nobody has looked at one.
    images: those that the runner names, in the order in which they are asked for a kernel; none outside containers.
    lengths: the distribution that documents are drawn from; None where no mask has documents.
    unsupported: case_id -> why, for the cases that cannot run; they are in `cases` and `jobs` as well.
    dense: case_ids whose kernel takes a dense mask.
    """

    name: str
    runner: str
    images: tuple[Image, ...]
    device: Device | None
    measure: Measure
    lengths: Lengths | None
    samples: Mapping[str, SampleNode]
    masks: Mapping[str, MaskNode]
    workloads: Mapping[str, Workload]
    cases: tuple[Case, ...]
    jobs: tuple[Job, ...]
    unsupported: Mapping[str, Unsupported]
    dense: frozenset[str]

    @cached_property
    def graph(self) -> nx.DiGraph:
        """The DAG: nodes `sample:<id>`, `mask:<id>`, `run:<case_id>`, `collect:<id>`, attribute `stage`. Built once."""
        from attnspec.plan.graph import build_graph

        return build_graph(self)

    @cached_property
    def case_by_id(self) -> Mapping[str, Case]:
        """The cases by case_id."""
        return {case.case_id: case for case in self.cases}
