"""What host and worker say to each other: a job request as a JSON file, events as JSON lines. No pydantic, no torch.

The request travels as a file in the run folder. The worker answers with events on its standard output (one JSON object
a line) and writes measurements itself into the run folder's journal. Its standard input is the control pipe: when it
closes, the worker and its process group end.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar
from urllib.parse import quote, unquote

from attnspec.errors import WireError
from attnspec.shape import DType, Pass, Shape

WIRE_VERSION = 1
WORKER_FIX = "pip install 'torch>=2.11' 'numpy>=1.26' 'pyarrow>=15'"
"""What a worker's interpreter needs; attnspec itself need not be installed there."""
EXIT_MISSING = 3
BEGINS = "attnspec examines "
"""Doctor's process begins a line of standard error so before each target: what stands above is of others."""
EXIT_JOURNAL = 4
T = TypeVar("T")


def target_of(*parts: str) -> str:
    """What doctor's process is to examine, as one argument, whatever characters the names have.

    >>> target_of("kernels", "sdpa", "torch"), target_of("kernels", "mine", "site/a:b")
    ('kernels:sdpa:torch', 'kernels:mine:site%2Fa%3Ab')
    """
    return ":".join(quote(part, safe=" ", errors="surrogateescape") for part in parts)


def parts_of(target: str) -> list[str]:
    """Kind and name, of a kernel perhaps its provider and backend.

    >>> parts_of("kernels:mine:site%2Fa%3Ab")
    ['kernels', 'mine', 'site/a:b']
    """
    return [unquote(part, errors="surrogateescape") for part in target.split(":")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementation:
    """What runs a workload: a kernel, alone or inside a strategy. `provider` None means the first usable one."""

    kernel: str
    backend: str | None = None
    provider: str | None = None
    kernel_params: Mapping[str, Any] = field(default_factory=dict)
    strategy: str | None = None
    strategy_params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Equal for equal implementations; parameters make the dataclass itself unhashable."""
        return repr(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRequest:
    """One case to measure."""

    case_id: str
    implementation: Implementation
    pass_: Pass
    cp_size: int = 1

    @property
    def needs_backward(self) -> bool:
        """Whether its pass has a backward."""
        return self.pass_ != "fwd"

    @property
    def binding(self) -> tuple[str, bool]:
        """Equal for cases of one workload that share one bound implementation: forward alone, or with a backward."""
        return self.implementation.key, self.needs_backward


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRequest:
    """A workload and its cases, which are measured interleaved. Artifact paths are relative to the run folder."""

    workload_id: str
    level: Literal["kernel", "distributed"]
    mask: str
    mask_params: Mapping[str, Any]
    seqlen_q: int
    seqlen_k: int
    shape: Shape
    seed: int
    packs: str
    slices: str
    cases: tuple[CaseRequest, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """How long and how well to measure.

    min_iters: samples per pack and case at least. max_seconds: timed budget per pack and case. ci: wanted half width of
    the interval over the median (0.02 = 2 percent). setup_timeout_s, measure_timeout_s: limits per case, kept by the
    host.
    """

    min_iters: int = 20
    max_seconds: float = 2.0
    ci: float = 0.02
    setup_timeout_s: float = 900.0
    measure_timeout_s: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """One launch: run nodes that share runner, image, world size and environment.

    done: result_keys with an ok record, not to be measured again.
    rounds_done: result_key -> {pack index as text: rounds already journaled}, so that an interrupted case goes on where
    it stopped. solo: case_ids to try alone, after the others.
    """

    job_id: str
    attempt: int
    run_dir: str
    device: Literal["cpu", "cuda"]
    world_size: int
    env: Mapping[str, str]
    measure: Measure
    workloads: tuple[WorkloadRequest, ...]
    anchor: str | None = None
    done: tuple[str, ...] = ()
    rounds_done: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    solo: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()
    image_id: str | None = None
    code_sha256: str = ""
    wire_version: int = WIRE_VERSION


EventKind = Literal["hello", "phase", "round", "outcome", "message", "bye"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line from the worker (from rank 0 where there are several).

    hello: the job begins; `data` is the environment found (driver, device, versions), which the host compares with that
    of earlier attempts. phase: case_id enters `choose`, `setup`, `verify` or `measure` and its limit restarts; said
    before every turn of an interleaved case too, so that the host knows whose turn a crash or hang was; without a
    case_id it is no case's. In `choose` packages are imported and tried, and `data` names under `alike` all cases of
    the request that need the same. round: samples of a round are in the journal. outcome: a case ended with `status`,
    its record is in the journal; `data` holds `result_key`, and `resumed` true for a case of `done`, for which nothing
    was journaled anew. Each case of the request gets one. message: text for people. bye: the job ended in good order.

    A worker exits with EXIT_MISSING when the runner lacks something and with EXIT_JOURNAL when the journal cannot be
    written; the last lines on standard error say what.
    """

    kind: EventKind
    case_id: str | None = None
    phase: str | None = None
    status: str | None = None
    text: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)


def dumps(message: Any) -> str:
    """One line of JSON for a wire dataclass; fields at their default are left out."""
    return json.dumps(_plain(message), ensure_ascii=False, allow_nan=False)


def loads(kind: type[T], text: str | bytes) -> T:
    """A wire dataclass from JSON. Raises WireError on damage, unknown or missing fields, or another wire version."""
    try:
        content = json.loads(text)
    except ValueError as error:
        raise WireError(f"damaged {kind.__name__}: {error}") from None
    if kind is JobRequest and isinstance(content, dict):
        version = content.get("wire_version", WIRE_VERSION)
        if version != WIRE_VERSION:
            raise WireError(
                f"request has wire version {version}, this worker speaks {WIRE_VERSION}: update the older side"
            )
    return typing.cast(T, _typed(kind, content, kind.__name__))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        held = {}
        for item in dataclasses.fields(value):
            one = getattr(value, item.name)
            if item.name != "wire_version" and item.default is not dataclasses.MISSING and one == item.default:
                continue
            held[item.name] = _plain(one)
        return held
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value


def _typed(kind: Any, value: Any, path: str) -> Any:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, dict):
            raise WireError(f"{path}: expected an object, got {value!r}")
        hints = typing.get_type_hints(kind)
        unknown = value.keys() - hints.keys()
        if unknown:
            raise WireError(f"{path}: unknown field {sorted(unknown)[0]!r}: host and worker differ in version")
        try:
            return typing.cast(Any, kind)(
                **{name: _typed(hints[name], one, f"{path}.{name}") for name, one in value.items()}
            )
        except TypeError as error:
            raise WireError(f"{path}: {error}") from None
    if origin is Literal:
        if value not in args:
            raise WireError(f"{path}: got {value!r}, allowed {args}")
        return value
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in args:
            return None
        return _typed(next(one for one in args if one is not type(None)), value, path)
    if origin is tuple:
        if not isinstance(value, list):
            raise WireError(f"{path}: expected a list, got {value!r}")
        return tuple(_typed(args[0], one, f"{path}[{index}]") for index, one in enumerate(value))
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, dict):
            raise WireError(f"{path}: expected an object, got {value!r}")
        return {name: _typed(args[1], one, f"{path}.{name}") for name, one in value.items()}
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise WireError(f"{path}: expected {kind.__name__}, got {value!r}")
    return value


__all__ = [
    "BEGINS",
    "EXIT_JOURNAL",
    "EXIT_MISSING",
    "WIRE_VERSION",
    "WORKER_FIX",
    "CaseRequest",
    "DType",
    "Event",
    "Implementation",
    "JobRequest",
    "Measure",
    "Pass",
    "Shape",
    "WorkloadRequest",
    "dumps",
    "loads",
]
