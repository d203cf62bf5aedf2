"""What moved all times of a run together: clocks, throttling, drift while it ran. Told beside a comparison, in words.

A comparison's intervals know how rounds of one run differ. They cannot know how the same machine differs from day to
day; these are the signs of it that a run records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow.compute as pc

from attnspec.report.environment import section
from attnspec.report.run import OpenedRun

LEAST_CLOCK = 0.01


def drift_notes(base: OpenedRun, new: OpenedRun, ratios: Mapping[str, float], *, threshold: float) -> Iterator[str]:
    """Sentences; none where nothing moved. ratios: time of NEW over BASE per case_id that both measured."""
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
        for drift in anchor_drifts(run):
            if abs(drift - 1) > threshold:
                yield f"the anchor case of {name} was {percent(drift)} when it was measured again at the end of a job"


def anchor_drifts(run: OpenedRun) -> list[float]:
    """Per anchor case: its time at the end of its job over its time when it was measured in its place."""
    ends: dict[tuple[str, int], float] = {}
    for anchor in section(run.provenance, "workers", "anchor").values():
        match anchor:  # every rank notes the same: the slowest rank's times
            case {"when": "end", "case_id": str(case_id), "pack": int(pack), "median_ns": int() | float() as median_ns}:
                ends[case_id, pack] = median_ns
    medians = {key: _median_ns(run, *key) for key in ends}
    return [end / median for key, end in ends.items() if (median := medians[key])]


def percent(ratio: float) -> str:
    """A ratio of times in words.

    >>> percent(1.05), percent(0.9)
    ('5.0 % slower', '10.0 % faster')
    """
    return f"{abs(ratio - 1):.1%}".replace("%", " %") + (" slower" if ratio > 1 else " faster")


def _median_ns(run: OpenedRun, case_id: str, pack: int) -> float | None:
    timings = run.timings
    samples = timings.filter(pc.and_(pc.equal(timings["case_id"], case_id), pc.equal(timings["pack"], pack)))
    slowest = samples.group_by(["round", "iteration"]).aggregate([("elapsed_ns", "max")])["elapsed_ns_max"]
    return float(np.median(slowest.to_numpy())) if len(slowest) else None


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
