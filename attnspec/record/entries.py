"""What a journal holds: one dataclass per stream, with the Arrow types, units and docs of its columns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from attnspec.record.schema import Timing, column


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one case ended, in one attempt. Metrics of a case that is not ok stay null in the tables."""

    case_id: str = column(pa.string(), "The case.", required=True)
    result_key: str | None = column(pa.string(), "Null where the host speaks for a worker that never said it.")
    status: str = column(pa.string(), "A value of attnspec.record.status.Status.", required=True)
    reason_code: str | None = column(pa.string(), "One of REASON_CODES[status]; null for ok.")
    reason: str | None = column(pa.string(), "The same in words, with the library's own message.")
    device: str | None = column(pa.string(), "Device model as the driver names it.")
    provider: str | None = column(pa.string(), "The package that ran the kernel.")
    provider_version: str | None = column(
        pa.string(), "Its version, and that of a package which the backend needs beside it (flex FLASH: flash-attn-4)."
    )
    backend: str | None = column(pa.string(), "The kernel's variant that ran.")
    mesh: str | None = column(pa.string(), "The strategy's degrees as canonical JSON.")
    kernel_names: list[str] | None = column(
        pa.list_(pa.string()),
        "Device kernels of one profiled iteration; empty where the profiler saw none, so that nothing shows which ones "
        "ran; null where there is nothing to profile (CPU).",
    )
    lower_s: float | None = column(pa.float64(), "Mask lowering, summed over packs.", unit="s")
    compile_s: float | None = column(pa.float64(), "Compile or JIT, summed over packs.", unit="s")
    verify_s: float | None = column(pa.float64(), "Verification, summed over packs.", unit="s")
    setup_s: float | None = column(pa.float64(), "Everything before the first timed iteration.", unit="s")
    verified_error: float | None = column(pa.float64(), "Worst ratio of the error to plain attention's.")
    verified_bound: float | None = column(pa.float64(), "The bound that belongs to that ratio.")
    peak_memory_bytes: int | None = column(pa.int64(), "Largest device memory of any rank.", unit="bytes")
    comm_bytes: int | None = column(pa.int64(), "Bytes that one rank sends in one iteration, largest.", unit="bytes")
    load_imbalance: float | None = column(pa.float64(), "Largest over mean area of the ranks.")
    exposed_comm_ms: float | None = column(pa.float64(), "Elapsed less the slowest rank's compute alone.", unit="ms")
    padding_tokens: int | None = column(pa.int64(), "Tokens that a strategy adds, over packs.", unit="tokens")
    image_digest: str | None = column(pa.string(), "ID of the container's image, else its digest; null outside one.")
    attempt: int = column(pa.int32(), "The attempt that it ended in.", required=True)
    ended_ns: int = column(pa.int64(), "Host clock (Unix time) of its end.", unit="ns", required=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample(Timing):
    """One timed iteration on one rank as the worker journals it: Timing and what only the journal needs."""

    result_key: str = column(pa.string(), "Conditions under which it was taken.", required=True)
    host_ns: int | None = column(pa.int64(), "Host time to enqueue the iteration.", unit="ns")
    attempt: int = column(pa.int32(), "The attempt that took it.", required=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Anything else worth keeping: the environment found, an anchor measurement, bandwidth, a message."""

    kind: str = column(pa.string(), "environment, anchor, bandwidth, message, ...", required=True)
    created_ns: int = column(pa.int64(), "Host clock (Unix time).", unit="ns", required=True)
    json: str = column(pa.string(), "The data as JSON.", required=True)
    writer: str = column(pa.string(), "Who wrote it.", required=True)
    attempt: int = column(pa.int32(), "In which attempt.", required=True)

    @property
    def data(self) -> Any:
        """The decoded data."""
        return json.loads(self.json)


STREAMS: Mapping[str, type] = {"outcomes": Outcome, "timings": Sample, "notes": Note}
