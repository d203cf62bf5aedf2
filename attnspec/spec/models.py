"""A spec: what to measure. Frozen, strict, pure: no files, no clock, no environment.

`Spec.model_validate(dict)` takes what a YAML file holds; `attnspec.spec.load_spec` adds files, line numbers and
overrides. Sizes may be written `8K` and are integers here; every default is filled.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Annotated, Any

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)

from attnspec.catalog.findings import Finding, Section, error_of, not_among, shown
from attnspec.sample.coins import MAX_SEED
from attnspec.shape import DTYPES, DType, Shape
from attnspec.spec.sweeps import Sweep, canonical_sweep, parse_sweeps
from attnspec.units import parse_fraction
from attnspec.wire import Measure

SPEC_VERSION = 1
DEFAULT_NUM_PACKS = {"kernel": 4, "distributed": 20}
_MAX_SIZE = 2**31 - 1
_MAX_ELEMENTS = 2**48
"""Of one token, over the batch: with any mask, FLOPs then fit their 38 decimal digits."""
_SLUG = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
_SHARE = WithJsonSchema({"attnspec": "share"})


def _version(value: Any) -> int:
    if isinstance(value, bool) or value != SPEC_VERSION or not isinstance(value, int):
        raise error_of(Finding(message=f"got {shown(value)}; allowed: {SPEC_VERSION}, the version of the spec format"))
    return value


def _slug(value: Any) -> str:
    if not isinstance(value, str):
        text = "" if isinstance(value, list | tuple | dict) else f'; write it in quotes: "{shown(value)}"'
        raise error_of(Finding(message=f"got {shown(value)}; allowed: text{text}"))
    if not re.fullmatch(_SLUG, value):
        allowed = "up to 100 letters, digits, '.', '_' and '-', a letter or digit first"
        raise error_of(Finding(message=f"got {shown(value)}; allowed: {allowed}"))
    return value


def _dtype(value: Any) -> DType:
    for known in DTYPES:
        if value == known:
            return known
    raise error_of(Finding(message=not_among(value, DTYPES)))


def _seconds(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise error_of(Finding(message=f"got {shown(value)}; allowed: a number of seconds, such as 0.2"))
    return value


Size = Annotated[int, Field(ge=1, le=_MAX_SIZE)]
Seconds = Annotated[float, Field(gt=0, le=7 * 24 * 3600), BeforeValidator(_seconds)]
Text = Annotated[str, Field(min_length=1)]


class ShapeSection(Section):
    """Sizes shared by all tensors."""

    batch: Size = 1
    """Sequences per call."""
    num_heads_q: Size
    """Query heads; a multiple of num_heads_kv."""
    num_heads_kv: Size
    """Key and value heads; a divisor of num_heads_q."""
    head_dim: Size
    """Elements per head; batch x num_heads_q x head_dim is at most 2^48."""
    dtype: Annotated[DType, PlainValidator(_dtype), WithJsonSchema({"enum": list(DTYPES)})] = "bfloat16"
    """Element type of the tensors."""

    @field_validator("num_heads_kv")
    @classmethod
    def _divides(cls, value: int, info: ValidationInfo) -> int:
        num_heads_q = info.data.get("num_heads_q")  # not there when it is wrong itself
        if num_heads_q is not None and num_heads_q % value:
            rest = num_heads_q % value
            message = f"got {value}; allowed: a divisor of num_heads_q ({num_heads_q} % {value} = {rest})"
            raise error_of(Finding(message=message))
        return value

    @field_validator("head_dim")
    @classmethod
    def _fits(cls, value: int, info: ValidationInfo) -> int:
        rows = info.data.get("batch", 1) * info.data.get("num_heads_q", 1)
        if rows * value > _MAX_ELEMENTS:
            message = f"got {value}; allowed: at most {_MAX_ELEMENTS // rows} (batch x num_heads_q is {rows})"
            raise error_of(Finding(message=message))
        return value


class Data(Section):
    """Where document lengths come from, and how many packs of them each workload has."""

    lengths: Text = "page"
    """A shipped distribution by name, or a file of lengths; a relative path starts at the spec file."""
    max_doc_fraction: Annotated[Fraction, BeforeValidator(parse_fraction), PlainSerializer(str), _SHARE] = Fraction(
        1, 4
    )
    """Documents over this share of a pack are split into pieces of it, and a rest."""
    num_packs: Size | None = None
    """Packs per workload; by default 4 at the kernel level, 20 at the distributed level. 1 without documents."""


class MeasureSection(Section):
    """How long and how well to measure."""

    min_iters: Size = 20
    """Samples per pack and case at least, also where they take longer than max_seconds."""
    max_seconds: Seconds = 2.0
    """Timed budget per pack and case; sampling ends earlier once the interval is as narrow as ci."""
    ci: Annotated[float, BeforeValidator(lambda value: float(parse_fraction(value))), _SHARE] = 0.02
    """Wanted half width of the 95 percent interval over the median, such as 2%."""
    setup_timeout_s: Seconds = 900.0
    """Limit for each step before measuring, such as compiling or verifying; past it a case ends as timeout."""
    measure_timeout_s: Seconds = 300.0
    """Limit for each turn of measuring; past it a case ends as timeout."""


def _shape(value: Any) -> Shape:
    section = ShapeSection.model_validate(_fields(value, Shape, ShapeSection))
    return Shape(**{name: getattr(section, name) for name in ShapeSection.model_fields})


def _measure(value: Any) -> Measure:
    section = MeasureSection.model_validate(_fields(value, Measure, MeasureSection))
    return Measure(**{name: getattr(section, name) for name in MeasureSection.model_fields})


def _fields(value: Any, made: type[Shape | Measure], section: type[Section]) -> Any:
    """What a section validates: a mapping as it is, the fields of an object made before."""
    return {name: getattr(value, name) for name in section.model_fields} if isinstance(value, made) else value


class Spec(Section):
    """A benchmark spec of attnspec: what to measure."""

    attnspec: Annotated[int, PlainValidator(_version), WithJsonSchema({"const": SPEC_VERSION})]
    """Version of the spec format."""
    name: Annotated[str, PlainValidator(_slug), WithJsonSchema({"type": "string", "pattern": f"^{_SLUG}$"})]
    """Short name that the plan carries; the run's folder is named after the spec's file."""
    description: str = ""
    """What it is for, in words."""
    runner: Text = "local"
    """Where it runs: the name of a runner profile, or its file; part of no id."""
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] = 42
    """Seed of documents and tensors; part of every case's id."""
    shape: Annotated[Shape, PlainValidator(_shape, json_schema_input_type=ShapeSection)]
    """Sizes shared by all tensors."""
    data: Data = Data()
    """Document lengths and packs."""
    sweeps: Annotated[tuple[Sweep, ...], PlainValidator(parse_sweeps), WithJsonSchema({"attnspec": "sweeps"})]
    """What is measured; a case that two sweeps ask for is measured once."""
    measure: Annotated[Measure, PlainValidator(_measure, json_schema_input_type=MeasureSection)] = Field(
        default_factory=Measure
    )
    """How long and how well to measure; part of no id."""

    def num_packs(self, sweep: Sweep) -> int:
        """Packs per workload in one of this spec's sweeps."""
        return self.data.num_packs or DEFAULT_NUM_PACKS[sweep.level]

    def canonical(self) -> dict[str, Any]:
        """The spec as plain JSON with all defaults filled and sizes as integers; it validates back to an equal spec.

        Specs that mean the same in another order of keys or another spelling of sizes have the same canonical form.
        """
        return {
            "attnspec": self.attnspec,
            "name": self.name,
            "description": self.description,
            "runner": self.runner,
            "seed": self.seed,
            "shape": {name: getattr(self.shape, name) for name in ShapeSection.model_fields},
            "data": self.data.model_dump(mode="json"),
            "sweeps": [canonical_sweep(sweep) for sweep in self.sweeps],
            "measure": {name: getattr(self.measure, name) for name in MeasureSection.model_fields},
        }
