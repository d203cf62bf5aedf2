"""The tables keep their types whatever the rows hold."""

from __future__ import annotations

import dataclasses
from decimal import Decimal

import pyarrow as pa

from attnspec.record.schema import Cell, Timing, arrow_schema, column_names, from_row, to_table
from attnspec.record.status import REASON_CODES, Status

CONTRACT_CELLS = """case_id result_key level device kernel strategy backend provider provider_version kernel_params mask mask_params seqlen
cp_size seqlen_per_rank mesh env pass batch num_heads_q num_heads_kv head_dim dtype num_packs mask_area flops padding_tokens
status reason_code reason num_samples time_ms_median time_ms_p20 time_ms_p80 time_ms_ci_low time_ms_ci_high host_ms tflops
tflops_ci_low tflops_ci_high tflops_per_gpu peak_memory_bytes comm_bytes load_imbalance exposed_comm_ms lower_s compile_s
verify_s setup_s verified_error verified_bound kernel_names sm_clock_mhz throttled source image_digest""".split()
CONTRACT_TIMINGS = "case_id pack rank round iteration started_ns elapsed_ns sm_clock_mhz throttled".split()


def cell(**changes):
    values = {
        "case_id": "c", "level": "kernel", "kernel": "sdpa", "mask": "full", "mask_params": "{}", "seqlen": 8, "cp_size": 1,
        "seqlen_per_rank": 8, "env": "{}", "pass_": "fwd", "batch": 1, "num_heads_q": 1, "num_heads_kv": 1, "head_dim": 8,
        "dtype": "float32", "num_packs": 1, "status": "skipped", "reason_code": "not_run", "source": "measured",
    }  # fmt: skip
    return Cell(**{**values, **changes})


def test_columns_are_the_contracts():
    assert list(column_names(Cell)) == CONTRACT_CELLS
    assert list(column_names(Timing)) == CONTRACT_TIMINGS


def test_all_null_columns_keep_their_type():
    first, second = to_table(Cell, [cell()]), to_table(Cell, [cell(tflops=1.5, flops=Decimal(10) ** 30)])
    both = pa.concat_tables([first, second])
    assert both.schema.equals(arrow_schema(Cell), check_metadata=True)
    assert both["tflops"].to_pylist() == [None, 1.5]
    assert both["flops"].to_pylist() == [None, Decimal(10) ** 30]


def test_an_empty_table_has_the_schema():
    assert to_table(Timing, []).schema.equals(arrow_schema(Timing))


def test_rows_come_back():
    row = cell(tflops=2.0)
    assert from_row(Cell, to_table(Cell, [row]).to_pylist()[0]) == row


def test_every_column_has_a_meaning():
    for row in (Cell, Timing):
        for item in dataclasses.fields(row):
            assert item.metadata["doc"].endswith("."), item.name


def test_every_status_but_ok_has_reasons():
    assert {status for status, codes in REASON_CODES.items() if not codes} == {Status.OK}
    assert set(REASON_CODES) == set(Status)
