"""The end of a run in a terminal: per mask and pass, throughput of every implementation over seqlen or cp_size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from rich.console import Group
from rich.table import Table
from rich.text import Text

from attnspec.drawing.cases import by_picture, rank_word
from attnspec.drawing.look import PASS_TITLES, STATUS_MARKS, Row, labelled, mask_title
from attnspec.drawing.palette import ordered
from attnspec.report.standings import meets, standings
from attnspec.report.verdicts import absences
from attnspec.units import format_count

_Key = tuple[str, str, str, str]


def summary_tables(cells: pa.Table, *, width: int = 160, ranked: bool = True) -> Iterator[Group]:
    """One titled table per level, mask and pass; in parts below each other where it is wider than `width` characters.

    ranked: the highest of a column and length is starred, what cannot be told apart from it (the intervals meet) has a
    ~. Marks stand for statuses other than ok.
    """
    groups: dict[_Key, list[tuple[str, Row]]] = {}
    held = cells.to_pylist()
    rank = rank_word(held)
    for label, row in labelled(held):
        groups.setdefault((row["level"], row["mask"], row["mask_params"], row["pass"]), []).append((label, row))
    for (level, mask, mask_params, pass_), rows in groups.items():
        by_rank = level == "distributed"
        unit = f"TFLOP/s per {rank}, over cp_size" if by_rank else "TFLOP/s, over seqlen"
        title = f"{mask_title(mask, mask_params)}, {PASS_TITLES[pass_]} ({unit})"
        over, metric = ("cp_size", "tflops_per_gpu") if by_rank else ("seqlen", "tflops")
        yield Group(Text(title, style="bold"), *_tables(rows, over, metric, width, ranked=ranked))


def _tables(cases: Sequence[tuple[str, Row]], over: str, metric: str, width: int, *, ranked: bool) -> Iterator[Table]:
    rows = [row for _, row in cases]
    columns = sorted({row[over] for row in rows})
    held = {}
    for label, row in cases:
        sizes = f", {format_count(row['seqlen_per_rank'])}/rank" if row["level"] == "distributed" else ""
        held[label + sizes, row[over]] = row
    labels = ordered(label for label, _ in held)
    groups = by_picture(rows, over, "seqlen") if ranked else {}
    best = {place: _best(group, metric) for place, group in groups.items()}
    heads = [format_count(column) if over == "seqlen" else str(column) for column in columns]
    entries = {
        (label, column): _entry(held.get((label, column)), metric, best, over) for label in labels for column in columns
    }
    widths = [
        max([len(head), *(entries[label, column].cell_len for label in labels)]) + _BORDER
        for head, column in zip(heads, columns, strict=True)
    ]
    room = max(width - min(max(map(len, labels)), width // 2) - _BORDER - 1, 1)
    for part in _parts(widths, room):
        table = Table()
        table.add_column("", overflow="fold")
        for place in part:
            table.add_column(heads[place], justify="right", no_wrap=True)
        for label in labels:
            table.add_row(label, *(entries[label, columns[place]] for place in part))
        yield table


_BORDER = 3
"""Characters between columns: a line and a space on either side."""


def _parts(widths: Sequence[int], room: int) -> Iterator[list[int]]:
    """Places of columns that fit side by side.

    >>> list(_parts([5, 5, 5], 10)), list(_parts([20], 10))
    ([[0, 1], [2]], [[0]])
    """
    part: list[int] = []
    for place, width in enumerate(widths):
        if part and sum(widths[one] for one in part) + width > room:
            yield part
            part = []
        part.append(place)
    yield part


def _best(rows: Iterable[Row], metric: str) -> Row | None:
    return max((row for row in rows if row[metric] is not None), key=lambda row: float(row[metric]), default=None)


def _entry(row: Row | None, metric: str, bests: Mapping[tuple[Any, ...], Row | None], over: str) -> Text:
    if row is None:
        return Text("")
    if row["status"] != "ok":
        return Text(STATUS_MARKS[row["status"]], style="dim" if row["status"] in ("skipped", "unsupported") else "red")
    value = row[metric]
    if value is None:
        return Text("ok")
    best = bests.get((row[over], row["seqlen"]))
    if best is None:
        return Text(figure(value))
    if value == best[metric]:
        return Text(f"{figure(value)}*", style="bold green")
    return Text(f"{figure(value)}{'~' if meets(row, best) else ' '}")


def winners(rows: Iterable[Row]) -> list[str]:
    """Who is fastest how often, on one line; nothing where no two implementations measured the same.

    Where the intervals of several meet, nobody can tell which of them is, so all are named.
    """
    named = ({**row, "label": label} for label, row in labelled(list(rows)))
    contests = [one for one in standings(named) if len(one.ranked) > 1]
    counts = Counter(frozenset(row["label"] for row in (one.ranked[0], *one.peers)) for one in contests)
    if not counts:
        return []
    alone = [(" or ".join(names), count) for names, count in counts.most_common() if len(names) == 1]
    tied = [(" or ".join(sorted(names)), count) for names, count in counts.most_common() if len(names) > 1]
    if left := sum(count for _, count in tied[_MOST_TIES:]):
        tied = [*tied[:_MOST_TIES], ("others that are not told apart", left)]
    told = ", ".join(f"{who} {count}" for who, count in (*alone, *tied))
    return [f"fastest, of {len(contests)} comparison{'' if len(contests) == 1 else 's'}: {told}"]


_MOST_TIES = 4
"""Sets of implementations that are named; a noisy machine may have as many as comparisons."""


def figure(value: float) -> str:
    """Three significant digits, and whole numbers from 100 on.

    >>> figure(0.012345), figure(1.5), figure(612.34)
    ('0.0123', '1.50', '612')
    """
    if value == 0:
        return "0"
    digits = max(0, 2 - _exponent(value))
    return f"{value:.{digits}f}"


def _exponent(value: float) -> int:
    return int(f"{value:e}".partition("e")[2])


def outcome_word(row: Row) -> str:
    """A case's status for people: one whose turn has not come, or was cut short, is not skipped.

    >>> outcome_word({"status": "skipped", "reason_code": "not_run"}), outcome_word({"status": "oom"})
    ('not measured yet', 'oom')
    """
    unfinished = {"not_run": "not measured yet", "interrupted": "interrupted"}
    return str(unfinished.get(row["reason_code"], "skipped") if row["status"] == "skipped" else row["status"])


def status_line(rows: Iterable[Row]) -> str:
    """How many cases ended how, in words.

    >>> status_line([{"status": "ok"}, {"status": "oom"}, {"status": "ok"}])
    '3 cases: 2 ok, 1 oom'
    """
    counts = Counter(map(outcome_word, rows))
    total = sum(counts.values())
    told = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    return f"{total} {'case' if total == 1 else 'cases'}: {told}"


def rehearsal_line(rows: Sequence[Row]) -> str:
    """How many cases a rehearsal ran, and of which implementations it could run none or not all.

    >>> ran = {"status": "ok", "strategy": None, "kernel": "sdpa", "backend": None}
    >>> rehearsal_line([ran, {**ran, "status": "unsupported", "kernel": "fa3"}])
    'rehearsed 1 of 2 cases; not proved by this rehearsal: fa3 1'
    >>> rehearsal_line([ran])
    'rehearsed 1 of 1 case'
    """
    left = Counter(label for label, row in labelled(rows) if row["status"] in ("unsupported", "skipped"))
    line = f"rehearsed {len(rows) - left.total()} of {len(rows)} {'case' if len(rows) == 1 else 'cases'}"
    told = ", ".join(f"{who} {count}" for who, count in left.most_common())
    return f"{line}; not proved by this rehearsal: {told}" if told else line


def reasons(rows: Iterable[Row], limit: int = 12) -> list[str]:
    """One line per kind of reason among the cases that are not ok, most frequent first."""
    found = absences({**row, "label": label} for label, row in labelled(list(rows)))
    lines = [f"{one.label}: {one.status} ({one.code}), {one.count} x: {one.reason}" for one in found[:limit]]
    left = len(found) - len(lines)
    return [*lines, f"... and {left} more reasons, in cells.parquet"] if left > 0 else lines
