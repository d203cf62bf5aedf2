"""Sweeps: products of masks, lengths, passes and implementations, without what `exclude` names. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import PlainValidator, WithJsonSchema, model_validator

from attnspec.catalog.findings import Finding, Section, collect, error_of, not_among, shown
from attnspec.shape import PASSES, Pass
from attnspec.spec.excludes import Exclude, check_excludes, parse_excludes
from attnspec.spec.implementations import parse_kernels, parse_strategies
from attnspec.spec.items import ImplementationItem, MaskItem, parse_masks
from attnspec.units import parse_count

MAX_CP_SIZE = 2**20
T = TypeVar("T", bound=Hashable)


def _pass(value: Any) -> Pass:
    for known in PASSES:
        if value == known:
            return known
    raise error_of(Finding(message=not_among(value, PASSES)))


def _cp_size(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= MAX_CP_SIZE:
        raise error_of(Finding(message=f"got {shown(value)}; allowed: a number of ranks, 1 or more"))
    return value


def _several(one: Callable[[Any], T]) -> Callable[[Any], tuple[T, ...]]:
    """A parser of one value, or of a list of distinct ones."""

    def parse(value: Any) -> tuple[T, ...]:
        if not isinstance(value, list | tuple):
            return (one(value),)
        findings: list[Finding] = [] if value else [Finding(message="is empty; allowed: one value or more")]
        held: dict[T, Any] = {}
        for index, entry in enumerate(value):
            parsed = collect(findings, (index,), one, entry)
            if parsed is None:
                continue
            if parsed in held:
                other = "" if held[parsed] == entry else f" as {shown(held[parsed])}"
                findings.append(Finding(message=f"{shown(entry)} is given twice{other}", loc=(index,)))
            held.setdefault(parsed, entry)
        if findings:
            raise error_of(*findings)
        return tuple(held)

    return parse


def _in_schema(name: str) -> WithJsonSchema:
    """A part of the JSON Schema that `spec.schema` fills in, for it depends on the plug-ins or has two spellings."""
    return WithJsonSchema({"attnspec": name})


Sizes = Annotated[tuple[int, ...], PlainValidator(_several(parse_count)), _in_schema("sizes")]
Ranks = Annotated[tuple[int, ...], PlainValidator(_several(_cp_size)), _in_schema("ranks")]
Passes = Annotated[tuple[Pass, ...], PlainValidator(_several(_pass)), _in_schema("passes")]
Masks = Annotated[tuple[MaskItem, ...], PlainValidator(parse_masks), _in_schema("masks")]
Kernels = Annotated[tuple[ImplementationItem, ...], PlainValidator(parse_kernels), _in_schema("kernels")]
Strategies = Annotated[tuple[ImplementationItem, ...], PlainValidator(parse_strategies), _in_schema("strategies")]


class KernelSweep(Section):
    """Every mask x seqlen x pass x kernel on one device, without the excluded."""

    level: Literal["kernel"]
    """One device, kernels by themselves."""
    masks: Masks
    """Masks by name, each perhaps with its parameters."""
    seqlen: Sizes
    """Total tokens of a pack, such as 8K or [1K, 2K]."""
    passes: Passes = ("fwd", "bwd")
    """What is timed: forward, backward alone, or both as one."""
    kernels: Kernels
    """Kernels by name, each perhaps with its settings."""
    exclude: Annotated[
        tuple[Exclude, ...], PlainValidator(lambda value: parse_excludes(value, "kernel")), _in_schema("exclude_kernel")
    ] = ()
    """Cases to leave out: those that have one of the given values on every axis that an entry names."""

    @property
    def axes(self) -> dict[str, tuple[Any, ...]]:
        """The values of each axis by its key in a spec; the sweep is their product."""
        return {"masks": self.masks, "seqlen": self.seqlen, "passes": self.passes, "kernels": self.kernels}

    @model_validator(mode="after")
    def _excludes_match(self) -> KernelSweep:
        check_excludes(self.exclude, self.axes)
        return self

    def excludes(self, *, mask: MaskItem, seqlen: int, pass_: Pass, item: ImplementationItem) -> bool:
        """Whether a case is left out."""
        case = {"masks": mask, "seqlen": seqlen, "passes": pass_, "kernels": item}
        return any(one.matches(case) for one in self.exclude)


class DistributedSweep(Section):
    """Every mask x cp_size x tokens per rank x pass x strategy over several ranks, without the excluded."""

    level: Literal["distributed"]
    """Several ranks, strategies of context parallelism."""
    masks: Masks
    """Masks by name, each perhaps with its parameters."""
    cp_size: Ranks
    """Ranks that share a sequence, such as 8 or [8, 16]."""
    seqlen_per_rank: Sizes
    """Tokens per rank, such as 8K or [8K, 16K]; a pack has cp_size times as many."""
    passes: Passes = ("fwd", "bwd")
    """What is timed: forward, backward alone, or both as one."""
    strategies: Strategies
    """Strategies by name, each with its kernel and perhaps other settings."""
    exclude: Annotated[
        tuple[Exclude, ...],
        PlainValidator(lambda value: parse_excludes(value, "distributed")),
        _in_schema("exclude_distributed"),
    ] = ()
    """Cases to leave out: those that have one of the given values on every axis that an entry names."""

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
        """Whether a case is left out."""
        case = {
            "masks": mask,
            "cp_size": cp_size,
            "seqlen_per_rank": seqlen_per_rank,
            "passes": pass_,
            "strategies": item,
        }
        return any(one.matches(case) for one in self.exclude)


Sweep = KernelSweep | DistributedSweep
LEVELS: Mapping[str, type[KernelSweep] | type[DistributedSweep]] = {
    "kernel": KernelSweep,
    "distributed": DistributedSweep,
}


def parse_sweeps(value: Any) -> tuple[Sweep, ...]:
    """The `sweeps` of a spec. Raises pydantic's ValidationError with one finding per fault."""
    if not isinstance(value, list | tuple) or not value:
        got = "is empty" if isinstance(value, list | tuple) else f"got {shown(value)}"
        raise error_of(Finding(message=f"{got}; allowed: a list of sweeps, each with its level: {', '.join(LEVELS)}"))
    findings: list[Finding] = []
    held: list[Sweep] = []
    for index, entry in enumerate(value):
        sweep = collect(findings, (index,), _sweep, entry)
        if sweep is None:
            continue
        if sweep in held:
            findings.append(Finding(message=f"is given twice: the same as sweep {held.index(sweep)}", loc=(index,)))
        held.append(sweep)
    if findings:
        raise error_of(*findings)
    return tuple(held)


def _sweep(value: Any) -> Sweep:
    if isinstance(value, KernelSweep | DistributedSweep):
        return value
    if not isinstance(value, Mapping):
        raise error_of(Finding(message=f"got {shown(value)}; allowed: a mapping with level, masks and so on"))
    if "level" not in value:
        raise error_of(Finding(message=f"is missing; allowed: {', '.join(LEVELS)}", loc=("level",)))
    level = value["level"]
    if not isinstance(level, str) or level not in LEVELS:
        raise error_of(Finding(message=not_among(level, LEVELS), loc=("level",)))
    return LEVELS[level].model_validate(value)


def canonical_sweep(sweep: Sweep) -> dict[str, Any]:
    """A sweep as plain JSON that parses back to it."""
    axes = {
        axis: [one.canonical() if isinstance(one, MaskItem | ImplementationItem) else one for one in values]
        for axis, values in sweep.axes.items()
    }
    return {"level": sweep.level, **axes, "exclude": [one.canonical() for one in sweep.exclude]}
