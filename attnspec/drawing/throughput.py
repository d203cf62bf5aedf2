"""Throughput bars of one picture: rows to bars, with the published points beside them; captions of such pictures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from attnspec.drawing.cases import peak_of
from attnspec.drawing.grouped_bars import Bar
from attnspec.drawing.look import PASS_TITLES, Row, mask_title
from attnspec.drawing.page_numbering import is_page_shape, page_device, page_figure
from attnspec.launch.known_devices import known_device

_POINT = ("level", "mask", "mask_params", "pass", "seqlen", "cp_size", "kernel", "strategy")
_SHAPE = ("batch", "num_heads_q", "num_heads_kv", "head_dim", "dtype")

PICTURE = ("device", "mask", "mask_params", "pass", *_SHAPE)
"""What the rows of one picture have in common."""

Point = tuple[object, ...]


def published_points(published: Iterable[Row]) -> dict[Point, Row]:
    """Published rows by what a measured row must share with them: device class, mask, pass, shape, length, kernel."""
    return {(row["device"], *(row[name] for name in (*_POINT, *_SHAPE))): row for row in published}


def point_of(row: Row) -> Point:
    """The key of a measured row among `published_points`."""
    return (page_device(known_device(row["device"])), *(row[name] for name in (*_POINT, *_SHAPE)))


def bars(rows: Sequence[Row], axis: str, points: Mapping[Point, Row]) -> list[Bar]:
    """One bar per row over the column `axis`, in TFLOP/s per GPU."""
    made = []
    ran = {point_of(row) for row in rows if row["status"] == "ok"}
    for row in rows:
        place = point_of(row)
        # Of several providers of a kernel, those that ran carry the published point.
        twin = points.get(place) if row["status"] == "ok" or place not in ran else None
        made.append(
            Bar(
                label=row["label"],
                look=row["look"],
                x=row[axis],
                height=row["tflops_per_gpu"] if row["status"] == "ok" else None,
                low=_per_gpu(row, "tflops_ci_low"),
                high=_per_gpu(row, "tflops_ci_high"),
                status=row["status"],
                reason=row["reason"],
                published=None if twin is None else twin["tflops_per_gpu"],
                published_on=None if twin is None else twin["device"].upper(),
            )
        )
    return made


def worth_drawing(rows: Sequence[Row]) -> bool:
    """Whether anything is to be seen: an ok case, or marks of a picture that was run to its end."""
    statuses = {row["status"] for row in rows}
    return "ok" in statuses or "skipped" not in statuses


def badge_of(row: Row) -> str:
    """What stands in the corner: the device, and its bf16 peak where that is known and meant."""
    peak = peak_of(row)
    return row["device"] if peak is None else f"{row['device']}  ·  bf16 peak {peak.bf16_dense_tflops:,.0f} TFLOP/s"


def shape_text(row: Row) -> str:
    """A row's shape in words.

    >>> shape_text({"batch": 1, "num_heads_q": 64, "num_heads_kv": 8, "head_dim": 128, "dtype": "bfloat16"})
    'batch 1, heads 64:8, head_dim 128, bfloat16'
    """
    return (
        f"batch {row['batch']}, heads {row['num_heads_q']}:{row['num_heads_kv']}, "
        f"head_dim {row['head_dim']}, {row['dtype']}"
    )


def peak_value(row: Row) -> float | None:
    """The bf16 peak that a second axis counts as 100 percent, TFLOP/s."""
    peak = peak_of(row)
    return None if peak is None else peak.bf16_dense_tflops


def page_words(row: Row) -> str:
    """Which figure of the published page a picture of this row's kind corresponds to, as the end of a caption."""
    device = known_device(row["device"])
    number = page_figure(row["level"], device, row["mask"], row["mask_params"], row["pass"])
    if number is None or device is None:
        return ""
    differs = []
    if page_device(device) != device.key:
        differs.append(f"there on {str(page_device(device)).upper()}")
    if not is_page_shape(row):
        differs.append("another shape")
    if row["level"] == "distributed" and row["seqlen_per_rank"] != {"h100": 8192, "b200": 16384}.get(
        str(page_device(device))
    ):
        differs.append("other tokens per GPU")
    told = f" ({', '.join(differs)})" if differs else ""
    return f" Corresponds to figure {number} of the published page{told}."


def _per_gpu(row: Row, column: str) -> float | None:
    return None if row[column] is None or row["status"] != "ok" else row[column] / row["cp_size"]


def picture_title(row: Row) -> str:
    """Mask and pass in words, as a title."""
    name = mask_title(row["mask"], row["mask_params"])
    return f"{name[0].upper()}{name[1:]}, {PASS_TITLES[row['pass']]}"
