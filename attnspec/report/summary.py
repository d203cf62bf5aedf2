"""The end of a run in a terminal: per mask and pass, throughput of every implementation over seqlen or cp_size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from rich.console import Group
from rich.table import Table
from rich.text import Text

from attnspec.drawing.look import PASS_TITLES, STATUS_MARKS, Row, implementation, labelled, mask_title, ordered
from attnspec.units import format_count

_Key = tuple[str, str, str, str]


def summary_tables(cells: pa.Table) -> Iterator[Group]:
    """One titled table per level, mask and pass. The fastest of a column is starred; marks stand for other statuses."""
    groups: dict[_Key, list[Row]] = {}
    for row in cells.to_pylist():
        groups.setdefault((row["level"], row["mask"], row["mask_params"], row["pass"]), []).append(row)
    for (level, mask, mask_params, pass_), rows in groups.items():
        by_rank = level == "distributed"
        unit = "TFLOP/s per GPU, over cp_size" if by_rank else "TFLOP/s, over seqlen"
        title = f"{mask_title(mask, mask_params)}, {PASS_TITLES[pass_]} ({unit})"
        over, metric = ("cp_size", "tflops_per_gpu") if by_rank else ("seqlen", "tflops")
        yield Group(Text(title, style="bold"), _table(rows, over, metric))


def _table(rows: Sequence[Row], over: str, metric: str) -> Table:
    table = Table()
    columns = sorted({row[over] for row in rows})
    held = {}
    for label, row in labelled(rows):
        sizes = f", {format_count(row['seqlen_per_rank'])}/rank" if row["level"] == "distributed" else ""
        held[label + sizes, row[over]] = row
    labels = ordered(label for label, _ in held)
    table.add_column("")
    for column in columns:
        table.add_column(format_count(column) if over == "seqlen" else str(column), justify="right")
    best = {
        column: max((row[metric] for row in rows if row[over] == column and row[metric] is not None), default=None)
        for column in columns
    }
    for label in labels:
        table.add_row(label, *(_entry(held.get((label, column)), metric, best[column]) for column in columns))
    return table


def _entry(row: Row | None, metric: str, best: float | None) -> Text:
    if row is None:
        return Text("")
    if row["status"] != "ok":
        return Text(STATUS_MARKS[row["status"]], style="dim" if row["status"] in ("skipped", "unsupported") else "red")
    value = row[metric]
    if value is None:
        return Text("ok")
    return Text(f"{figure(value)}*", style="bold green") if value == best else Text(f"{figure(value)} ")


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


def status_line(rows: Iterable[Row]) -> str:
    """How many cases ended how, in words.

    >>> status_line([{"status": "ok"}, {"status": "oom"}, {"status": "ok"}])
    '3 cases: 2 ok, 1 oom'
    """
    counts = Counter(row["status"] for row in rows)
    total = sum(counts.values())
    told = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    return f"{total} {'case' if total == 1 else 'cases'}: {told}"


def reasons(rows: Iterable[Row], limit: int = 12) -> list[str]:
    """One line per distinct reason among the cases that are not ok, most frequent first."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for row in rows:
        if row["status"] not in ("ok", "skipped"):
            first = (row["reason"] or "").strip().splitlines() or [""]
            counts[implementation(row), f"{row['status']} ({row['reason_code']})", first[0]] += 1
    lines = [f"{who}: {what}, {count} x: {why}" for (who, what, why), count in counts.most_common(limit)]
    left = len(counts) - len(lines)
    return [*lines, f"... and {left} more reasons, in cells.parquet"] if left > 0 else lines
