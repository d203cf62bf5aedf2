"""Measured points beside the published ones: the ratio, and in words where and why they may differ. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from attnspec.drawing.cases import Cases
from attnspec.drawing.look import PASS_TITLES, Row, mask_title
from attnspec.drawing.throughput import point_of, published_points
from attnspec.report.published import READING_ERROR_TFLOPS
from attnspec.report.published_setup import differences
from attnspec.units import format_count

NOTABLE = 0.10
"""Measured and published throughput that differ by more than this share are spoken of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One measured row and the published point of the same device class, mask, pass, shape and size.

    ratio: measured over published throughput; None where either has none. notable: whether they differ by more than
    NOTABLE and the error of reading. differs: what else differs in the set-up. text: a few words where they disagree.
    """

    measured: Row
    published: Row
    ratio: float | None
    notable: bool
    differs: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """Notable pairs of one implementation, mask and pass in words, and each thing that differs in the set-up."""

    heading: str
    text: str
    differs: tuple[str, ...]


def pairs(cases: Cases) -> list[Pair]:
    """Every measured row that was run and has a published point, in the order of the rows."""
    points = published_points(cases.published)
    held = [(row, points.get(point_of(row))) for row in cases.measured if row["status"] != "skipped"]
    return [_pair(row, point) for row, point in held if point is not None]


def _pair(row: Row, point: Row) -> Pair:
    ours, theirs = row["tflops_per_gpu"], point["tflops_per_gpu"]
    differs = tuple(differences(row))
    if row["status"] != "ok" or ours is None or theirs is None:
        text = _one_sided(row, theirs)
        return Pair(measured=row, published=point, ratio=None, notable=False, differs=differs, text=text)
    ratio = ours / theirs
    # A value read off a small bar may be wrong by more than the threshold.
    notable = abs(ratio - 1) > NOTABLE + READING_ERROR_TFLOPS / theirs
    text = f"{against(ratio, ratio)} published" if notable else ""
    return Pair(measured=row, published=point, ratio=ratio, notable=notable, differs=differs, text=text)


def disagreements(found: Iterable[Pair]) -> list[Disagreement]:
    """Where measured and published differ by more than NOTABLE, in words, one per implementation, mask and pass."""
    groups: dict[tuple[object, ...], list[Pair]] = {}
    for pair in found:
        if pair.notable:
            row = pair.measured
            groups.setdefault((row["label"], row["mask"], row["mask_params"], row["pass"]), []).append(pair)
    made = []
    for held in groups.values():
        first = held[0].measured
        ratios = [pair.ratio for pair in held if pair.ratio is not None]
        told = dict.fromkeys(one for pair in held for one in pair.differs)
        sizes = [_size(pair.measured) for pair in held]
        where = sizes[0] if len(sizes) == 1 else f"{len(sizes)} sizes from {sizes[0]} to {sizes[-1]}"
        made.append(
            Disagreement(
                heading=f"{first['label']}: {_mask_and_pass(first)}",
                text=f"{against(min(ratios), max(ratios))} published at {where}",
                differs=tuple(told),
            )
        )
    return made


def shared_differences(found: Iterable[Disagreement]) -> tuple[str, ...]:
    """What differs in every one of several disagreements, so that it need be said once only."""
    held = [one.differs for one in found]
    return tuple(text for text in (held[0] if len(held) > 1 else ()) if all(text in one for one in held))


def against(low: float, high: float) -> str:
    """A span of measured over published throughput in words.

    >>> against(1.2, 1.34), against(0.57, 0.57), against(2.5, 12), against(0.8, 1.3)
    ('20 to 34% faster than', '43% slower than', '2.5 to 12 times as fast as', '0.80 to 1.30 times as fast as')
    """
    if high < 1:
        ends, unit = [f"{100 * (1 - ratio):.0f}" for ratio in (high, low)], "% slower than"
    elif low > 1 and high < 2:
        ends, unit = [f"{100 * (ratio - 1):.0f}" for ratio in (low, high)], "% faster than"
    else:
        ends = [f"{ratio:.{2 if ratio < 2 else 1 if ratio < 10 else 0}f}" for ratio in (low, high)]
        unit = " times as fast as"
    return f"{ends[0] if ends[0] == ends[1] else ' to '.join(ends)}{unit}"


def _one_sided(row: Row, theirs: float | None) -> str:
    if row["status"] == "ok":
        return "An X on the page; here it ran."
    if theirs is None:
        return f"An X on the page; {row['status']} here."
    return f"{theirs:g} TFLOP/s on the page; {row['status']} here."


def place_text(row: Row) -> str:
    """Where a pair stands: mask, pass and size in words."""
    return f"{_mask_and_pass(row)}, {_size(row)}"


def _mask_and_pass(row: Row) -> str:
    return f"{mask_title(row['mask'], row['mask_params'])}, {PASS_TITLES[row['pass']]}"


def _size(row: Row) -> str:
    return format_count(row["seqlen"]) if row["level"] == "kernel" else f"{row['cp_size']} {row['rank']}s"


def summary(found: Sequence[Pair]) -> str:
    """How measured and published compare over all pairs, in one sentence.

    >>> summary([])
    'No measured case matches a published point (device class, mask, pass, shape, size and kernel).'
    """
    if not found:
        return "No measured case matches a published point (device class, mask, pass, shape, size and kernel)."
    ratios = sorted(pair.ratio for pair in found if pair.ratio is not None)
    if not ratios:
        return f"{_cases(len(found))} a published point, but none has a throughput on both sides."
    middle, low, high = (ratio_text(ratio) for ratio in (ratios[len(ratios) // 2], ratios[0], ratios[-1]))
    within = sum(1 for pair in found if pair.ratio is not None and not pair.notable)
    return (
        f"{_cases(len(found))} a published point. Measured over published: median {middle}, from {low} to {high}; "
        f"{within} within 10 percent."
    )


def ratio_text(ratio: float) -> str:
    """A ratio with no more digits than values read off a figure allow.

    >>> ratio_text(0.987), ratio_text(12.34), ratio_text(175.01)
    ('0.99', '12.3', '175')
    """
    return f"{ratio:.{2 if ratio < 10 else 1 if ratio < 100 else 0}f}"


def _cases(count: int) -> str:
    return "1 case matches" if count == 1 else f"{count} cases match"
