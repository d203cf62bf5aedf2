"""Two runs held against each other, case by case: what became slower, faster, stayed the same, or cannot be told.

docs/adr/0006-comparing-runs.md says why verdicts are what they are.
"""

from __future__ import annotations

import filecmp
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from attnspec.drawing.look import PASS_TITLES, implementation, labelled, mask_title, worded
from attnspec.errors import InputError
from attnspec.launch.provenance import differences
from attnspec.launch.rehearsal import is_rehearsal
from attnspec.record.status import Status
from attnspec.report.drift import STEADY, Drift
from attnspec.report.drift_notes import drift_notes
from attnspec.report.environment import environment
from attnspec.report.ratios import Ratio, case_time, ratios
from attnspec.report.run import OpenedRun, open_run
from attnspec.report.run_drift import drift_between
from attnspec.report.whole_rounds import Packs, samples_by_case, whole_packs
from attnspec.stats import median
from attnspec.units import format_count

THRESHOLD = 0.03
"""Smaller changes than this are nobody's alarm: two runs on one machine may differ by 1 or 2 percent."""

ASKED = (
    *("level", "kernel", "strategy", "mask", "mask_params", "seqlen", "cp_size", "env", "pass", "batch"),
    *("num_heads_q", "num_heads_kv", "head_dim", "dtype", "num_packs"),
)
"""Columns that the spec decides."""
COUNTED = ("mask_area", "flops")
"""Columns that follow from the packs; null where nothing was sampled."""

_ITSELF = Ratio(1.0, 1.0, 1.0)

Row = Mapping[str, Any]


class Verdict(StrEnum):
    """Of one case. Only `slower` is a regression."""

    SAME = "same"
    FASTER = "faster"
    SLOWER = "slower"
    AMBIGUOUS = "ambiguous"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A case that both runs measured. ratio: NEW's time over BASE's, its high infinite where nothing bounds it.

    drowned: ambiguous only for the machine's own drift; by rounds alone it would be slower or faster.
    """

    case_id: str
    title: str
    base_ms: float
    new_ms: float
    ratio: Ratio
    verdict: Verdict
    drowned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A case that is ok in one run only. status and reason are of the other run."""

    case_id: str
    title: str
    status: str
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What came out. broken: ok in BASE, tried and not ok in NEW. mended: the other way round.

    not_run: ok in one run and not tried in the other. untimed: ok in both, of which one is a rehearsal. only_base,
    only_new: cases that the other run's spec lacks.
    drift: what the machine did. environment: one line per difference. notes: sentences on what may have moved times.
    """

    base: str
    new: str
    threshold: float
    pairs: Sequence[Pair]
    broken: Sequence[Change]
    mended: Sequence[Change]
    not_run: int
    untimed: int
    only_base: int
    only_new: int
    drift: Drift
    environment: Sequence[str]
    notes: Sequence[str]

    @property
    def regressions(self) -> int:
        """Cases that are slower or broken."""
        return sum(pair.verdict is Verdict.SLOWER for pair in self.pairs) + len(self.broken)

    @property
    def drowned(self) -> Sequence[Pair]:
        """Changes that cannot be told from the machine's own drift."""
        return [pair for pair in self.pairs if pair.drowned]

    @property
    def exit_code(self) -> int:
        """1 with a regression, else 0."""
        return 1 if self.regressions else 0


_ONE_RUN = "BASE and NEW are the same run, which cannot differ from itself"
_UNTIMED = "times of a rehearsal say nothing: only how cases ended is compared"


def compare_runs(base_dir: str | Path, new_dir: str | Path, *, threshold: float = THRESHOLD) -> Comparison:
    """Compare two run folders (or exports of runs). Of a rehearsal only how its cases ended: its times say nothing.

    Raises InputError where they did not measure the same: shapes, masks or packs of a case differ, or no case is in
    both.
    """
    base, new = open_run(base_dir), open_run(new_dir)
    held, other = _measured(base), _measured(new)
    common = [case_id for case_id in held if case_id in other]
    if not common:
        raise InputError(f"{base_dir} and {new_dir} have no case in common: {_what_differs(held, other)}")
    for case_id in common:
        _check_same_ask(held[case_id], other[case_id])
    _check_same_artifacts(base, new)
    both = [case_id for case_id in common if held[case_id]["status"] == other[case_id]["status"] == Status.OK]
    rehearsed = any(is_rehearsal(run.provenance) for run in (base, new))
    both, untimed = ([], len(both)) if rehearsed else (both, 0)
    drift = STEADY if rehearsed else drift_between(base, new)
    titles = {row["case_id"]: case_title(row, label) for label, row in labelled(list(held.values()))}
    pairs = _pairs(base, new, both, held, titles, threshold, drift)
    moved = {pair.case_id: pair.ratio.ratio for pair in pairs}
    broken, mended, not_run = _changes(common, held, other, titles)
    return Comparison(
        base=str(base_dir),
        new=str(new_dir),
        threshold=threshold,
        pairs=pairs,
        broken=broken,
        mended=mended,
        not_run=not_run,
        untimed=untimed,
        only_base=len(held) - len(common),
        only_new=len(other) - len(common),
        drift=drift,
        environment=differences(environment(base), environment(new)),
        notes=[
            *([_ONE_RUN] if base.place.samefile(new.place) else []),
            *([_UNTIMED] if rehearsed else drift_notes(base, new, moved, drift, threshold=threshold)),
        ],
    )


def verdict_of(ratio: Ratio, threshold: float, drift: Drift = STEADY) -> Verdict:
    """What an interval says. A change is one that chance cannot explain and that is as large as the threshold.

    It must be that large also where the machine's own movement is taken off.

    >>> [str(verdict_of(Ratio(*one), 0.03)) for one in ((1, 0.99, 1.01), (1.05, 1.01, 1.09), (1.02, 1.01, 1.04))]
    ['same', 'slower', 'ambiguous']
    >>> str(verdict_of(Ratio(1.12, 1.01, 1.13), 0.03, Drift(high=0.1)))
    'ambiguous'
    """
    most = 1 + threshold
    if ratio.low > 1 and ratio.ratio / math.exp(drift.high) >= most:
        return Verdict.SLOWER
    if ratio.high < 1 and ratio.ratio / math.exp(drift.low) <= 1 / most:
        return Verdict.FASTER
    return Verdict.SAME if 1 / most <= ratio.low and ratio.high <= most else Verdict.AMBIGUOUS


def _measured(run: OpenedRun) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    for row in run.cells.to_pylist():
        if row["source"] == "measured":
            if row["case_id"] in rows:
                raise InputError(f"{run.place}: case {row['case_id']} stands in cells.parquet more than once")
            rows[row["case_id"]] = row
    return rows


def _what_differs(base: Mapping[str, Row], new: Mapping[str, Row]) -> str:
    """In which of the columns that a spec decides two runs without a common case differ."""
    told = []
    for name in ASKED:
        old, now = ({str(row[name]) for row in rows.values()} for rows in (base, new))
        if old != now:
            told.append(f"{name} is {_short(old)} and {_short(now)}")
    return "; ".join(told) or "they differ in seed, length data, parameters or environment of each"


def _short(values: set[str]) -> str:
    shown = sorted(values, key=lambda text: (len(text), text))
    return ", ".join(shown[:4]) + (f" and {len(shown) - 4} more" if len(shown) > 4 else "") if shown else "nothing"


def _check_same_ask(base: Row, new: Row) -> None:
    for name in (*ASKED, *COUNTED):
        old, now = base[name], new[name]
        if old != now and not (name in COUNTED and None in (old, now)):
            raise InputError(
                f"case {base['case_id']} ({case_title(base)}): {name} is {old} in one run and {now} in the other; "
                "only runs of the same shapes, masks and packs can be compared"
            )


def _check_same_artifacts(base: OpenedRun, new: OpenedRun) -> None:
    """Packs and slices of one id are one content; a file that differs was made by something else."""
    for pattern in ("packs-*.arrow", "slices-*.arrow"):
        for file in sorted((base.path / "artifacts").glob(pattern)):
            other = new.path / "artifacts" / file.name
            if other.is_file() and not filecmp.cmp(file, other, shallow=False) and _table(file) != _table(other):
                what = "packs" if file.name.startswith("packs") else "slices of a mask"
                raise InputError(
                    f"artifacts/{file.name} of {base.place} and of {new.place} differ: the runs measured other {what}; "
                    "only runs of the same shapes, masks and packs can be compared"
                )


def _table(file: Path) -> pa.Table:
    try:
        with pa.OSFile(str(file)) as source:
            return pa.ipc.open_file(source).read_all()
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{file}: cannot be read: {error}") from None


def _pairs(
    base: OpenedRun,
    new: OpenedRun,
    both: Sequence[str],
    rows: Mapping[str, Row],
    titles: Mapping[str, str],
    threshold: float,
    drift: Drift,
) -> list[Pair]:
    ranks = {case_id: rows[case_id]["cp_size"] for case_id in both}
    old, now = dict(samples_by_case(base, ranks)), dict(samples_by_case(new, ranks))
    packs = {
        case_id: tuple(whole_packs(run, rows[case_id], side[case_id]) for run, side in ((base, old), (new, now)))
        for case_id in both
    }
    others = [case_id for case_id in both if not old[case_id].equals(now[case_id])]
    # One name for both sides: the runs the other way round give the reciprocal intervals.
    times = [tuple(case_time(side, name=one) for side in packs[one]) for one in others]
    by_rounds, found = (
        dict(zip(others, ratios([(before, after) for before, after in times], drift=known), strict=True))
        for known in (STEADY, drift)
    )
    pairs = []
    for case_id in both:
        # The very same samples are one measurement; nothing about their ratio is left to chance.
        ratio = found.get(case_id, _ITSELF)
        verdict = verdict_of(ratio, threshold, drift) if case_id in found else Verdict.SAME
        alone = verdict_of(by_rounds.get(case_id, _ITSELF), threshold)
        pairs.append(
            Pair(
                case_id=case_id,
                title=titles[case_id],
                base_ms=_milliseconds(packs[case_id][0]),
                new_ms=_milliseconds(packs[case_id][1]),
                ratio=ratio,
                verdict=verdict,
                drowned=verdict is Verdict.AMBIGUOUS and alone in (Verdict.SLOWER, Verdict.FASTER),
            )
        )
    return pairs


def _milliseconds(packs: Packs) -> float:
    return sum(median(np.concatenate(rounds)) for rounds in packs) / len(packs) / 1e6


def _changes(
    common: Sequence[str], base: Mapping[str, Row], new: Mapping[str, Row], titles: Mapping[str, str]
) -> tuple[list[Change], list[Change], int]:
    """Broken, mended, and how many were simply not run in one of the two."""
    broken: list[Change] = []
    mended: list[Change] = []
    not_run = 0
    for case_id in common:
        old, now = base[case_id], new[case_id]
        was, is_ = (row["status"] == Status.OK for row in (old, now))
        if was == is_:
            continue
        other = now if was else old
        if other["status"] == Status.SKIPPED:
            not_run += 1
            continue
        (broken if was else mended).append(
            Change(case_id=case_id, title=titles[case_id], status=other["status"], reason=other["reason"])
        )
    return broken, mended, not_run


def case_title(row: Row, label: str | None = None) -> str:
    """A case in a few words. label: what tells it from the others of its run."""
    name = label or implementation(row)
    ranks = f" x {row['cp_size']}" if row["level"] == "distributed" else ""
    env = "" if row["env"] == "{}" or worded(row["env"]) in name else f", {row['env']}"
    mask = mask_title(row["mask"], row["mask_params"])
    return f"{name}{ranks}, {mask}, {format_count(row['seqlen'])}, {PASS_TITLES[row['pass']]}{env}"
