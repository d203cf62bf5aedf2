"""What moved all times of a run together: clocks, throttling, drift while it ran and between runs.

Anchors give a number for it, by which intervals are widened (`attnspec.report.drift`); the rest is told in words.
"""

from __future__ import annotations

import math
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

LEAST_CLOCK = 0.01
_CONDITIONS = (
    ("attnspec", "code_sha256"),
    ("attnspec", "plugins"),
    ("worker", "env"),
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


Anchors = Mapping[AnchorKey, Anchor]


def drift_between(base: OpenedRun, new: OpenedRun) -> Drift:
    """What the anchors of both runs tell of the machine.

    An anchor's change from run to run is the machine's only where nothing else that its time depends on changed.
    """
    old, now = anchors(base), anchors(new)
    shifts = [shift(old[key], now[key]) for key in old if key in now] if same_conditions(base, new) else []
    return drift_of(list(old.values()), list(now.values()), shifts)


def same_conditions(base: OpenedRun, new: OpenedRun) -> bool:
    """Whether code, plug-in files, the workers' packages, CUDA libraries and environment variables are known and alike.

    A kernel that was built anew under its old version is not seen.
    """
    if not (_tells_plugins(base) and _tells_plugins(new)):
        return False
    old, now = (environment(run) for run in (base, new))
    found = [(_at(old, names), _at(now, names)) for names in _CONDITIONS]
    return found[0][0] is not None and all(before == after for before, after in found)


def anchors(run: OpenedRun) -> dict[AnchorKey, Anchor]:
    """Every anchor of a run with all its times. Empty where provenance or samples are gone."""
    series: dict[AnchorKey, list[list[Pack]]] = {}
    for told in _notes(run, "anchor_again"):
        match told:  # every rank notes the same
            case {"again_ns": [*again]}:
                series.setdefault(_key(told), []).append([_time(rounds) for rounds in again])
    ends: dict[AnchorKey, float] = {}
    for told in _notes(run, "anchor"):
        key = _key(told)
        match told:  # all that earlier versions noted
            case {"when": "end", "median_ns": int() | float() as median_ns}:
                ends[key] = median_ns
        series.setdefault(key, [])
    standing = dict(zip(*(run.cells[name].to_pylist() for name in ("case_id", "result_key")), strict=True))
    found = {}
    for key, held in series.items():
        # Of an earlier attempt under other conditions no samples stand.
        first = _first(run, key) if key.result_key in (None, standing.get(key.case_id)) else None
        if first is None:
            continue
        again = [time for times in _distinct(held) for time in times]
        if again:
            times = [time.median_ns for time in again]
            variance = median([_relative(time) for time in again])  # a burst during one excuses no other
        else:  # a single round
            times = [ends[key]] if key in ends else []
            variance = _relative(first) * first.num_rounds
        found[key] = Anchor(times=[first.median_ns, *times], first_variance=_relative(first), again_variance=variance)
    return found


def drift_notes(
    base: OpenedRun, new: OpenedRun, ratios: Mapping[str, float], drift: Drift, *, threshold: float
) -> Iterator[str]:
    """Sentences; none where nothing moved. ratios: time of NEW over BASE per case_id that both measured."""
    yield from _anchor_notes(base, new, drift, threshold)
    medians = _by_kernel(base, ratios)
    if len(medians) > 1:
        for way in (1, -1):
            least = min(way * (median - 1) for median in medians)
            if least > threshold / 3:
                yield (
                    f"all {len(medians)} kernels are {percent(1 + way * least)} or more, by their median cases: that "
                    "is rather the machine than each of them"
                )
    old, now = (_clock(run, ratios) for run in (base, new))
    if old and now and abs(now / old - 1) > LEAST_CLOCK:
        yield f"the median SM clock was {old:.0f} MHz in BASE and {now:.0f} MHz in NEW"
    for name, run in (("BASE", base), ("NEW", new)):
        throttled = _throttled(run, ratios)
        if throttled:
            cases = "1 case was" if throttled == 1 else f"{throttled} cases were"
            yield f"{cases} throttled in {name}"


def _anchor_notes(base: OpenedRun, new: OpenedRun, drift: Drift, threshold: float) -> Iterator[str]:
    held = {"BASE": anchors(base), "NEW": anchors(new)}
    for moved in (drift.low, drift.high):
        if abs(math.expm1(moved)) > threshold / 3:
            yield (
                f"the machine was {percent(math.exp(moved))} in NEW, by an anchor case of which nothing else is known "
                "to have changed; intervals hold with that and without"
            )
    if not same_conditions(base, new):
        for key, old in held["BASE"].items():
            now = next((one for other, one in held["NEW"].items() if other[:2] == key[:2]), None)
            if now is not None and abs(math.expm1(shift(old, now))) > threshold:
                yield (
                    f"the anchor case was {percent(math.exp(shift(old, now)))} in NEW, and code, plug-ins, packages or "
                    "environment variables differ, so that nobody can tell whether that is the machine"
                )
    if not drift.dof:
        yield "no anchor case was measured again, so intervals know only how rounds of one run differ"
    for name, found in held.items():
        for anchor in found.values():
            ends = anchor.times[-1] / anchor.times[0]
            if anchor.dof and abs(ends - 1) > threshold:
                yield f"the anchor case of {name} was {percent(ends)} when it was last measured again"


def percent(ratio: float) -> str:
    """A ratio of times in words.

    >>> percent(1.05), percent(0.9)
    ('5.0 % slower', '10.0 % faster')
    """
    return f"{abs(ratio - 1):.1%}".replace("%", " %") + (" slower" if ratio > 1 else " faster")


def _notes(run: OpenedRun, kind: str) -> Iterator[dict[str, Any]]:
    """Notes of the workers that name a case and a pack."""
    for told in section(run.provenance, "workers", kind).values():
        match told:
            case {"case_id": str(), "pack": int()}:
                yield told


def _tells_plugins(run: OpenedRun) -> bool:
    """Earlier versions recorded where plug-in files lay and not what was in them."""
    return bool(run.provenance.get("plugins")) or not section(run.provenance, "settings").get("plugins")


def _key(told: Mapping[str, Any]) -> AnchorKey:
    return AnchorKey(told["case_id"], told["pack"], told.get("result_key"))


def _time(rounds: Sequence[Sequence[float]]) -> Pack:
    return pack_time(rounds, seed=seed_of("anchor"))


def _relative(time: Pack) -> float:
    return (time.variance_ns2 or 0.0) / time.median_ns**2


def _distinct(series: Sequence[list[Pack]]) -> list[list[Pack]]:
    """Every attempt's once, although each of its ranks noted them."""
    return [one for number, one in enumerate(series) if one not in series[:number]]


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


def _by_kernel(run: OpenedRun, ratios: Mapping[str, float]) -> list[float]:
    """The median ratio of each kernel's cases."""
    groups: dict[str, list[float]] = {}
    for case_id, kernel in zip(run.cells["case_id"].to_pylist(), run.cells["kernel"].to_pylist(), strict=True):
        if case_id in ratios:
            groups.setdefault(kernel, []).append(ratios[case_id])
    return [float(np.median(held)) for held in groups.values()]


def _clock(run: OpenedRun, wanted: Mapping[str, float]) -> float | None:
    columns = zip(run.cells["case_id"].to_pylist(), run.cells["sm_clock_mhz"].to_pylist(), strict=True)
    clocks = [clock for case_id, clock in columns if case_id in wanted and clock is not None]
    return float(np.median(clocks)) if clocks else None


def _throttled(run: OpenedRun, wanted: Mapping[str, float]) -> int:
    columns = zip(run.cells["case_id"].to_pylist(), run.cells["throttled"].to_pylist(), strict=True)
    return sum(bool(throttled) for case_id, throttled in columns if case_id in wanted)
