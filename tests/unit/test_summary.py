"""What a run tells in a terminal."""

from __future__ import annotations

import io
from dataclasses import replace

import pyarrow as pa
import pytest
from rich.console import Console
from test_record_collect import planned

from attnspec.cli._progress import watching
from attnspec.launch.happenings import CaseEnded, JobBegan, Said, TurnBegan
from attnspec.plan import compile_plan
from attnspec.record.schema import Cell, to_table
from attnspec.report.summary import reasons, summary_tables, winners
from attnspec.spec import load_spec
from attnspec.support import Device


def shown(cells: pa.Table) -> list[str]:
    console = Console(width=120, file=io.StringIO())
    for table in summary_tables(cells):
        console.print(table)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def cell(kernel: str, seqlen: int, tflops: float | None = None, status: str = "ok", **other) -> Cell:
    base = planned(f"{kernel}{seqlen}", status=status, reason_code=None, reason=other.pop("reason", None))
    interval = {"tflops_ci_low": tflops, "tflops_ci_high": tflops}
    return replace(base, kernel=kernel, seqlen=seqlen, tflops=tflops, tflops_per_gpu=tflops, **(interval | other))


def test_every_case_is_in_the_summary_and_the_fastest_is_starred() -> None:
    cells = to_table(
        Cell,
        [
            cell("sdpa", 1024, 1.5),
            cell("flex", 1024, 0.01234),
            cell("sdpa", 8192, 612.3),
            cell("flex", 8192, status="oom"),
            cell("fa2", 8192, status="unsupported"),
        ],
    )
    lines = shown(cells)
    assert lines[0] == "causal, forward (TFLOP/s, over seqlen)"
    rows = {line.split()[1]: line.split()[1:] for line in lines if line.startswith("│")}
    assert rows["fa2"] == ["fa2", "│", "│", "X", "│"]
    assert rows["sdpa"] == ["sdpa", "│", "1.50*", "│", "612*", "│"]
    assert rows["flex"] == ["flex", "│", "0.0123", "│", "M", "│"]


def test_without_a_ranking_every_figure_stands_without_a_mark() -> None:
    cells = to_table(Cell, [cell("sdpa", 1024, 1.5), cell("flex", 1024, 1.5), cell("fa2", 1024, status="unsupported")])
    console = Console(width=120, file=io.StringIO())
    for table in summary_tables(cells, ranked=False):
        console.print(table)
    rows = [line.split()[1:4:2] for line in console.file.getvalue().splitlines() if line.startswith("│")]
    assert sorted(rows) == [["fa2", "X"], ["flex", "1.50"], ["sdpa", "1.50"]]


def test_two_cases_with_one_name_are_two_lines() -> None:
    held = [cell("sdpa", 1024, speed, backend="flash") for speed in (1.0, 2.0)]
    cells = to_table(Cell, [replace(one, case_id=str(index)) for index, one in enumerate(held)])
    assert [line.strip("│ ").split("│") for line in shown(cells) if line.startswith("│")] == [
        ["sdpa flash (1 of 2) ", "  1.00"],
        ["sdpa flash (2 of 2) ", " 2.00*"],
    ]
    assert winners(cells.to_pylist()) == ["fastest, of 1 comparison: sdpa flash (2 of 2) 1"]
    failed = [row | {"status": "oom", "reason_code": "device_memory", "reason": "no room"} for row in cells.to_pylist()]
    assert reasons(failed) == [f"sdpa flash ({place} of 2): oom (device_memory), 1 x: no room" for place in (1, 2)]


def test_a_case_that_never_ran_stands_in_the_line_of_its_kernel() -> None:
    cells = to_table(Cell, [cell("sdpa", 1024, 1.0, backend="flash"), cell("sdpa", 2048, status="skipped")])
    rows = [line.split() for line in shown(cells) if line.startswith("│")]
    assert rows == [["│", "sdpa", "flash", "│", "1.00*", "│", "-", "│"]]


def test_distributed_cases_are_shown_over_cp_size() -> None:
    cells = to_table(
        Cell,
        [
            replace(
                cell("fa3", 1024 * size, 100.0 * size),
                case_id=str(size),
                level="distributed",
                cp_size=size,
                strategy="ulysses",
                seqlen_per_rank=1024,
                device="NVIDIA H200",
            )
            for size in (2, 4)
        ],
    )
    lines = shown(cells)
    assert lines[0] == "causal, forward (TFLOP/s per GPU, over cp_size)"
    assert any("ulysses (fa3), 1K/rank" in line and "200*" in line and "400*" in line for line in lines)


def test_each_length_of_a_column_has_a_highest_of_its_own() -> None:
    """As the comparisons that are counted: strategies on as many ranks and tokens."""
    made = [
        replace(
            cell("sdpa", 2 * share, tflops), case_id=f"{name}{share}", level="distributed", cp_size=2, strategy=name,
            seqlen_per_rank=share, tflops_ci_low=tflops, tflops_ci_high=tflops,
        )
        for share, name, tflops in ((512, "usp", 1.0), (512, "ulysses", 2.0), (1024, "usp", 6.0), (1024, "ulysses", 5.0))
    ]  # fmt: skip
    lines = shown(to_table(Cell, made))
    entries = {line.split("│")[1].strip(): line.split("│")[2].strip() for line in lines if line.startswith("│")}
    assert {who for who, entry in entries.items() if entry.endswith("*")} == {
        "ulysses (sdpa), 512/rank",
        "usp (sdpa), 1K/rank",
    }
    assert winners(to_table(Cell, made).to_pylist()) == ["fastest, of 2 comparisons: ulysses (sdpa) 1, usp (sdpa) 1"]


def on(device: str, rank_memory: int | None) -> list[Cell]:
    """One strategy on two ranks, and a case that never reached a device."""
    base = cell("sdpa", 2048, 1.5, level="distributed", cp_size=2, strategy="ulysses", seqlen_per_rank=1024)
    lost = replace(base, case_id="lost", status="crashed", tflops=None, tflops_per_gpu=None, strategy="usp")
    return [replace(base, device=device, peak_memory_bytes=rank_memory), lost]


@pytest.mark.parametrize(
    ("cells", "unit"),
    [
        (on("AMD EPYC 9654", None), "CPU rank"),
        (on("A GPU of tomorrow", 7), "GPU"),
        ([*on("AMD EPYC 9654", None), *on("A GPU of tomorrow", 7)], "rank"),
    ],
    ids=["cpu", "gpu", "both"],
)
def test_throughput_is_per_what_a_rank_runs_on(cells: list[Cell], unit: str) -> None:
    assert shown(to_table(Cell, cells))[0] == f"causal, forward (TFLOP/s per {unit}, over cp_size)"


def rated(kernel: str, seqlen: int, low: float, high: float) -> dict:
    one = replace(cell(kernel, seqlen, (low + high) / 2), tflops_ci_low=low, tflops_ci_high=high)
    return to_table(Cell, [one]).to_pylist()[0]


def test_nobody_is_called_fastest_where_it_cannot_be_told() -> None:
    clear = [rated("fa3", 1024, 9, 10), rated("sdpa", 1024, 5, 6)]
    tied = [row for seqlen in (2048, 4096) for row in (rated("sdpa", seqlen, 7, 9.5), rated("fa3", seqlen, 9, 10))]
    assert winners([*clear, *tied]) == ["fastest, of 3 comparisons: fa3 1, fa3 or sdpa 2"]
    assert winners(tied) == ["fastest, of 2 comparisons: fa3 or sdpa 2"]
    assert "not told apart" not in winners(tied)[0]


def test_shapes_and_devices_are_no_rivals() -> None:
    """A narrow head beside a wide one, one chip beside another: each has its own winner."""
    made = [rated("fa3", 1024, 9, 10), rated("sdpa", 1024, 5, 6)]
    others = [{**row, "head_dim": 96} for row in made], [{**row, "device": "another"} for row in made]
    assert winners([*made, *others[0], *others[1]]) == ["fastest, of 3 comparisons: fa3 3"]


@pytest.mark.parametrize("without", ["sdpa", "fa3"])
def test_what_has_no_interval_is_not_told_apart(without: str) -> None:
    made = cell("fa3", 1024, 10.0), cell("sdpa", 1024, 5.0)
    rows = [replace(one, tflops_ci_low=None, tflops_ci_high=None) if one.kernel == without else one for one in made]
    assert any("sdpa" in line and "5.00~" in line for line in shown(to_table(Cell, rows)))
    assert winners(to_table(Cell, rows).to_pylist()) == ["fastest, of 1 comparison: fa3 or sdpa 1"]


def test_a_noisy_machine_makes_no_endless_line() -> None:
    rows = [
        rated(kernel, 1024 * number, 9, 10) for number in range(1, 10) for kernel in ("sdpa", f"k{number}", "reference")
    ]
    (line,) = winners(rows)
    assert line.endswith(" or sdpa 1, others that are not told apart 5")
    assert line.count(" or reference or sdpa 1") == 4


def test_reasons_are_told_once_each() -> None:
    row = {"kernel": "fa2", "backend": None, "strategy": None, "status": "unsupported", "reason_code": "device"}
    rows = [{**row, "reason": "runs on cuda\nmore"}, {**row, "reason": "runs on cuda"}, {**row, "status": "ok"}]
    assert reasons(rows) == ["fa2: unsupported (device), 2 x: runs on cuda"]
    many = [{**row, "reason": str(number)} for number in range(15)]
    assert reasons(many)[-1] == "... and 3 more reasons, in cells.parquet"


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.mktemp("spec") / "s.yaml"
    path.write_text(
        "attnspec: 1\nname: s\nshape: {num_heads_q: 2, num_heads_kv: 2, head_dim: 16}\n"
        "sweeps: [{level: kernel, masks: [full], seqlen: [64], passes: [fwd, bwd], kernels: [sdpa, reference]}]\n"
    )
    return compile_plan(load_spec(path), device=Device(type="cpu")).jobs[0]


@pytest.mark.parametrize("terminal", [False, True])
def test_progress(job, terminal: bool) -> None:
    console = Console(width=120, file=io.StringIO(), force_terminal=terminal, color_system=None)
    first, second, *_ = job.cases
    with watching(console) as watch:
        watch(JobBegan(job=job, number=1, num_jobs=2, cases=job.cases))
        watch(CaseEnded(case=first, status="ok", reason=None, resumed=True))
        watch(TurnBegan(case=second, phase="setup"))
        watch(CaseEnded(case=second, status="oom", reason="[CUDA] out of memory\nmore", resumed=False))
        watch(Said(text="a [bracket]"))
    text = console.file.getvalue()
    wanted = [
        "job 1 of 2: 4 cases, 1 rank",
        "1 case has an ok record under the same conditions: not measured again",
        "        oom  sdpa, full 64 bwd: [CUDA] out of memory  2/4",
        "a [bracket]",
    ]
    lines = [line.rstrip() for line in text.splitlines()]
    if terminal:
        assert all(any(one in line for line in lines) for one in wanted), lines
    else:
        assert lines == wanted
