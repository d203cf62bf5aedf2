"""scaling_efficiency: throughput per GPU as a share of that on the fewest GPUs, over cp_size.

Weak scaling where tokens per GPU stay the same, strong scaling where the sequence does. 100 percent is perfect.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnspec.drawing.cases import Cases, by_picture, slug
from attnspec.drawing.look import PASS_TITLES, Drawing, Row, mask_title
from attnspec.drawing.scatter import Field, Mark, scatter
from attnspec.drawing.throughput import shape_text
from attnspec.units import format_count

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHAPE = ("batch", "num_heads_q", "num_heads_kv", "head_dim", "dtype")


def drawings(cases: Cases) -> list[Drawing]:
    """One drawing per device, pass, shape and size (tokens per GPU, or in all) that stands on several cp_size."""
    rows = [
        row
        for row in cases.measured
        if row["level"] == "distributed" and row["status"] == "ok" and row["tflops_per_gpu"] is not None
    ]
    made = []
    for kind, size in (("weak", "seqlen_per_rank"), ("strong", "seqlen")):
        groups = by_picture(rows, "device", "pass", size, *_SHAPE).values()
        made += [_drawing(held, kind, size) for held in groups if _scales(held)]
    return made


def _scales(rows: Sequence[Row]) -> bool:
    """Whether any strategy ran on several numbers of GPUs."""
    lines = by_picture(rows, "mask", "mask_params", "label").values()
    return any(len({row["cp_size"] for row in line}) > 1 for line in lines)


def _drawing(rows: Sequence[Row], kind: str, size: str) -> Drawing:
    first = rows[0]
    rank = first["rank"]
    tokens = f"{format_count(first[size])} tokens {f'per {rank}' if kind == 'weak' else 'in all'}"
    title = f"{kind.capitalize()} scaling, {PASS_TITLES[first['pass']]}, {tokens}"

    def draw() -> Figure:
        fields = []
        for (mask, mask_params), held in by_picture(rows, "mask", "mask_params").items():
            marks = _marks(held)
            if marks:
                fields.append(
                    Field(
                        marks=marks,
                        title=mask_title(mask, mask_params),
                        x_label=f"{rank}s that share a sequence (cp_size)",
                        y_label=f"of the fewest {rank}s' rate",
                        x_scale="log2",
                        x_ticks=sorted({row["cp_size"] for row in held}),
                        y_text=lambda y: f"{y:.0%}",
                        y_from=0,
                        y_to=max(1.15, *(1.06 * mark.y for mark in marks)),
                        guides=[(1, "perfect")],
                        joined=True,
                    )
                )
        notes = [f"{shape_text(first)}. TFLOP/s per {rank} over the same strategy's on its fewest {rank}s."]
        columns = 1 if len(fields) == 1 else 2
        return scatter(fields, title=title, badge=first["device"], notes=notes, height=1.7, columns=columns)

    return Drawing(
        stem=slug("scaling", kind, first["pass"], tokens, first["device"]),
        title=title,
        caption=f"{kind.capitalize()} scaling of each strategy: throughput per {rank} against that on the fewest "
        f"{rank}s, {PASS_TITLES[first['pass']]} pass, {tokens}, on {first['device']}.",
        draw=draw,
    )


def _marks(rows: Sequence[Row]) -> list[Mark]:
    marks = []
    for (label,), held in by_picture(rows, "label").items():
        least = min(held, key=lambda row: row["cp_size"])
        if least["tflops_per_gpu"] and len({row["cp_size"] for row in held}) > 1:
            marks += [
                Mark(label=label, look=row["look"], x=row["cp_size"], y=row["tflops_per_gpu"] / least["tflops_per_gpu"])
                for row in held
            ]
    return marks
