"""What moved all times of a run together, in words: drift while it ran and between runs, clocks, throttling."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from attnspec.report.drift import Anchor, Drift, shift
from attnspec.report.run import OpenedRun
from attnspec.report.run_drift import anchors, attempts, same_conditions

LEAST_CLOCK = 0.01


def drift_notes(
    base: OpenedRun, new: OpenedRun, ratios: Mapping[str, float], drift: Drift, *, threshold: float
) -> Iterator[str]:
    """Sentences; none where nothing moved. ratios: time of NEW over BASE per case_id that both measured."""
    yield from _anchor_notes(base, new, drift, threshold)
    if any(ratio != 1 for ratio in ratios.values()):  # else they are the very same samples
        yield from _scatter_notes(base, new, drift, len(ratios), threshold)
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
                yield (
                    f"the anchor case of {name} was {percent(ends)} when it was last measured again, so conditions "
                    "changed within that run: repeat it when nobody else uses the machine before a difference of that "
                    "size counts"
                )


def _scatter_notes(base: OpenedRun, new: OpenedRun, drift: Drift, num_cases: int, threshold: float) -> Iterator[str]:
    """What widens the intervals, where it alone is more than the threshold; and of which attempts nobody knows it."""
    reach = math.exp(drift.reach(num_cases))
    if reach > 1 + threshold:
        told = " and ".join(
            f"{low:.2f} to {high:.2f} times their first time in {name} ({again} x measured again)"
            for name, run in (("BASE", base), ("NEW", new))
            for low, high, again in _scatter(anchors(run).values())
        )
        yield (
            f"the machine moved while it was measured: anchor cases took {told}, more than their rounds explain; that "
            f"widens every interval by a factor of {reach:.3g} either way, so no case can be called the same"
        )
    for name, run in (("BASE", base), ("NEW", new)):
        measured, unwatched = attempts(run)
        if measured > 1 and unwatched:
            yield (
                f"{name} was measured in {measured} attempts, and in {unwatched} of these no anchor case was measured "
                "again, so how the machine moved there is not known"
            )


def _scatter(found: Iterable[Anchor]) -> Iterator[tuple[float, float, int]]:
    """Least and most of anchors' times over their first ones, and how often they were measured again, if ever."""
    known = [one for one in found if one.dof]
    if known:
        shares = [time / one.times[0] for one in known for time in one.times]
        yield min(shares), max(shares), sum(one.dof for one in known)


def percent(ratio: float) -> str:
    """A ratio of times in words.

    >>> percent(1.05), percent(0.9)
    ('5.0 % slower', '10.0 % faster')
    """
    return f"{abs(ratio - 1):.1%}".replace("%", " %") + (" slower" if ratio > 1 else " faster")


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
