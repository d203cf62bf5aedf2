"""The columns of `cells.parquet` and `timings.parquet`: one dataclass each yields schema, units and docs.

A field's metadata holds its Arrow type, unit and meaning. Fields are nullable unless marked `required`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa

DECIMAL = pa.decimal128(38, 0)


def column(arrow_type: pa.DataType, doc: str, *, unit: str = "", required: bool = False, name: str = "") -> Any:
    """A dataclass field that describes one column."""
    metadata = {"type": arrow_type, "doc": doc, "unit": unit, "required": required, "name": name}
    return field(metadata=metadata) if required else field(default=None, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One case of a plan and what became of it: one row of `cells.parquet`."""

    case_id: str = column(
        pa.string(),
        "Content id of what the spec asks: workload, implementation, pass, cp_size, environment.",
        required=True,
    )
    result_key: str | None = column(
        pa.string(),
        "case_id with image ID (else provider versions), driver, device model and environment variables; null where no "
        "worker looked.",
    )
    level: str = column(pa.string(), "kernel or distributed.", required=True)
    device: str | None = column(pa.string(), "Device model as the driver names it.")
    kernel: str | None = column(pa.string(), "The attention kernel, inside strategies too.")
    strategy: str | None = column(pa.string(), "The context-parallel strategy; null at kernel level.")
    backend: str | None = column(
        pa.string(), "The kernel's own variant (flex: TRITON, FLASH; sdpa: cudnn, flash, ...)."
    )
    provider: str | None = column(pa.string(), "The package that ran the kernel.")
    provider_version: str | None = column(
        pa.string(), "Its version, and that of a package which the backend needs beside it (flex FLASH: flash-attn-4)."
    )
    kernel_params: str | None = column(
        pa.string(), "The kernel's other parameters as canonical JSON (sdpa: kv_repeat); null in tables without it."
    )
    mask: str = column(pa.string(), "The mask's name.", required=True)
    mask_params: str = column(pa.string(), "The mask's parameters as canonical JSON.", required=True)
    seqlen: int = column(pa.int64(), "Query length of one pack over all ranks.", unit="tokens", required=True)
    cp_size: int = column(pa.int32(), "Ranks that share one sequence; 1 at kernel level.", required=True)
    seqlen_per_rank: int = column(pa.int64(), "seqlen / cp_size.", unit="tokens", required=True)
    mesh: str | None = column(pa.string(), "The strategy's degrees as canonical JSON.")
    env: str = column(pa.string(), "Environment variables of the case as canonical JSON.", required=True)
    pass_: str = column(pa.string(), "fwd, bwd or fwd_bwd.", required=True, name="pass")
    batch: int = column(pa.int32(), "Sequences per call.", required=True)
    num_heads_q: int = column(pa.int32(), "Query heads.", required=True)
    num_heads_kv: int = column(pa.int32(), "Key and value heads.", required=True)
    head_dim: int = column(pa.int32(), "Width of one head.", required=True)
    dtype: str = column(pa.string(), "Element type of q, k, v.", required=True)
    num_packs: int = column(pa.int32(), "Packs of the workload; 1 where the mask knows no documents.", required=True)
    mask_area: int | None = column(pa.int64(), "Allowed pairs, summed over packs.", unit="pairs")
    flops: Decimal | None = column(DECIMAL, "FLOPs of this pass, summed over packs.", unit="FLOP")
    padding_tokens: int | None = column(
        pa.int64(), "Tokens that a strategy adds, summed over packs; never in flops.", unit="tokens"
    )
    status: str = column(pa.string(), "ok, unsupported, oom, wrong, timeout, crashed, error, skipped.", required=True)
    reason_code: str | None = column(pa.string(), "Short reason of a status other than ok.")
    reason: str | None = column(pa.string(), "The same in words, with the library's own message.")
    num_samples: int | None = column(pa.int64(), "Timed iterations, over all packs.")
    time_ms_median: float | None = column(pa.float64(), "Sum over packs of the median / num_packs.", unit="ms")
    time_ms_p20: float | None = column(pa.float64(), "Sum over packs of the 20th percentile / num_packs.", unit="ms")
    time_ms_p80: float | None = column(pa.float64(), "Sum over packs of the 80th percentile / num_packs.", unit="ms")
    time_ms_ci_low: float | None = column(
        pa.float64(),
        "Lower end of the 95 percent interval of time_ms_median (block bootstrap within packs); null where a pack has "
        "one round.",
        unit="ms",
    )
    time_ms_ci_high: float | None = column(pa.float64(), "Upper end of that interval; null as it.", unit="ms")
    host_ms: float | None = column(
        pa.float64(), "Median host time to enqueue one iteration, as time_ms_median over packs.", unit="ms"
    )
    tflops: float | None = column(pa.float64(), "flops / sum of the packs' medians.", unit="TFLOP/s")
    tflops_ci_low: float | None = column(pa.float64(), "flops / time_ms_ci_high.", unit="TFLOP/s")
    tflops_ci_high: float | None = column(pa.float64(), "flops / time_ms_ci_low.", unit="TFLOP/s")
    tflops_per_gpu: float | None = column(pa.float64(), "tflops / cp_size.", unit="TFLOP/s")
    peak_memory_bytes: int | None = column(
        pa.int64(), "Largest device memory of any rank during the case, inputs included; null on the CPU.", unit="bytes"
    )
    comm_bytes: int | None = column(
        pa.int64(),
        "Bytes that one rank sends in one iteration, the largest over ranks; null at kernel level.",
        unit="bytes",
    )
    load_imbalance: float | None = column(pa.float64(), "Largest over mean area of the ranks.")
    exposed_comm_ms: float | None = column(
        pa.float64(), "Elapsed less the slowest rank's compute measured alone.", unit="ms"
    )
    lower_s: float | None = column(pa.float64(), "Slices to the kernel's own mask, summed over packs.", unit="s")
    compile_s: float | None = column(
        pa.float64(),
        "First call less a later one: compile or JIT, summed over packs; compiling ahead is told in the provenance.",
        unit="s",
    )
    verify_s: float | None = column(pa.float64(), "Verification of this case, summed over packs.", unit="s")
    setup_s: float | None = column(
        pa.float64(), "Everything before the first timed iteration, summed over packs.", unit="s"
    )
    verified_error: float | None = column(
        pa.float64(), "Worst ratio of this kernel's error to plain attention's in the same dtype."
    )
    verified_bound: float | None = column(pa.float64(), "The bound that belongs to that worst ratio.")
    kernel_names: list[str] | None = column(
        pa.list_(pa.string()),
        "Device kernels of one profiled iteration; empty where the profiler saw none, so that nothing shows which ones "
        "ran; null where there is nothing to profile (CPU).",
    )
    sm_clock_mhz: float | None = column(pa.float64(), "Median SM clock during the samples.", unit="MHz")
    throttled: bool | None = column(pa.bool_(), "Whether any sample was throttled.")
    source: str = column(pa.string(), "measured, predicted or published.", required=True)
    image_digest: str | None = column(pa.string(), "ID of the container's image, else its digest; null outside one.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One timed iteration on one rank: one row of `timings.parquet`."""

    case_id: str = column(pa.string(), "The case.", required=True)
    pack: int = column(pa.int32(), "Index of the pack in its workload.", required=True)
    rank: int = column(pa.int32(), "Rank that took the time.", required=True)
    round: int = column(pa.int32(), "Interleaved round of this pack, counted on over resumed runs.", required=True)
    iteration: int = column(pa.int32(), "Iteration within the round.", required=True)
    started_ns: int = column(
        pa.int64(), "Host clock (Unix time) when the iteration was enqueued.", unit="ns", required=True
    )
    elapsed_ns: int = column(
        pa.int64(), "Device time of the iteration (host time on the CPU).", unit="ns", required=True
    )
    sm_clock_mhz: float | None = column(pa.float32(), "SM clock during the iteration.", unit="MHz")
    throttled: bool | None = column(pa.bool_(), "Whether the device reported throttling.")


def column_names(row: type) -> tuple[str, ...]:
    """Column names of a row dataclass, in table order."""
    return tuple(item.metadata["name"] or item.name for item in dataclasses.fields(row))


def arrow_schema(row: type) -> pa.Schema:
    """The Arrow schema of a row dataclass; each field carries `unit` and `doc` as metadata."""
    return pa.schema(
        pa.field(
            item.metadata["name"] or item.name,
            item.metadata["type"],
            nullable=not item.metadata["required"],
            metadata={"unit": item.metadata["unit"], "doc": item.metadata["doc"]},
        )
        for item in dataclasses.fields(row)
    )


def to_table(row: type, rows: Iterable[Any]) -> pa.Table:
    """Rows of one dataclass as an Arrow table with its full schema, whatever the rows hold (no type drift)."""
    names = [item.name for item in dataclasses.fields(row)]
    held = list(rows)
    schema = arrow_schema(row)
    columns = [
        pa.array([getattr(one, name) for one in held], type=schema.field(index).type)
        for index, name in enumerate(names)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def from_row(row: type, values: Mapping[str, Any]) -> Any:
    """A dataclass row from a mapping keyed by column names (unknown names refused)."""
    renamed = {(item.metadata["name"] or item.name): item.name for item in dataclasses.fields(row)}
    return row(**{renamed[name]: value for name, value in values.items()})


def markdown(row: type) -> str:
    """The columns of a row dataclass as a Markdown table for the documentation."""
    lines = ["| column | type | unit | meaning |", "| --- | --- | --- | --- |"]
    for one in arrow_schema(row):
        held = {key.decode(): value.decode() for key, value in one.metadata.items()}
        kind = f"{one.type}{'' if one.nullable else ', required'}".replace("<item: string>", " of strings")
        lines.append(f"| {one.name} | {kind} | {held['unit']} | {held['doc']} |")
    return "\n".join(lines) + "\n"
