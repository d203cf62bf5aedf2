"""throughput_by_cp_size: per mask and pass, grouped bars over the ranks that share a sequence, TFLOP/s per GPU.

The distributed figures of MagiAttention's "Long-Context Attention Benchmark" page in form. Where a run has one number
of ranks and several lengths, the bars stand over tokens per rank instead. A mark stands where a case is not ok.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from attnspec.drawing.grouped_bars import Bar, grouped_bars
from attnspec.drawing.look import PASS_TITLES, Drawing, Row, labelled, mask_title
from attnspec.units import format_count

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Key = tuple[str, str, str, str]


def drawings(cells: pa.Table) -> list[Drawing]:
    """One drawing per device, mask, pass and tokens per rank that holds distributed cases."""
    groups: dict[Key, list[Row]] = {}
    rows = [row for row in cells.to_pylist() if row["level"] == "distributed"]
    devices = {row["device"] for row in rows} - {None}
    for row in rows:
        # Cases that never reached a device belong to the only one there is.
        device = row["device"] or (next(iter(devices)) if len(devices) == 1 else "")
        groups.setdefault((device, row["mask"], row["mask_params"], row["pass"]), []).append(row)
    made = []
    for key, held in groups.items():
        shares = sorted({row["seqlen_per_rank"] for row in held})
        if len({row["cp_size"] for row in held}) == 1 < len(shares):
            made.append(_drawing(key, held, None))
        else:
            made += [_drawing(key, [row for row in held if row["seqlen_per_rank"] == share], share) for share in shares]
    return made


def _drawing(key: Key, rows: Sequence[Row], share: int | None) -> Drawing:
    """share: tokens per rank; None where these are the axis."""
    device, mask, mask_params, pass_ = key
    name, badge = mask_title(mask, mask_params), device or "no device"
    title = f"{name[0].upper()}{name[1:]}, {PASS_TITLES[pass_]}"
    size = f"{rows[0]['cp_size']} GPUs" if share is None else f"{format_count(share)} tokens per GPU"
    stem = "_".join(filter(None, ("distributed", mask, _slug(mask_params), pass_, _slug(size), _slug(device))))
    axis = "seqlen_per_rank" if share is None else "cp_size"

    def draw() -> Figure:
        first = rows[0]
        return grouped_bars(
            _bars(rows, axis),
            title=title,
            x_label="tokens per GPU" if share is None else "GPUs that share a sequence (cp_size)",
            y_label="TFLOP/s per GPU",
            x_text=format_count,
            badge=badge,
            note=f"{size}, batch {first['batch']}, heads {first['num_heads_q']}:{first['num_heads_kv']}, "
            f"head_dim {first['head_dim']}, {first['dtype']}",
        )

    over = "tokens per GPU" if share is None else "the number of GPUs"
    caption = (
        f"Throughput per GPU of each context-parallel strategy over {over}, {name} mask, {PASS_TITLES[pass_]} pass, "
        f"{size}, on {badge}."
    )
    return Drawing(stem=stem, title=title, caption=caption, draw=draw)


def _bars(rows: Sequence[Row], axis: str) -> list[Bar]:
    return [
        Bar(
            label=label,
            x=row[axis],
            height=row["tflops_per_gpu"],
            low=_per_gpu(row, "tflops_ci_low"),
            high=_per_gpu(row, "tflops_ci_high"),
            status=row["status"],
        )
        for label, row in labelled(rows)
    ]


def _per_gpu(row: Row, column: str) -> float | None:
    return None if row[column] is None else row[column] / row["cp_size"]


def _slug(text: str) -> str:
    return "_".join("".join(character if character.isalnum() else " " for character in text.lower()).split())[:40]
