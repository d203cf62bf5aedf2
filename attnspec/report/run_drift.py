"""The anchors of runs, and what they tell of the machine: by it intervals are widened (`attnspec.report.drift`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from attnspec.report.drift import Anchor, Drift, drift_of, shift
from attnspec.report.environment import environment, section
from attnspec.report.ratios import Pack, pack_time
from attnspec.report.run import OpenedRun
from attnspec.stats import median, seed_of

_CONDITIONS = (
    ("attnspec", "code_sha256"),
    ("attnspec", "plugins"),
    ("worker", "env"),
    ("worker", "variables"),
    ("worker", "versions"),
    ("worker", "cuda", "runtime"),
    ("worker", "cuda", "cudnn"),
    ("worker", "cuda", "nccl"),
)
"""What a time depends on beside its result_key (case, packages or image, driver, device model)."""


class AnchorKey(NamedTuple):
    """What was measured, and with what."""

    case_id: str
    pack: int
    result_key: str | None


def drift_between(base: OpenedRun, new: OpenedRun) -> Drift:
    """What the anchors of both runs tell of the machine.

    An anchor's change from run to run is the machine's only where nothing else that its time depends on changed.
    """
    old, now = anchors(base), anchors(new)
    shifts = [shift(old[key], now[key]) for key in old if key in now] if same_conditions(base, new) else []
    return drift_of(list(old.values()), list(now.values()), shifts)


def same_conditions(base: OpenedRun, new: OpenedRun) -> bool:
    """Whether code, plug-in files, the workers' packages, CUDA libraries and environment variables are known and alike.

    They are not where a run holds attempts of several states of the code: which of them had an anchor is not known. A
    kernel that was built anew under its old version is not seen.
    """
    if not (_tells_plugins(base) and _tells_plugins(new)):
        return False
    old, now = (environment(run) for run in (base, new))
    found = [(_at(old, names), _at(now, names)) for names in _CONDITIONS]
    return isinstance(found[0][0], str) and all(before == after for before, after in found)


def anchors(run: OpenedRun) -> dict[AnchorKey, Anchor]:
    """Every anchor of a run with all its times. Empty where provenance or samples are gone."""
    series: dict[AnchorKey, dict[str, list[Pack]]] = {}
    for writer, told in _notes(run, "anchor_again"):
        match told:
            case {"again_ns": [*again]} if all(map(_are_rounds, again)):  # every rank of an attempt notes the same
                held = series.setdefault(_key(told), {})
                held[_attempt(writer)] = [_time(rounds) for rounds in again]
    ends: dict[AnchorKey, float] = {}
    for _, told in _notes(run, "anchor"):
        key = _key(told)
        match told:  # all that earlier versions noted
            case {"when": "end", "median_ns": int() | float() as median_ns}:
                ends[key] = median_ns
        series.setdefault(key, {})
    standing = dict(zip(*(run.cells[name].to_pylist() for name in ("case_id", "result_key")), strict=True))
    found = {}
    for key, held in series.items():
        # Of an earlier attempt under other conditions no samples stand.
        first = _first(run, key) if key.result_key in (None, standing.get(key.case_id)) else None
        if first is None:
            continue
        again = [time for times in held.values() for time in times]
        if again:
            times = [time.median_ns for time in again]
            variance = median([_relative(time) for time in again])  # a burst during one excuses no other
        else:  # a single round
            times = [ends[key]] if key in ends else []
            variance = _relative(first) * first.num_rounds
        sizes = [len(times) for times in held.values() if times]
        found[key] = Anchor(
            times=[first.median_ns, *times],
            first_variance=_relative(first),
            again_variance=variance,
            attempts=[1 + sizes[0], *sizes[1:]] if len(sizes) > 1 else (),
        )
    return found


def attempts(run: OpenedRun) -> tuple[int, int]:
    """In how many attempts a run was measured, and in how many of these no anchor was measured again.

    Of runs of earlier versions, which did not measure it between workloads, nothing is told.
    """
    spent, again = (section(run.provenance, "workers", kind) for kind in ("spent", "anchor_again"))
    measured = {_attempt(writer) for writer in spent if section(spent, writer).get("measure")}
    watched = set(map(_attempt, again))
    return (len(measured), len(measured - watched)) if watched else (0, 0)


def _notes(run: OpenedRun, kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Notes of the workers that name a case and a pack, with who wrote them."""
    for writer, told in section(run.provenance, "workers", kind).items():
        match told:
            case {"case_id": str(), "pack": int()}:
                yield writer, told


def _attempt(writer: str) -> str:
    """The attempt in the name of what one attempt noted: `job-rank0-2`."""
    return writer.rpartition("-")[2]


def _tells_plugins(run: OpenedRun) -> bool:
    """Earlier versions recorded where plug-in files lay and not what was in them."""
    return bool(run.provenance.get("plugins")) or not section(run.provenance, "settings").get("plugins")


def _key(told: Mapping[str, Any]) -> AnchorKey:
    return AnchorKey(told["case_id"], told["pack"], told.get("result_key"))


def _are_rounds(told: object) -> bool:
    return isinstance(told, list) and all(
        isinstance(one, list) and all(type(time_ns) in (int, float) for time_ns in one) for one in told
    )


def _time(rounds: Sequence[Sequence[float]]) -> Pack:
    return pack_time(rounds, seed=seed_of("anchor"))


def _relative(time: Pack) -> float:
    return (time.variance_ns2 or 0.0) / time.median_ns**2


def _first(run: OpenedRun, key: AnchorKey) -> Pack | None:
    """The anchor's time in its place; None where its samples are gone."""
    timings = run.timings
    samples = timings.filter(pc.and_(pc.equal(timings["case_id"], key.case_id), pc.equal(timings["pack"], key.pack)))
    slowest = samples.group_by(["round", "iteration"]).aggregate([("elapsed_ns", "max")])
    values, rounds = (slowest[name].to_numpy() for name in ("elapsed_ns_max", "round"))
    held: list[NDArray[np.int64]] = [values[rounds == number] for number in np.unique(rounds)]
    return pack_time(held, seed=seed_of("anchor")) if held else None


def _at(held: Mapping[str, Any], names: Sequence[str]) -> Any:
    for name in names:
        held = held.get(name) or {}
    return held or None
