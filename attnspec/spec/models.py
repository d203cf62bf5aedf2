"""A spec: what to measure. Frozen, strict, pure: no files, no clock, no environment.

`Spec.model_validate(dict)` takes what a YAML file holds; `attnspec.spec.load_spec` adds files, line numbers and
overrides. Sizes may be written `8K` and are integers here; every default is filled.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from fractions import Fraction
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, PlainValidator, model_validator

from attnspec import wire
from attnspec.catalog.findings import Finding, Section, collect, fail, shown
from attnspec.errors import nearest
from attnspec.shape import DTYPES, PASSES, DType, Pass, Shape
from attnspec.spec.excludes import Exclude, Selector, check_excludes, parse_excludes
from attnspec.spec.items import ImplementationItem, MaskItem, parse_kernels, parse_masks, parse_strategies
from attnspec.units import parse_count, parse_fraction

SPEC_VERSION = 1
DEFAULT_NUM_PACKS = {"kernel": 4, "distributed": 20}
MAX_SEED = 2**63 - 1
_MAX_SIZE = 2**31 - 1
_SLUG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
T = TypeVar("T", bound=Hashable)


def _one_of(value: Any, allowed: tuple[Any, ...]) -> Any:
    if isinstance(value, str) and value in allowed:
        return value
    hint = nearest(value, allowed) if isinstance(value, str) else ""
    fail([Finding(message=f"got {shown(value)}{hint}; allowed: {', '.join(allowed)}")])


def _pass(value: Any) -> Pass:
    return _one_of(value, PASSES)  # type: ignore[no-any-return]


def _dtype(value: Any) -> DType:
    return _one_of(value, DTYPES)  # type: ignore[no-any-return]


def _count(value: Any) -> int:
    """A positive integer without a suffix."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= _MAX_SIZE:
        fail([Finding(message=f"got {shown(value)}; allowed: a positive integer")])
    return value


def _version(value: Any) -> int:
    if isinstance(value, bool) or value != SPEC_VERSION:
        fail([Finding(message=f"got {shown(value)}; allowed: {SPEC_VERSION}, the version of the spec format")])
    return SPEC_VERSION


def _slug(value: Any) -> str:
    if not isinstance(value, str) or not _SLUG.fullmatch(value):
        allowed = "letters, digits, '.', '_' and '-', starting with a letter or digit, at most 100"
        fail([Finding(message=f"got {shown(value)}; allowed: {allowed}")])
    return value


def _several(one: Callable[[Any], T]) -> Callable[[Any], tuple[T, ...]]:
    """A parser for one value or a list of distinct ones."""

    def parse(value: Any) -> tuple[T, ...]:
        if not isinstance(value, list | tuple):
            return (one(value),)
        if not value:
            fail([Finding(message="is empty; allowed: one value or more")])
        findings: list[Finding] = []
        held: dict[T, Any] = {}
        for index, entry in enumerate(value):
            parsed = collect(findings, (index,), lambda entry=entry: one(entry))  # type: ignore[misc]
            if parsed is None:
                continue
            if parsed in held:
                same = "" if held[parsed] == entry else f", the same as {shown(held[parsed])}"
                findings.append(Finding(message=f"{shown(entry)} is given twice{same}", loc=(index,)))
            held.setdefault(parsed, entry)
        if findings:
            fail(findings)
        return tuple(held)

    return parse


Sizes = Annotated[tuple[int, ...], PlainValidator(_several(parse_count))]
Counts = Annotated[tuple[int, ...], PlainValidator(_several(_count))]
Passes = Annotated[tuple[Pass, ...], PlainValidator(_several(_pass))]
Masks = Annotated[tuple[MaskItem, ...], PlainValidator(parse_masks)]
Kernels = Annotated[tuple[ImplementationItem, ...], PlainValidator(parse_kernels)]
Strategies = Annotated[tuple[ImplementationItem, ...], PlainValidator(parse_strategies)]
Positive = Annotated[int, Field(ge=1, le=_MAX_SIZE)]
Seconds = Annotated[float, Field(gt=0, le=7 * 24 * 3600)]


class ShapeSection(Section):
    """Sizes shared by all tensors: `num_heads_q` query heads read `num_heads_kv` key/value heads."""

    batch: Positive = 1
    num_heads_q: Positive
    num_heads_kv: Positive
    head_dim: Positive
    dtype: Annotated[DType, BeforeValidator(_dtype)] = "bfloat16"

    @model_validator(mode="after")
    def _divisible(self) -> ShapeSection:
        if self.num_heads_q % self.num_heads_kv:
            message = (
                f"got {self.num_heads_q}, no multiple of num_heads_kv {self.num_heads_kv} "
                f"({self.num_heads_q} % {self.num_heads_kv} = {self.num_heads_q % self.num_heads_kv}); "
                "every key/value head serves the same number of query heads"
            )
            fail([Finding(message=message, loc=("num_heads_q",))])
        return self


class Data(Section):
    """Where document lengths come from and how many packs of them each workload has."""

    lengths: Annotated[str, Field(min_length=1)] = "page"
    """A shipped distribution by name, or a file; a relative path starts at the spec file."""
    max_doc_fraction: Annotated[Fraction, BeforeValidator(parse_fraction)] = Fraction(1, 4)
    """Documents longer than this share of a pack are split."""
    num_packs: Positive | None = None
    """Packs per workload; None: 4 at the kernel level, 20 at the distributed level."""


class MeasureSection(Section):
    """How long and how well to measure; the words of `wire.Measure`."""

    min_iters: Positive = 20
    max_seconds: Seconds = 2.0
    ci: Annotated[float, BeforeValidator(lambda value: float(parse_fraction(value)))] = 0.02
    setup_timeout_s: Seconds = 900.0
    measure_timeout_s: Seconds = 300.0


class KernelSweep(Section):
    """Every mask x seqlen x pass x kernel on one device, but the excluded."""

    level: Literal["kernel"]
    masks: Masks
    seqlen: Sizes
    passes: Passes = ("fwd", "bwd")
    kernels: Kernels
    exclude: Annotated[tuple[Exclude, ...], BeforeValidator(parse_excludes)] = ()

    @property
    def axes(self) -> dict[str, tuple[Any, ...]]:
        """The values of each axis by its key in a spec; the sweep is their product."""
        return {"masks": self.masks, "seqlen": self.seqlen, "passes": self.passes, "kernels": self.kernels}

    @model_validator(mode="after")
    def _excludes_match(self) -> KernelSweep:
        check_excludes(self.exclude, self.axes)
        return self

    def excludes(self, *, mask: MaskItem, seqlen: int, pass_: Pass, item: ImplementationItem) -> bool:
        """Whether `exclude` takes this case out."""
        case = {"masks": mask, "seqlen": seqlen, "passes": pass_, "kernels": item}
        return any(one.matches(case) for one in self.exclude)


class DistributedSweep(Section):
    """Every mask x cp_size x tokens per rank x pass x strategy over several ranks, but the excluded."""

    level: Literal["distributed"]
    masks: Masks
    cp_size: Counts
    seqlen_per_rank: Sizes
    passes: Passes = ("fwd", "bwd")
    strategies: Strategies
    exclude: Annotated[tuple[Exclude, ...], BeforeValidator(parse_excludes)] = ()

    @property
    def axes(self) -> dict[str, tuple[Any, ...]]:
        """The values of each axis by its key in a spec; the sweep is their product."""
        return {
            "masks": self.masks,
            "cp_size": self.cp_size,
            "seqlen_per_rank": self.seqlen_per_rank,
            "passes": self.passes,
            "strategies": self.strategies,
        }

    @model_validator(mode="after")
    def _excludes_match(self) -> DistributedSweep:
        check_excludes(self.exclude, self.axes)
        return self

    def excludes(
        self, *, mask: MaskItem, cp_size: int, seqlen_per_rank: int, pass_: Pass, item: ImplementationItem
    ) -> bool:
        """Whether `exclude` takes this case out."""
        case = {
            "masks": mask,
            "cp_size": cp_size,
            "seqlen_per_rank": seqlen_per_rank,
            "passes": pass_,
            "strategies": item,
        }
        return any(one.matches(case) for one in self.exclude)


Sweep = KernelSweep | DistributedSweep
_SWEEPS: dict[str, type[KernelSweep | DistributedSweep]] = {"kernel": KernelSweep, "distributed": DistributedSweep}


def _sweeps(value: Any) -> tuple[Sweep, ...]:
    if not isinstance(value, list | tuple) or not value:
        got = "is empty" if isinstance(value, list | tuple) else f"got {shown(value)}"
        fail([Finding(message=f"{got}; allowed: a list of sweeps, each with a level (kernel or distributed)")])
    findings: list[Finding] = []
    held = [collect(findings, (index,), lambda one=one: _sweep(one)) for index, one in enumerate(value)]  # type: ignore[misc]
    if findings:
        fail(findings)
    return tuple(one for one in held if one is not None)


def _sweep(value: Any) -> Sweep:
    if isinstance(value, KernelSweep | DistributedSweep):
        return value
    if not isinstance(value, dict):
        fail([Finding(message=f"got {shown(value)}; allowed: a mapping with level, masks, ...")])
    if "level" not in value:
        fail([Finding(message="is missing; allowed: kernel, distributed", loc=("level",))])
    findings: list[Finding] = []
    level = collect(findings, ("level",), lambda: _one_of(value["level"], tuple(_SWEEPS)))
    if findings:
        fail(findings)
    return _SWEEPS[str(level)].model_validate(value)


class Spec(Section):
    """A whole spec file, checked, with every default filled."""

    attnspec: Annotated[int, PlainValidator(_version)]
    name: Annotated[str, BeforeValidator(_slug)]
    description: str = ""
    runner: Annotated[str, Field(min_length=1)] = "local"
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] = 42
    shape: Annotated[Shape, PlainValidator(lambda value: _shape(value))]
    data: Data = Data()
    sweeps: Annotated[tuple[Sweep, ...], PlainValidator(_sweeps)]
    measure: Annotated[wire.Measure, PlainValidator(lambda value: _measure(value))] = wire.Measure()

    def num_packs(self, sweep: Sweep) -> int:
        """Packs per workload in one of this spec's sweeps."""
        return self.data.num_packs or DEFAULT_NUM_PACKS[sweep.level]

    def canonical(self) -> dict[str, Any]:
        """The spec as plain JSON with all defaults filled and sizes as integers; it validates back to an equal spec.

        Two specs that mean the same in another order of keys or another spelling of sizes have the same canonical form.
        """
        return {
            "attnspec": self.attnspec,
            "name": self.name,
            "description": self.description,
            "runner": self.runner,
            "seed": self.seed,
            "shape": {name: getattr(self.shape, name) for name in ShapeSection.model_fields},
            "data": {
                "lengths": self.data.lengths,
                "max_doc_fraction": str(self.data.max_doc_fraction),
                "num_packs": self.data.num_packs,
            },
            "sweeps": [_canonical_sweep(sweep) for sweep in self.sweeps],
            "measure": {name: getattr(self.measure, name) for name in MeasureSection.model_fields},
        }


def _shape(value: Any) -> Shape:
    if isinstance(value, Shape):
        value = {name: getattr(value, name) for name in ShapeSection.model_fields}
    section = ShapeSection.model_validate(value)
    return Shape(**dict(section))


def _measure(value: Any) -> wire.Measure:
    if isinstance(value, wire.Measure):
        value = {name: getattr(value, name) for name in MeasureSection.model_fields}
    return wire.Measure(**dict(MeasureSection.model_validate(value)))


def _canonical_sweep(sweep: Sweep) -> dict[str, Any]:
    held: dict[str, Any] = {"level": sweep.level}
    for axis, values in sweep.axes.items():
        held[axis] = [
            value.canonical() if isinstance(value, MaskItem | ImplementationItem) else value for value in values
        ]
    held["exclude"] = [one.canonical() for one in sweep.exclude]
    return held


__all__ = [
    "Data",
    "DistributedSweep",
    "Exclude",
    "ImplementationItem",
    "KernelSweep",
    "MaskItem",
    "Selector",
    "Spec",
    "Sweep",
]
