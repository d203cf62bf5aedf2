"""The published throughputs as a table beside `cells.parquet`."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from attnspec.record.schema import Cell, arrow_schema
from attnspec.report.published import published

ROWS = published().to_pylist()


def test_columns_have_the_names_and_types_of_cells():
    schema, cells = published().schema, arrow_schema(Cell)
    for field in schema:
        if field.name != "figure":
            assert field.equals(cells.field(field.name), check_metadata=True)
    extended = pa.concat_tables([published(), cells.empty_table()], promote_options="permissive")
    assert extended.num_rows == len(ROWS)


def test_numbers_of_points():
    assert Counter((row["level"], row["status"]) for row in ROWS) == {
        ("kernel", "ok"): 854,
        ("kernel", "unsupported"): 70,
        ("distributed", "ok"): 480,
    }
    keys = ("figure", "kernel", "strategy", "seqlen", "cp_size")
    assert len({tuple(row[key] for key in keys) for row in ROWS}) == len(ROWS) == 1404


def test_figures_are_the_pages():
    kernel_masks = ("full", "causal", "varlen_full", "varlen_causal", "sliding_window_causal", "varlen_block_causal")
    order = [("kernel", device, mask) for device in ("h100", "b200") for mask in kernel_masks]
    order += [("distributed", device, mask) for device in ("h100", "b200") for mask in kernel_masks[:4]]
    figures = [(*place, pass_) for place in order for pass_ in ("fwd", "bwd")]
    found = {row["figure"]: (row["level"], row["device"], row["mask"], row["pass"]) for row in ROWS}
    assert found == dict(zip(range(20, 60), figures, strict=True))
    for row in ROWS:
        assert found[row["figure"]] == (row["level"], row["device"], row["mask"], row["pass"])


@pytest.mark.parametrize("row", ROWS[:1] + ROWS[-1:] + [row for row in ROWS if row["status"] != "ok"][:1])
def test_single_points(row):
    assert (row["batch"], row["num_heads_q"], row["num_heads_kv"], row["head_dim"], row["dtype"]) == (
        1, 64, 8, 128, "bfloat16",
    )  # fmt: skip
    assert row["source"] == "published"


def test_throughput_is_null_exactly_where_unsupported():
    for row in ROWS:
        assert (row["tflops"] is None) == (row["tflops_per_gpu"] is None) == (row["status"] == "unsupported")
        assert (row["reason"] is None) == (row["status"] == "ok")
        if row["status"] == "ok":
            assert row["tflops"] == pytest.approx(row["tflops_per_gpu"] * row["cp_size"])
            assert 0 < row["tflops_per_gpu"] < (989.4 if row["device"] == "h100" else 2250)


def test_sizes():
    for row in ROWS:
        assert row["seqlen"] == row["seqlen_per_rank"] * row["cp_size"]
        if row["level"] == "distributed":
            assert row["seqlen_per_rank"] == {"h100": 8192, "b200": 16384}[row["device"]]
            assert row["strategy"] is not None and row["cp_size"] in (8, 16, 32, 64)
        else:
            assert row["strategy"] is None and row["cp_size"] == 1 and 1024 <= row["seqlen"] <= 32768


def test_a_known_point():
    table = published()
    chosen = table.filter(
        (pc.field("figure") == 20) & (pc.field("kernel") == "fa3") & (pc.field("seqlen") == 32768)
    ).to_pylist()
    assert [row["tflops"] for row in chosen] == [701.5]
    params = {(row["mask"], row["device"]): row["mask_params"] for row in ROWS}
    assert params["sliding_window_causal", "b200"] == '{"window":1024}'
    assert params["varlen_block_causal", "h100"] == '{"block":2048}'
    assert params["varlen_block_causal", "b200"] == '{"block":512}'
    assert params["full", "h100"] == "{}"
    kernels = {(row["strategy"], row["device"]): row["kernel"] for row in ROWS if row["strategy"]}
    assert kernels["magi_attn_a2av", "h100"] == "ffa" and kernels["magi_attn_native", "b200"] == "ffa_fa4"
    assert kernels["usp", "h100"] == "fa3" and kernels["ulysses", "b200"] == "cudnn"
    assert ("hybrid_dcp", "b200") not in kernels
