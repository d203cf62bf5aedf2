"""The published page's throughputs as a table whose columns have the names and types of `cells.parquet`.

Source: MagiAttention, "Long-Context Attention Benchmark: from kernel efficiency to distributed scalability", 2025,
figures 20 to 59, read off the bars (about 0.5 TFLOP/s either way). `data/README.md` says more.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv

from attnspec.drawing.page_numbering import PAGE_SHAPE, page_mask_params
from attnspec.ids import canonical_json
from attnspec.record.schema import Cell, arrow_schema
from attnspec.resources import shipped

READING_ERROR_TFLOPS = 0.5
"""How far a value read off a figure may be from what the figure's authors plotted."""

_COLUMNS = (
    *("level", "device", "kernel", "strategy", "mask", "mask_params", "seqlen", "cp_size", "seqlen_per_rank", "pass"),
    *("batch", "num_heads_q", "num_heads_kv", "head_dim", "dtype", "status", "reason", "tflops", "tflops_per_gpu"),
    "source",
)
_MARKED = "an X in the figure: not supported, or an error was raised"


def published_file() -> Path:
    """The shipped file that the table is read from."""
    return shipped("data") / "published" / "tflops.csv"


@cache
def published() -> pa.Table:
    """All published points, one row each: columns of `cells.parquet`, and `figure` (int32), the page's figure number.

    `tflops` is over all GPUs and `tflops_per_gpu` what the figures show; both are null where `status` is unsupported.
    `kernel` inside a strategy is the one that the page names for that device. `source` is published.

    >>> table = published()
    >>> table.num_rows, table.column_names[-2:]
    (1404, ['source', 'figure'])
    """
    schema = arrow_schema(Cell)
    stored = pa_csv.read_csv(
        published_file(),
        convert_options=pa_csv.ConvertOptions(
            column_types={
                "figure": pa.int32(),
                "seqlen": pa.int64(),
                "cp_size": pa.int32(),
                "tflops_per_gpu": pa.float64(),
                **dict.fromkeys(("level", "device", "mask", "pass", "kernel", "strategy", "status"), pa.string()),
            },
            strings_can_be_null=True,
            null_values=[""],
        ),
    )
    rows = stored.to_pylist()
    for row in rows:
        per_gpu = row["tflops_per_gpu"]
        row |= PAGE_SHAPE | {
            "source": "published",
            "mask_params": canonical_json(page_mask_params(row["mask"], row["device"])),
        }
        row["seqlen_per_rank"] = row["seqlen"] // row["cp_size"]
        row["tflops"] = None if per_gpu is None else per_gpu * row["cp_size"]
        row["reason"] = None if row["status"] == "ok" else _MARKED
    fields = [schema.field(name) for name in _COLUMNS]
    doc = {"unit": "", "doc": "Number of the figure on the published page."}
    return pa.Table.from_pylist(
        rows, schema=pa.schema([*fields, pa.field("figure", pa.int32(), nullable=False, metadata=doc)])
    )
