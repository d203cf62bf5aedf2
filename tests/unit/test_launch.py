"""Pieces of a launch: the folder, the runner check, provenance, the local command, exit codes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from attnspec.errors import EnvironmentMissingError, InputError
from attnspec.launch.found import Found, device_type, instead, look
from attnspec.launch.processes import WorkerProcess, last_lines
from attnspec.launch.provenance import PACKAGE, code_sha256, differences
from attnspec.launch.run import RunResult
from attnspec.launch.run_folder import RunFolder
from attnspec.launch.runner_profile import load_runner
from attnspec.launchers import WorkerCall, local
from attnspec.record.journal import JournalWriter
from attnspec.record.schema import Cell, Timing, to_table
from attnspec.resources import shipped
from attnspec.support import Device

H200 = Device(type="cuda", capability=(9, 0), model="NVIDIA H200")


def found(*devices: Device, **other) -> Found:
    values = {"python": "3.12.1", "versions": {"torch": "2.11.0"}, "missing": {}, "cuda": "13.0", **other}
    return Found(devices=devices, **values)


def runner(name: str):
    return load_runner(name, [shipped("runners")])


@pytest.mark.parametrize(
    ("sizes", "devices", "told"),
    [
        ((1,), None, "--runner local   runs on what is here"),
        ((1, 8), None, "--runner local --only cp_size=1   runs these cases on what is here"),
        ((8,), None, None),
        ((2, 8), 4, "--runner local --only cp_size=2   runs these cases on what is here"),
        ((1, 2, 8), 4, "--runner local --only 'cp_size=1|2'   runs these cases on what is here"),
        ((8, 16), 4, None),
        ((2, 8), 8, "--runner local   runs on what is here"),
        ((2, 8), 0, "--runner local   runs on what is here"),  # on the CPU any number of ranks
    ],
)
def test_only_what_is_true_is_offered_instead(sizes, devices, told):
    here = None if devices is None else found(*[H200] * devices)
    first, *rest = instead(sizes, here).splitlines()
    assert first == "Instead:"
    assert [line.strip() for line in rest if "--runner" in line] == ([] if told is None else [told])
    assert "  --rehearse   runs the whole pipeline, shrunk, on the CPU" in rest


def test_a_runner_that_expects_other_devices_says_what_it_found_and_what_else_can_be_done() -> None:
    with pytest.raises(EnvironmentMissingError) as caught:
        device_type(runner("b200"), found(), world_sizes={64: "cp_size 64"})
    lines = str(caught.value).splitlines()
    assert lines[0] == (
        "runner b200 expects a CUDA device named B200 with compute capability 10.0, 64 of them for cp_size 64"
    )
    assert lines[1] == "Found: no CUDA device (torch 2.11.0, Python 3.12.1)."
    assert lines[2] == "Instead:"
    assert "--rehearse" in lines[4]
    assert caught.value.exit_code == 3


def test_a_runner_with_another_model_is_refused() -> None:
    with pytest.raises(EnvironmentMissingError, match=r"expects a CUDA device named H100 .*; found NVIDIA H200"):
        device_type(runner("h100"), found(H200), world_sizes={1: "cp_size 1"})


def test_more_ranks_than_devices_are_refused() -> None:
    with pytest.raises(EnvironmentMissingError, match="runner h200 needs 4 devices for cp_size 4") as caught:
        device_type(runner("h200"), found(H200, H200), world_sizes={2: "cp_size 2", 4: "cp_size 4"})
    assert "Found: 2 x NVIDIA H200 (torch 2.11.0, Python 3.12.1)." in str(caught.value)
    assert "  --runner local --only cp_size=2   runs these cases on what is here" in str(caught.value)


def test_ranks_beyond_one_machine_are_refused() -> None:
    with pytest.raises(EnvironmentMissingError, match="cp_size 16 needs 16 devices; runner h200 has 8"):
        device_type(runner("h200"), found(*[H200] * 16), world_sizes={16: "cp_size 16"})


def test_what_fits_runs() -> None:
    assert device_type(runner("h200"), found(H200, H200), world_sizes={2: "cp_size 2"}) == "cuda"
    assert device_type(runner("local"), found(H200), world_sizes={1: "cp_size 1"}) == "cuda"
    assert device_type(runner("local"), found(), world_sizes={4: "cp_size 4"}) == "cpu"


def test_ranks_on_the_cpu_are_as_many_as_the_runner_allows():
    two = runner("local").model_copy(update={"gpus_per_node": 2})
    assert device_type(two, found(), world_sizes={2: "cp_size 2"}) == "cpu"
    wanted = "cp_size 4 needs 4 ranks; runner local has 2, and its launcher local does not reach others\nInstead:"
    with pytest.raises(EnvironmentMissingError, match=wanted) as caught:
        device_type(two, found(), world_sizes={2: "cp_size 2", 4: "cp_size 4"})
    assert "--only cp_size=2" in str(caught.value)


def test_an_interpreter_without_torch_is_refused_with_the_fix() -> None:
    bare = found(versions={}, missing={"torch": "ModuleNotFoundError: No module named 'torch'"})
    with pytest.raises(
        EnvironmentMissingError, match=r"cannot import torch \(ModuleNotFoundError: No module"
    ) as caught:
        device_type(runner("local"), bare, world_sizes={1: "cp_size 1"})
    assert "pip install 'torch>=2.11'" in str(caught.value)


def test_looking_through_an_interpreter(tmp_path: Path) -> None:
    """A bare interpreter tells what it lacks; one that cannot start or answer is told apart."""
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    bare.chmod(0o755)
    seen = look(str(bare), {})
    assert set(seen.missing) == {"torch", "numpy", "pyarrow"}
    assert seen.missing["torch"] == "ModuleNotFoundError: No module named 'torch'"
    assert seen.describe().startswith("no CUDA device (no torch, Python 3.")
    with pytest.raises(EnvironmentMissingError, match="cannot be started: No such file"):
        look(str(tmp_path / "nowhere"), {})
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho 'GLIBC_2.99 not found' >&2\nexit 7\n")
    broken.chmod(0o755)
    with pytest.raises(EnvironmentMissingError, match=r"failed with exit code 7: GLIBC_2\.99 not found"):
        look(str(broken), {})


@pytest.mark.parametrize("world_size", [1, 2])
def test_the_local_command(world_size: int) -> None:
    call = WorkerCall(
        request_path="/run/r.json",
        run_dir="/run",
        python="/p",
        world_size=world_size,
        env={"PYTHONPATH": "/theirs", "X": "1"},
        package="/src/attnspec",
        code_path="/code",
        name="a",
    )
    argv, env = local.command(call)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=0"]
    assert argv == ["/p", *(torchrun if world_size == 2 else []), "-m", "attnspec.worker", "/run/r.json"]
    assert env["PYTHONPATH"] == "/code:/theirs"
    assert env["X"] == "1"
    assert env.get("OMP_NUM_THREADS") == ("1" if world_size == 2 else None)


def test_a_file_in_the_way_of_a_run_folder(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(InputError, match="a file is in the way of the run folder; choose another with --out"):
        RunFolder(tmp_path / "run").prepare()


def test_attempts_count_on_over_everything_that_left_a_file(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.next_attempt() == 1
    folder.prepare()
    (folder.path / "artifacts" / "jobs" / "ab-12-2.json").write_text("{}")
    assert folder.next_attempt() == 3
    (folder.path / "artifacts" / "logs" / "ab-7.log").write_text("")
    assert folder.next_attempt() == 8
    with JournalWriter(folder.journal, "ab-rank0", 11) as writer:
        writer.append_note("x", 1)
    assert folder.next_attempt() == 12


def test_tables_are_current_until_the_journal_grows(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.prepare()
    assert not folder.tables_are_current()
    with JournalWriter(folder.journal, "a-rank0", 1) as writer:
        writer.append_note("x", 1)
        folder.write_tables(to_table(Cell, ()), to_table(Timing, ()), folder.journal_state())
        assert folder.tables_are_current()
        writer.append_note("x", 2)
        assert not folder.tables_are_current()


def test_tables_without_a_journal_are_current(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.write_tables(to_table(Cell, ()), to_table(Timing, ()), "")
    assert folder.tables_are_current()


def test_damaged_provenance_is_an_error(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.read_provenance() == {}
    folder.provenance.write_text("{")
    with pytest.raises(InputError, match="cannot be read"):
        folder.read_provenance()


def test_the_code_hash_sees_every_change(tmp_path: Path) -> None:
    for name, content in (("a.py", "1"), ("b/c.py", "2")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    first = code_sha256(tmp_path)
    (tmp_path / "notes.txt").write_text("no code")
    assert code_sha256(tmp_path) == first
    (tmp_path / "b" / "c.py").write_text("3")
    assert code_sha256(tmp_path) != first
    assert len(code_sha256(PACKAGE)) == 64


def test_differences_of_environments() -> None:
    before = {"driver": "1", "packages": {"torch": "2.11", "fa": "1"}}
    now = {"driver": "1", "packages": {"torch": "2.12"}, "device": "d"}
    assert differences(before, now) == ["device: none -> d", "packages.fa: 1 -> none", "packages.torch: 2.11 -> 2.12"]


def test_a_program_that_cannot_be_started_is_an_environment_error(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentMissingError, match="nowhere cannot be started: No such file"):
        WorkerProcess([str(tmp_path / "nowhere")], {}, tmp_path / "log", lambda _: None)


def test_the_last_lines_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_lines(log) == ""
    log.write_text("\n".join(f"line {number}" for number in range(5000)) + "\n\n")
    assert last_lines(log).splitlines() == [f"line {number}" for number in range(4988, 5000)]
    log.write_bytes(b"\xff\xfe broken")
    assert "broken" in last_lines(log)


def result(*rows: tuple[str, str | None], chosen: int | None = None, **other) -> RunResult:
    cells = pa.table(
        {
            "case_id": [str(index) for index in range(len(rows))],
            "status": [status for status, _ in rows],
            "reason_code": pa.array([code for _, code in rows], pa.string()),
        }
    )
    ids = frozenset(str(index) for index in range(len(rows) if chosen is None else chosen))
    values = {"signal": None, "host_failed": False, **other}
    return RunResult(cells=cells, timings=pa.table({}), chosen=ids, **values)


@pytest.mark.parametrize(
    ("held", "code"),
    [
        (result(("ok", None), ("unsupported", "no_lowering"), ("oom", "device_memory"), ("skipped", "not_run")), 0),
        (result(("ok", None), ("wrong", "out")), 1),
        (result(("ok", None), ("timeout", "setup")), 1),
        (result(("ok", None), ("crashed", "exit")), 1),
        (result(("ok", None), ("error", "fallback")), 1),
        (result(("ok", None), ("crashed", "exit"), chosen=1), 0),
        (result(("ok", None), host_failed=True), 1),
        (result(("unsupported", "missing_package"), ("unsupported", "broken_package")), 3),
        (result(("ok", None), ("unsupported", "missing_package")), 0),
        (result(("unsupported", "no_lowering"), ("unsupported", "missing_package")), 0),
        (result(("ok", None), signal=2), 130),
        (result(("crashed", "exit"), signal=15), 143),
    ],
)
def test_exit_codes(held: RunResult, code: int) -> None:
    assert held.exit_code == code


def test_provenance_is_json(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.write_provenance({"a": [1, None], "b": "é"})
    assert json.loads(folder.provenance.read_text(encoding="utf-8")) == {"a": [1, None], "b": "é"}
