"""Verdicts in words: who wins where and by how much, what is unstable, what did not run and why. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from attnspec.drawing.cases import by_picture, plain
from attnspec.drawing.look import PASS_TITLES, Row, mask_title
from attnspec.drawing.palette import ordered
from attnspec.report.reasons import first_line, kind_of, reasons_told
from attnspec.report.standings import Standing, doubts, standings, width_share
from attnspec.units import format_count

_GROUP = (
    *("level", "device", "mask", "mask_params", "pass"),
    *("batch", "num_heads_q", "num_heads_kv", "head_dim", "dtype"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is to be said of one group: a device, level, mask, pass and shape. rows: all that it was said of."""

    key: tuple[object, ...]
    heading: str
    text: str
    winners: tuple[str, ...]
    rows: Sequence[Row]


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    """One per group of which anything was run, in the order of the rows."""
    made = []
    for key, held in by_picture(rows, *_GROUP).items():
        places = standings(held)
        if places:
            first = held[0]
            name = mask_title(first["mask"], first["mask_params"])
            heading = plain(f"{name[0].upper()}{name[1:]}, {PASS_TITLES[first['pass']]}")
            text, winners = _text(places)
            made.append(Verdict(key=key, heading=heading, text=text, winners=winners, rows=held))
    return made


def _text(places: Sequence[Standing]) -> tuple[str, tuple[str, ...]]:
    places = sorted(places, key=lambda place: (place.rows[0]["cp_size"], place.rows[0]["seqlen"]))
    won = [place for place in places if place.winner is not None]
    if not won:
        rows = [row for place in places for row in place.rows]
        none = "has a throughput" if any(row["status"] == "ok" for row in rows) else "is ok"
        return f"No case {none}: {_why(rows)}.", ()
    alone = [place for place in won if len(place.ranked) == 1]
    raced = [place for place in won if len(place.ranked) > 1]
    parts: list[str] = []
    spans: dict[str, list[Standing]] = {}
    for place in raced:
        label = "" if place.tied or place.winner is None else place.winner["label"]
        spans.setdefault(label, []).append(place)
    order = sorted((label for label in spans if label), key=lambda label: -len(spans[label]))
    for label in order:
        held = spans[label]
        where = f" at {'both' if len(held) == 2 else f'all {len(held)}'} sizes"
        if len(held) < len(places) or len(held) == 1:
            where = f" at {_sizes(held, len(places))}"
        parts.append(f"{label} is fastest{where}, {_leads(held)}")
    ties: dict[tuple[str, str], list[Standing]] = {}
    for place in spans.get("", []):
        first, second = place.ranked[0], place.rival or place.ranked[1]
        ties.setdefault((first["label"], second["label"]), []).append(place)
    for (first_label, second_label), held in ties.items():
        parts.append(f"{first_label} and {second_label} are too close to call at {_sizes(held, len(places))}")
    for label in ordered(place.ranked[0]["label"] for place in alone):
        held = [place for place in alone if place.ranked[0]["label"] == label]
        parts.append(f"only {label} is ok at {_sizes(held, len(places))}")
    lost = [place for place in places if place.winner is None]
    if lost:
        parts.append(f"nothing that ran is ok at {_sizes(lost, len(places))}")
    return "; ".join(parts) + ".", tuple(order)


def _leads(places: Sequence[Standing]) -> str:
    leads = [(place.lead, place.ranked[1]["label"]) for place in places if place.lead is not None]
    if not leads:
        return "with nothing to compare"
    peers = {peer for _, peer in leads}
    ratios = [lead for lead, _ in leads]
    return f"{ahead(min(ratios), max(ratios))} {peers.pop() if len(peers) == 1 else 'the next'}"


def ahead(low: float, high: float) -> str:
    """A span of ratios of speeds in words: percent below 2, times above.

    >>> ahead(1.084, 1.2), ahead(1.004, 1.004), ahead(1.9, 2.31), ahead(48.2, 48.2)
    ('8 to 20% ahead of', '0.4% ahead of', '1.9 to 2.3 times as fast as', '48 times as fast as')
    """
    if high < 2:
        ends = [f"{100 * (ratio - 1):.{1 if ratio < 1.01 else 0}f}" for ratio in (low, high)]
        return f"{ends[0]}% ahead of" if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}% ahead of"
    ends = [f"{ratio:.{1 if ratio < 10 else 0}f}" for ratio in (low, high)]
    return f"{ends[0] if ends[0] == ends[1] else ' to '.join(ends)} times as fast as"


def _size(row: Row) -> str:
    size = format_count(row["seqlen"])
    return f"{row['cp_size']} {row['rank']}s ({size})" if row["level"] == "distributed" else size


def _sizes(places: Sequence[Standing], of_all: int) -> str:
    names = list(dict.fromkeys(_size(place.rows[0]) for place in places))
    if len(names) > 6:
        return f"{len(names)} of {of_all} sizes"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _why(rows: Iterable[Row]) -> str:
    counts = Counter(
        (row["status"], row["reason_code"] or ("no samples" if row["status"] == "ok" else row["status"]))
        for row in rows
    )
    return ", ".join(f"{count} {status} ({code.replace('_', ' ')})" for (status, code), count in counts.most_common(4))


@dataclass(frozen=True, slots=True, kw_only=True)
class Absence:
    """Why some cases of one implementation did not end ok. reason: the library's words, as `reasons_told` has them."""

    label: str
    status: str
    code: str
    reason: str
    count: int


def absences(rows: Iterable[Row]) -> list[Absence]:
    """One per implementation, status and kind of reason, most frequent first; cases left out are not among them."""
    told: dict[tuple[str, str, str, str], list[str]] = {}
    for row in rows:
        if row["status"] not in ("ok", "skipped"):
            first = plain(first_line(row["reason"]))
            what = kind_of(first)[0] if first else ""
            told.setdefault((row["label"], row["status"], row["reason_code"] or "", what), []).append(first)
    return [
        Absence(label=label, status=status, code=code, reason=reasons_told(held) if what else "", count=len(held))
        for (label, status, code, what), held in sorted(told.items(), key=lambda item: -len(item[1]))
    ]


def shaky(rows: Iterable[Row]) -> list[tuple[Row, str]]:
    """Rows to be read with care, those without an interval and then the widest first, each with why."""
    found = [(row, ", ".join(doubts(row))) for row in rows if doubts(row)]

    def width(item: tuple[Row, str]) -> float:
        share = width_share(item[0])
        return math.inf if share is None else share

    return sorted(found, key=width, reverse=True)
