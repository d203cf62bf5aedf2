"""What the page's scripts read: cases as columns, groups, looks and samples, as JSON that may stand inside HTML."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from attnspec.drawing.cases import peak_of, plain
from attnspec.drawing.look import PASS_TITLES, Row, mask_title
from attnspec.drawing.palette import Look, ordered
from attnspec.drawing.throughput import point_of, shape_text
from attnspec.record.schema import Cell, arrow_schema
from attnspec.report.beside_published import Pair
from attnspec.report.standings import doubts
from attnspec.report.verdicts import Verdict

_TEXTS = (
    *("case_id", "result_key", "run", "level", "device", "rank", "label", "kernel", "strategy", "backend", "provider"),
    *("provider_version", "mesh", "env", "status", "reason_code", "reason", "source", "image_digest"),
)
_NUMBERS = (
    *("seqlen", "cp_size", "seqlen_per_rank", "num_packs", "mask_area", "flops", "padding_tokens", "num_samples"),
    *("time_ms_median", "time_ms_p20", "time_ms_p80", "time_ms_ci_low", "time_ms_ci_high", "host_ms", "tflops"),
    *("tflops_ci_low", "tflops_ci_high", "tflops_per_gpu", "peak_memory_bytes", "comm_bytes", "load_imbalance"),
    *("exposed_comm_ms", "lower_s", "compile_s", "verify_s", "setup_s", "verified_error", "verified_bound"),
    *("sm_clock_mhz", "clock_spread", "density", "efficiency"),
)
_OWN_DOCS = {
    "doubts": "Why to read the case with care.",
    "clock_spread": "How far the SM clock's samples spread, (p80 - p20) / median within a pack.",
    "density": "Allowed share of all query-key pairs.",
    "efficiency": "tflops_per_gpu / bf16 peak of the device.",
    "shape": "Shape of the tensors.",
    "run": "Run folder that holds the case.",
}
_LONGEST_TEXT = 4000
_MOST_KERNEL_NAMES = 12


def payload(
    rows: Sequence[Row], verdicts: Sequence[Verdict], pairs: Sequence[Pair], samples: Mapping[str, Any]
) -> dict[str, Any]:
    """All that the scripts need. Rows keep their order: `groups[i].rows` and `published` count places in it."""
    place = {id(row): index for index, row in enumerate(rows)}
    columns: dict[str, Any] = {name: _texts([row[name] for row in rows]) for name in _TEXTS}
    columns |= {name: _numbers([row[name] for row in rows]) for name in _NUMBERS}
    columns["mask"] = _texts([plain(mask_title(row["mask"], row["mask_params"])) for row in rows])
    columns["pass"] = _texts([PASS_TITLES[row["pass"]] for row in rows])
    columns["shape"] = _texts([shape_text(row) for row in rows])
    columns["kernel_names"] = _texts([_kernel_names(row) for row in rows])
    columns["doubts"] = _texts([", ".join(doubts(row)) or None for row in rows])
    columns["throttled"] = _texts([None if row["throttled"] is None else str(row["throttled"]) for row in rows])
    known = {row["label"]: row["look"] for row in rows}
    # Of several providers of a kernel, those that ran carry the published point.
    ran = {point_of(pair.measured) for pair in pairs if pair.measured["status"] == "ok"}
    published = {
        str(place[id(pair.measured)]): pair.published["tflops_per_gpu"]
        for pair in pairs
        if pair.published["tflops_per_gpu"] is not None
        and (pair.measured["status"] == "ok" or point_of(pair.measured) not in ran)
    }
    return {
        "rows": len(rows),
        "columns": columns,
        "groups": [
            {"rows": [place[id(row)] for row in verdict.rows], "peak": _peak(verdict.rows[0])} for verdict in verdicts
        ],
        "looks": {label: _look(known[label]) for label in ordered(known)},
        "published": published,
        "docs": _docs(),
        "samples": dict(samples),
    }


def script_json(value: Any) -> str:
    """JSON that no HTML or script parser can read as anything else.

    >>> script_json({"a": "</script>"})
    '{"a":"\\\\u003c/script>"}'
    """
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for sign in "<&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text.encode("utf-8", "replace").decode()


def _texts(values: Sequence[str | None]) -> dict[str, Any]:
    """Distinct texts and each row's place among them, -1 for none."""
    known: dict[str, int] = {}
    places = [-1 if value is None else known.setdefault(_cut(value), len(known)) for value in values]
    return {"texts": list(known), "places": places}


def _cut(value: str) -> str:
    return value if len(value) <= _LONGEST_TEXT else f"{value[:_LONGEST_TEXT]} ... (cut; whole in cells.parquet)"


def _numbers(values: Sequence[float | Decimal | None]) -> dict[str, Any]:
    return {"values": [_number(value) for value in values]}


def _number(value: float | Decimal | None) -> float | int | None:
    """Seven digits of a float; whole numbers as they are, where a double holds them."""
    if value is None:
        return None
    if isinstance(value, Decimal):
        value = int(value)
    if isinstance(value, int):
        return value if abs(value) < 2**53 else float(value)
    return float(f"{value:.7g}") if value - value == 0 else None


def _kernel_names(row: Row) -> str | None:
    names = row["kernel_names"]
    if names is None:
        return None
    if not names:
        return "none seen by the profiler"
    distinct = list(dict.fromkeys(names))
    more = len(distinct) - _MOST_KERNEL_NAMES
    return "\n".join(
        [*(name[:200] for name in distinct[:_MOST_KERNEL_NAMES]), *([f"... and {more} more"] if more > 0 else [])]
    )


def _docs() -> dict[str, str]:
    """What each column means, for the details of a case."""
    given = {field.name: (field.metadata or {}).get(b"doc", b"").decode() for field in arrow_schema(Cell)}
    return {
        name: given[name] for name in (*_TEXTS, *_NUMBERS, "kernel_names", "throttled") if name in given
    } | _OWN_DOCS


def _peak(row: Row) -> float | None:
    peak = peak_of(row)
    return None if peak is None else peak.bf16_dense_tflops


def _look(look: Look) -> dict[str, str]:
    return {"colour": look.colour, "hatch": look.hatch, "marker": look.marker}
