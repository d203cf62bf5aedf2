"""throughput_by_seqlen: per mask and pass, grouped bars over seqlen with a line through each implementation's bars.

The kernel-level figures of MagiAttention's "Long-Context Attention Benchmark" page in form: a mark stands where a case
is not ok, so that nothing is silently absent.
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


def drawings(cells: pa.Table) -> list[Drawing]:
    """One drawing per device, mask and pass that holds kernel-level cases."""
    groups: dict[tuple[str, str, str, str], list[Row]] = {}
    for row in cells.to_pylist():
        if row["level"] == "kernel":
            groups.setdefault((row["device"] or "", row["mask"], row["mask_params"], row["pass"]), []).append(row)
    devices = {key[0] for key in groups} - {""}
    if len(devices) == 1:  # cases that never reached a device belong to the only one there is
        groups = _fold(groups, devices.pop())
    return [_drawing(*key, rows) for key, rows in groups.items()]


def _fold(
    groups: dict[tuple[str, str, str, str], list[Row]], device: str
) -> dict[tuple[str, str, str, str], list[Row]]:
    folded: dict[tuple[str, str, str, str], list[Row]] = {}
    for (_, *rest), rows in groups.items():
        folded.setdefault((device, *rest), []).extend(rows)  # type: ignore[arg-type]
    return folded


def _drawing(device: str, mask: str, mask_params: str, pass_: str, rows: Sequence[Row]) -> Drawing:
    name = mask_title(mask, mask_params)
    title = f"{name[0].upper()}{name[1:]}, {PASS_TITLES[pass_]}"
    badge = device or "no device"
    params = "".join(character if character.isalnum() else "_" for character in mask_params.strip("{}")).strip("_")
    stem = "_".join(part for part in ("kernel", mask, params[:40], pass_, _slug(device)) if part)

    def draw() -> Figure:
        first = rows[0]
        bars = [
            Bar(
                label=label,
                x=row["seqlen"],
                height=row["tflops"],
                low=row["tflops_ci_low"],
                high=row["tflops_ci_high"],
                status=row["status"],
            )
            for label, row in labelled(rows)
        ]
        settings = (
            f"batch {first['batch']}, heads {first['num_heads_q']}:{first['num_heads_kv']}, "
            f"head_dim {first['head_dim']}, {first['dtype']}"
        )
        return grouped_bars(
            bars,
            title=title,
            x_label="seqlen (tokens)",
            y_label="TFLOP/s",
            x_text=format_count,
            badge=badge,
            note=settings,
        )

    caption = f"Throughput of each kernel over sequence length, {name} mask, {PASS_TITLES[pass_]} pass, on {badge}."
    return Drawing(stem=stem, title=title, caption=caption, draw=draw)


def _slug(text: str) -> str:
    return "_".join("".join(character if character.isalnum() else " " for character in text.lower()).split())[:40]
