"""speed_against_fastest: a heat map of every case's throughput as a share of the fastest peer's on the same workload.

One row a workload, one column an implementation: who wins where, and how far behind everybody else is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from attnspec.drawing.cases import Cases, by_picture, slug
from attnspec.drawing.heat_map import heat_map
from attnspec.drawing.look import PASS_TITLES, STATUS_MARKS, STATUS_WORDS, Drawing, Row, mask_title
from attnspec.drawing.palette import ordered
from attnspec.drawing.throughput import shape_text
from attnspec.units import format_count

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PICTURE = ("level", "device", "pass", "batch", "num_heads_q", "num_heads_kv", "head_dim", "dtype")
_MOST_ROWS = 52


def drawings(cases: Cases) -> list[Drawing]:
    """One drawing per level, device, pass and shape, over as many sheets as its workloads fill."""
    made = []
    for rows in by_picture(cases.measured, *_PICTURE).values():
        workloads = [held for _, held in _workloads(rows)]
        sheets = [workloads[start : start + _MOST_ROWS] for start in range(0, len(workloads), _MOST_ROWS)]
        labels = ordered(row["label"] for row in rows if row["status"] != "skipped")
        if len({row["label"] for row in rows if row["status"] == "ok"}) > 1:
            made += [_drawing(one, labels, (index, len(sheets))) for index, one in enumerate(sheets, 1)]
    return made


def _workloads(rows: Sequence[Row]) -> Iterator[tuple[tuple[object, ...], list[Row]]]:
    """Rows that ask the same of different implementations and were not all left out, masks together, by size."""
    masks = list(dict.fromkeys((row["mask"], row["mask_params"]) for row in rows))
    groups = by_picture(rows, "mask", "mask_params", "seqlen", "cp_size")

    def place(item: tuple[tuple[object, ...], list[Row]]) -> tuple[int, int, int]:
        first = item[1][0]
        return (masks.index((first["mask"], first["mask_params"])), first["cp_size"], first["seqlen"])

    return (item for item in sorted(groups.items(), key=place) if any(row["status"] != "skipped" for row in item[1]))


def _drawing(workloads: Sequence[Sequence[Row]], labels: Sequence[str], number: tuple[int, int]) -> Drawing:
    first = workloads[0][0]
    part = f" ({number[0]} of {number[1]})" if number[1] > 1 else ""
    title = f"Speed against the fastest, {PASS_TITLES[first['pass']]}{part}"

    def draw() -> Figure:
        names, shares, marks = [], {}, {}
        for index, rows in enumerate(workloads):
            names.append(_name(rows[0]))
            best = max((row["tflops"] for row in rows if _has_rate(row)), default=None)
            for row in rows:
                if row["label"] not in labels:
                    continue
                place = (index, labels.index(row["label"]))
                if _has_rate(row):
                    shares[place] = row["tflops"] / best if best else 1.0
                else:
                    marks[place] = STATUS_MARKS.get(row["status"], "?")
        notes = [f"{shape_text(first)}. Throughput as a share of the row's fastest; 100% in bold is the fastest."]
        return heat_map(
            names,
            labels,
            shares,
            marks,
            title=title,
            badge=first["device"],
            notes=[*notes, f"{STATUS_WORDS}."] if marks else notes,
        )

    return Drawing(
        stem=slug("fastest", first["level"], first["pass"], first["device"], *([number[0]] if part else [])),
        title=title,
        caption=f"Throughput of each implementation as a share of the fastest on the same workload, "
        f"{PASS_TITLES[first['pass']]} pass, {first['level']} level, on {first['device']}{part}.",
        draw=draw,
    )


def _has_rate(row: Row) -> bool:
    return row["status"] == "ok" and row["tflops"] is not None


def _name(row: Row) -> tuple[str, str]:
    size = format_count(row["seqlen"])
    return mask_title(row["mask"], row["mask_params"]), (
        f"{row['cp_size']} {row['rank']}s, {size}" if row["level"] == "distributed" else size
    )
