"""Runs with the fake worker, in this process or in one that a test may kill."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import pickle
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import cache
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pyarrow.parquet as pq
from fake_worker import ATTEMPT, ENDED_NS, NUM_PACKS, NUM_ROUNDS

from attnspec import plugins
from attnspec.launch.found import Found
from attnspec.launch.happenings import CaseEnded, Happening, Said
from attnspec.launch.place import Place
from attnspec.launch.run import Order, RunResult, run_plan
from attnspec.launch.run_folder import RunFolder
from attnspec.launch.runner_profile import Runner
from attnspec.plan import Plan, compile_plan
from attnspec.record.entries import STREAMS, Note, Outcome, Sample
from attnspec.record.journal import read_journal
from attnspec.record.keys import result_key
from attnspec.record.schema import arrow_schema, to_table
from attnspec.spec import load_spec
from attnspec.support import Device

LAUNCHER = Path(__file__).with_name("fake_launcher.py")
DRIVERS = ("1", "2")
ITERATIONS = 2
LENGTHS = "length,count\n10,60\n7,40\n"
SPEC = """\
attnspec: 1
name: fake
shape: {batch: 1, num_heads_q: 2, num_heads_kv: 2, head_dim: 16, dtype: float32}
data: {lengths: lengths.csv, num_packs: 2}
sweeps:
  - level: kernel
    masks: [varlen_full, varlen_causal]
    seqlen: [64]
    passes: [fwd, bwd]
    kernels: [reference, sdpa]
measure: {setup_timeout_s: 20, measure_timeout_s: 20}
"""
"""Eight cases in two groups of four."""
SMALL = SPEC.replace("varlen_full, ", "").replace("fwd, ", "")
"""Two cases in one group."""


@cache
def plan_of(text: str) -> Plan:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "lengths.csv").write_text(LENGTHS)
        path = Path(folder) / "fake.yaml"
        path.write_text(text)
        return compile_plan(load_spec(path), device=Device(type="cpu"))


@cache
def parts_of(text: str) -> bytes:
    """Journal messages for the fake worker, made with the real schemas."""
    attempt, ended_ns = int.from_bytes(ATTEMPT, "little"), int.from_bytes(ENDED_NS, "little")
    parts: dict[tuple, object] = {
        ("schema", stream): arrow_schema(row).serialize().to_pybytes() for stream, row in STREAMS.items()
    }
    for driver in DRIVERS:
        text_of_note = json.dumps({"driver": driver, "device": "fake device"})
        note = Note(
            kind="environment",
            created_ns=ended_ns,
            json=text_of_note,
            writer=plan_of(text).jobs[0].job_id,
            attempt=attempt,
        )
        parts["note", driver] = _message(Note, [note])
        for case_id in plan_of(text).case_by_id:
            key = result_key(case_id, None, {"fake": "1"}, driver, "fake device", {})
            parts["key", case_id, driver] = key
            for status, code in (("ok", None), ("oom", "device_memory"), ("wrong", "out")):
                row = Outcome(
                    case_id=case_id,
                    result_key=key,
                    status=status,
                    reason_code=code,
                    reason=None if code is None else f"fake: {status}",
                    device="fake device",
                    setup_s=0.5,
                    attempt=attempt,
                    ended_ns=ended_ns,
                )
                parts["outcome", case_id, driver, status] = _message(Outcome, [row])
            for pack in range(NUM_PACKS):
                for number in range(NUM_ROUNDS):
                    rows = [
                        Sample(
                            case_id=case_id,
                            pack=pack,
                            rank=0,
                            round=number,
                            iteration=iteration,
                            started_ns=1,
                            elapsed_ns=1_000_000 + iteration,
                            result_key=key,
                            host_ns=1000,
                            attempt=attempt,
                        )
                        for iteration in range(ITERATIONS)
                    ]
                    parts["round", case_id, driver, pack, number] = _message(Sample, rows)
    return pickle.dumps(parts)


def _message(kind: type, rows: list) -> bytes:
    return to_table(kind, rows).combine_chunks().to_batches()[0].serialize().to_pybytes()


class Host:
    """A run folder and what the fake worker is to do there.

    told, measured, resumed: what the last run in this process said, and which cases it measured or left alone.
    """

    def __init__(self, folder: Path, spec: str = SPEC) -> None:
        self.folder = RunFolder(folder)
        self.spec = spec
        self.told: list[str] = []
        self.measured: list[str] = []
        self.resumed: list[str] = []
        beside = folder.parent / f"{folder.name}.parts"
        beside.write_bytes(parts_of(spec))
        self.env = {"FAKE_PARTS": str(beside)}
        self.behave()

    @property
    def plan(self) -> Plan:
        return plan_of(self.spec)

    def behave(self, **behaviours: Mapping[str, object]) -> None:
        """kernel -> behaviour, as fake_worker says."""
        file = self.folder.path.parent / f"{self.folder.path.name}.behaviour.json"
        file.write_text(json.dumps(behaviours))
        self.env["FAKE_BEHAVIOUR"] = str(file)

    def run(self, *, fresh: bool = False, **limits: float) -> RunResult:
        if LAUNCHER.stem not in plugins.names("launchers"):
            plugins.load_file(LAUNCHER)
        self.told, self.measured, self.resumed = [], [], []
        plan = dataclasses.replace(self.plan, measure=dataclasses.replace(self.plan.measure, **limits))

        def heard(happening: Happening) -> None:
            if isinstance(happening, Said):
                self.told.append(happening.text)
            elif isinstance(happening, CaseEnded):
                (self.resumed if happening.resumed else self.measured).append(happening.case.case_id)

        order = Order(spec_text=self.spec, spec_sha256="0", argv=("attnspec", "run"), fresh=fresh)
        return run_plan(plan, self.folder, place(self.env), order, heard)

    def start(self, **env: str) -> ForkServerProcess:
        """The same run in a process of its own, which ends with the run's exit code."""
        self.env |= env
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["fake_run"])
        process = context.Process(target=_run_elsewhere, args=(str(self.folder.path), self.spec, self.env))
        process.start()
        return process

    def rows(self, kernel: str | None = None) -> list[dict]:
        rows = pq.read_table(self.folder.cells).to_pylist()
        return [row for row in rows if kernel in (None, row["kernel"])]

    def statuses(self) -> dict[str, str]:
        """kernel -> its statuses."""
        held: dict[str, set[str]] = {}
        for row in self.rows():
            held.setdefault(row["kernel"], set()).add(row["status"])
        return {kernel: "/".join(sorted(found)) for kernel, found in held.items()}

    def check_complete(self) -> None:
        """Every case ok, every round of every pack exactly once."""
        rows = self.rows()
        assert sorted(row["case_id"] for row in rows) == sorted(self.plan.case_by_id)
        assert {row["status"] for row in rows} == {"ok"}
        samples = NUM_PACKS * NUM_ROUNDS * ITERATIONS
        assert {row["num_samples"] for row in rows} == {samples}
        timings = pq.read_table(self.folder.timings).select(["case_id", "pack", "round", "iteration"]).to_pylist()
        assert len({tuple(row.values()) for row in timings}) == len(timings) == samples * len(rows)

    def num_rounds(self) -> int:
        """Rounds in the journal."""
        return read_journal(self.folder.journal).timings.num_rows // ITERATIONS


def _run_elsewhere(folder: str, spec: str, env: dict[str, str]) -> None:
    host = Host(Path(folder), spec)
    host.env = env
    sys.exit(host.run().exit_code)


def place(env: Mapping[str, str]) -> Place:
    runner = Runner(name="fake", file="fake.yaml", launcher=LAUNCHER.stem, env=dict(env))
    found = Found(python="3", versions={"torch": "2"}, missing={}, cuda=None, devices=())
    return Place(runner=runner, python=sys.executable, found=found, device="cpu")


def wait_for(what: Callable[[], object], seconds: float = 30) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.01)


def workers_of(folder: Path) -> list[int]:
    """Processes that a run in this folder started, their children included."""
    wanted = f"FAKE_BEHAVIOUR={folder.parent / folder.name}.behaviour.json".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]
