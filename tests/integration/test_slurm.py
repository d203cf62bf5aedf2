"""Runs on a real Slurm cluster: two ranks over two nodes, and everything that a cluster does to a job."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from attnspec.launchers._containers import run_label
from attnspec.record.journal import read_journal
from attnspec.resources import shipped

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
PACED = Path(__file__).with_name("paced_rank.py")
FAULTY = Path(__file__).parents[1] / "faults" / "faulty_rank.py"
PATIENCE_S = 240
RUNNER = """\
launcher: slurm
gpus_per_node: 1
device: {type: cpu}
slurm: {time: "%s"}
"""
SPEC = """\
attnspec: 1
name: ranks
shape: {num_heads_q: 4, num_heads_kv: 4, head_dim: 16, dtype: float32}
sweeps:
  - level: distributed
    masks: [causal]
    cp_size: 2
    seqlen_per_rank: 64
    passes: [fwd]
    strategies:
%s
measure: {min_iters: %d, max_seconds: 0.05, setup_timeout_s: %d, measure_timeout_s: %d}
"""
PACED_SPEC = SPEC % (
    "      - ring_p2p: {kernel: paced_rank}\n      - ulysses: {kernel: paced_rank}",
    1000,
    60,
    600,
)
"""Two cases of 1000 iterations: some minutes each, or seconds once they may go."""
FAULTS = """\
      - ring_p2p: {kernel: reference}
      - ring_p2p: {kernel: {faulty_rank: {fault: "die:forward:3"}}}
      - ulysses: {kernel: {faulty_rank: {fault: "hang:forward:5"}}}"""
FAULTY_SPEC = SPEC % (
    FAULTS,
    3,
    20,
    15,
)


def slurm(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60).stdout


def why_not() -> str | None:
    if shutil.which("sinfo") is None:
        return "no Slurm here (sinfo is not on the path); .ci/slurm.sh starts one"
    try:
        nodes = set(slurm("sinfo", "--noheader", "--Node", "--format=%N").split())
    except (subprocess.SubprocessError, OSError) as error:
        return f"no Slurm cluster answers: {error}"
    return None if len(nodes) >= 2 else f"the Slurm cluster has {len(nodes)} node, not 2"


@pytest.fixture(autouse=True)
def idle_cluster():
    reason = why_not()
    if reason is not None:
        if os.environ.get("ATTNSPEC_REQUIRE_INTEGRATION") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    yield
    left = slurm("squeue", "--noheader", "--format=%A %j %T")
    assert left == "", "a test left jobs behind"


class Runs:
    """One spec in one folder, run from the command line as often as a test likes."""

    def __init__(self, folder: Path, spec: str = PACED_SPEC, *, runner: str = RUNNER % "10") -> None:
        self.home = folder
        self.host: subprocess.Popen[str] | None = None
        self.out = folder / "run"
        self.go = folder / "go"
        (folder / "spec.yaml").write_text(spec)
        (folder / "cluster.yaml").write_text(f"{runner}env: {{PACED_RANK_GO: {json.dumps(str(self.go))}}}\n")

    def start(self, *options: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "attnspec", "--plugin", str(PACED), "--plugin", str(FAULTY), "run"]
        argv += [str(self.home / "spec.yaml"), "--runner", str(self.home / "cluster.yaml"), "--out", str(self.out)]
        self.host = subprocess.Popen(
            [*argv, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        return self.host

    def run(self, code: int, *options: str) -> str:
        return finished(self.start(*options), code)

    def command(self, name: str, *options: str) -> str:
        argv = [sys.executable, "-m", "attnspec", "--plugin", str(PACED), "--plugin", str(FAULTY), name]
        return slurm(*argv, str(self.out), *options)

    def cells(self) -> list[dict]:
        return pq.read_table(self.out / "cells.parquet").to_pylist()

    def submissions(self) -> list[dict]:
        files = sorted(
            (self.out / "artifacts" / "slurm").glob("*/submission.json"), key=lambda file: file.stat().st_mtime
        )
        return sorted((json.loads(file.read_text()) for file in files), key=lambda one: one["number"])

    def rounds(self) -> int:
        return read_journal(self.out / "journal").timings.num_rows

    def measuring(self) -> int:
        """The number of the job that measures now."""
        wait_for(lambda: self.rounds() > 4 or self.host.poll() is not None)
        assert self.host.poll() is None, self.host.communicate()
        return self.submissions()[-1]["slurm_id"]

    def ranks(self) -> list[int]:
        """Workers of this run folder that are alive, on whichever virtual node."""
        wanted = str(self.out / "artifacts" / "jobs").encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                argv = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if wanted in argv:
                found.append(int(folder.name))
        return found

    def check_complete(self) -> None:
        """Every case ok, and every iteration of every rank there once."""
        assert {cell["status"] for cell in self.cells()} == {"ok"}
        timings = pq.read_table(self.out / "timings.parquet")
        keys = timings.select(["case_id", "pack", "rank", "round", "iteration"]).to_pylist()
        assert len({tuple(key.values()) for key in keys}) == len(keys)
        assert {key["rank"] for key in keys} == {0, 1}
        assert self.ranks() == []


def finished(process: subprocess.Popen[str], code: int) -> str:
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code, said
    return said


def wait_for(what, seconds: float = PATIENCE_S) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.2)


def state_of(job: int) -> str:
    return slurm("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T").strip()


def test_the_shipped_spec_runs_over_two_nodes_and_then_there_is_nothing_to_submit(tmp_path):
    text = (shipped("specs") / "quickstart_distributed.yaml").read_text()
    runs = Runs(tmp_path, text)
    only = ("--only", "cp_size=2,mask=varlen_causal,strategy=ring_p2p|ulysses")
    said = runs.run(0, *only)
    assert "submitted as Slurm job" in said
    cells = [cell for cell in runs.cells() if cell["status"] != "skipped"]
    assert sorted((cell["strategy"], cell["pass"], cell["status"]) for cell in cells) == [
        (strategy, pass_, "ok") for strategy in ("ring_p2p", "ulysses") for pass_ in ("bwd", "fwd")
    ]
    nodes = {note.data["kernel"] for note in read_journal(runs.out / "journal").notes if note.kind == "environment"}
    assert len(nodes) == 1
    said = runs.run(0, *only)
    assert "4 cases have an ok record under the same conditions: not measured again" in said
    assert len(runs.submissions()) == 1


def test_culprits_are_found_in_the_allocation_as_on_one_machine(tmp_path):
    runs = Runs(tmp_path, FAULTY_SPEC)
    said = runs.run(1)
    cells = {(cell["strategy"], cell["kernel"]): cell for cell in runs.cells()}
    assert cells["ring_p2p", "reference"]["status"] == "ok"
    assert (cells["ring_p2p", "faulty_rank"]["status"], cells["ring_p2p", "faulty_rank"]["reason_code"]) == (
        "crashed",
        "signal",
    )
    assert "SIGKILL" in cells["ring_p2p", "faulty_rank"]["reason"]
    assert cells["ulysses", "faulty_rank"]["status"] == "timeout"
    assert "it is tried once more, alone" in said
    assert len(runs.submissions()) == 1
    assert runs.ranks() == []


def test_a_dead_host_a_requeued_job_and_a_second_host_measure_everything_once(tmp_path):
    runs = Runs(tmp_path)
    host = runs.start()
    job = runs.measuring()
    host.kill()
    host.communicate()
    assert state_of(job) == "RUNNING"
    status = json.loads(runs.command("status", "--json"))
    assert (status["running"], status["slurm_jobs"]) == (False, [job])
    assert status["jobs"][0]["slurm"] == {"id": job, "state": "RUNNING", "reason": None}
    before = runs.rounds()
    (file,) = (runs.out / "artifacts" / "slurm").glob("*/submission.json")
    written = json.loads(file.read_text())
    del written["slurm_id"]  # as if it had died before it heard the number
    file.write_text(json.dumps(written))
    slurm("scontrol", "requeue", str(job))
    wait_for(lambda: (runs.out / "artifacts" / "slurm" / f"{status['jobs'][0]['job_id']}-1" / "claim-1").is_symlink())
    second = runs.start()
    wait_for(lambda: runs.rounds() > before + 4)
    runs.go.touch()
    said = finished(second, 0)
    assert f"taking up Slurm job {job}" in said
    assert [one["slurm_id"] for one in runs.submissions()] == [job]
    runs.check_complete()


def test_scancel_ends_the_run_and_leaves_nothing(tmp_path):
    runs = Runs(tmp_path)
    host = runs.start()
    job = runs.measuring()
    slurm("scancel", str(job))
    assert f"Slurm job {job} was cancelled in Slurm; run the same again to go on" in finished(host, 1)
    assert runs.ranks() == []
    assert {cell["status"] for cell in runs.cells()} == {"skipped"}


def test_a_signal_cancels_the_job(tmp_path):
    runs = Runs(tmp_path)
    host = runs.start()
    job = runs.measuring()
    os.kill(host.pid, signal.SIGTERM)
    assert "stopped by a signal" in finished(host, 143)
    assert state_of(job) == "CANCELLED"
    assert runs.ranks() == []


def test_a_closed_terminal_leaves_the_job_and_cancel_ends_it_though_nobody_watches(tmp_path):
    runs = Runs(tmp_path)
    host = runs.start()
    job = runs.measuring()
    os.kill(host.pid, signal.SIGHUP)
    assert f"Slurm job {job} goes on; run the same again to take it up" in finished(host, 129)
    assert state_of(job) == "RUNNING"
    argv = [sys.executable, "-m", "attnspec", "--plugin", str(PACED), "--plugin", str(FAULTY), "run"]
    beside = subprocess.run(
        [*argv, str(runs.home / "spec.yaml"), "--out", str(runs.out), "--runner", "local"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert beside.returncode == 2
    assert f"Slurm job {job} works in this run folder" in beside.stderr
    assert f"cancelled Slurm job {job}" in runs.command("cancel")
    assert state_of(job) == "CANCELLED"
    assert runs.ranks() == []
    assert "nothing runs here" in runs.command("cancel")


def test_a_time_limit_is_met_in_good_order_and_the_rest_submitted_again(tmp_path):
    runs = Runs(tmp_path, runner=RUNNER % "2")
    host = runs.start()
    wait_for(lambda: len(runs.submissions()) == 2)
    runs.go.touch()
    assert "ended (time limit); submitting what is left" in finished(host, 0)
    runs.check_complete()


def test_a_lost_node_costs_its_job_and_nothing_else(tmp_path):
    conf = os.environ.get("SLURM_CONF", "")
    if not conf or not Path(conf).with_name("slurmdbd.conf").is_file():
        pytest.skip("kills a node of the cluster that .ci/slurm_start.sh starts, and of no other")
    runs = Runs(tmp_path, runner=RUNNER % "10" + "options: {retry_after_s: 10}\n")
    host = runs.start()
    runs.measuring()
    daemon = int((Path(conf).parents[1] / "slurmd.n2.pid").read_text())
    victims = [daemon, *(rank for rank in runs.ranks() if b"SLURMD_NODENAME=n2" in environment_of(rank))]
    assert len(victims) > 1
    for victim in victims:
        os.kill(victim, signal.SIGKILL)
    wait_for(lambda: "down" in slurm("sinfo", "--noheader", "--nodes=n2", "--format=%t"))
    runs.go.touch()
    subprocess.run(["slurmd", "-f", conf, "-N", "n2"], check=True)
    finished(host, 0)
    runs.check_complete()


@pytest.fixture
def image() -> str:
    """The image cpu by the digest under which podman holds it."""
    name = os.environ.get("ATTNSPEC_TEST_IMAGE", "localhost/attnspec/cpu")
    try:
        digest = slurm("podman", "image", "inspect", "--format={{.Digest}}", name).strip()
    except (OSError, subprocess.SubprocessError) as error:
        reason = f"podman has no image {name}: {error}; .ci/containers.sh builds it"
        if os.environ.get("ATTNSPEC_REQUIRE_INTEGRATION") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    folder, slash, last = name.partition("@")[0].rpartition("/")
    return f"{folder}{slash}{last.partition(':')[0]}@{digest}"


def containers(runs: Runs, shown: str = "{{.ID}}") -> list[str]:
    """Those that work for a run folder."""
    label = run_label(str(runs.out))
    return slurm("podman", "ps", "--all", f"--filter=label={label}", f"--format={shown}").split()


def step_of(name: str) -> str:
    """The step in a container's name; the first of a job brings the image to the nodes."""
    return name.rpartition("-")[0].rpartition(".")[2]


def test_every_rank_runs_in_the_pinned_image_and_scancel_leaves_no_container(tmp_path, image):
    runner = (RUNNER % "10").replace('time: "10"', 'time: "10", container: podman')
    runs = Runs(tmp_path, runner=f"image: {image}\nmounts: [{{source: {json.dumps(str(tmp_path))}}}]\n{runner}")
    host = runs.start()
    job = runs.measuring()
    assert len(containers(runs)) == 2
    names = containers(runs, "{{.Names}}")
    (request,) = (runs.out / "artifacts" / "jobs").glob("*.json")
    assert sorted(names) == [f"attnspec-{request.stem}-{job}.{step_of(names[0])}-rank{rank}" for rank in (0, 1)]
    slurm("scancel", str(job))
    assert f"Slurm job {job} was cancelled in Slurm" in finished(host, 1)
    wait_for(lambda: containers(runs) == [], 30)
    runs.go.touch()
    said = runs.run(0)
    assert f"podman pulls {image} on the nodes that lack it" in said
    assert "the nodes hold the image after" in said
    runs.check_complete()
    assert containers(runs) == []
    digest = image.partition("@")[2]
    assert {cell["image_digest"] for cell in runs.cells()} == {digest}


def environment_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize(
    ("runner", "told"),
    [
        (RUNNER % "10" + "nodes: 1\n", "cp_size 2 needs 2 nodes with 1 core; runner cluster allows 1"),
        ((RUNNER % "10").replace("{time:", "{partition: nowhere, time:"), "Slurm has no partition 'nowhere'; there is"),
    ],
    ids=["too few nodes", "no such partition"],
)
def test_what_the_cluster_does_not_have_is_told_before_anything_starts(tmp_path, runner, told):
    runs = Runs(tmp_path, runner=runner)
    assert told in runs.run(3)
    assert not (runs.out / "artifacts" / "slurm").exists()


def test_what_a_node_does_not_have_is_told_by_its_job(tmp_path):
    """Slurm counts two GPUs on every node here, and torch finds none."""
    runs = Runs(tmp_path, runner=(RUNNER % "10").replace("cpu", "cuda"))
    assert "the runner expects a CUDA device and torch finds none" in runs.run(3)
    assert runs.ranks() == []


PYXIS = f"image: registry.example/a@sha256:{'0' * 64}\n" + (RUNNER % "10").replace("time:", "container: pyxis, time:")


def test_a_cluster_without_pyxis_is_told_before_anything_is_submitted(tmp_path):
    """This Slurm has no pyxis, so its srun does not know the options of one."""
    runs = Runs(tmp_path, runner=PYXIS)
    said = runs.run(3)
    assert "`srun --help` here tells of no --container-image; this Slurm's srun has no pyxis" in said
    assert not (runs.out / "artifacts" / "slurm").exists()


def test_nodes_without_pyxis_are_told_in_srun_s_words_and_leave_no_outcome(tmp_path, monkeypatch):
    """As where only the machine that submits has it."""
    srun = tmp_path / "bin" / "srun"
    srun.parent.mkdir()
    pretended = '[ "$1" != --help ] || { echo "--container-image=..."; exit; }'
    srun.write_text(f'#!/bin/bash\n{pretended}\nexec -a srun {shutil.which("srun")} "$@"\n')
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{srun.parent}{os.pathsep}{os.environ['PATH']}")
    runs = Runs(tmp_path, runner=PYXIS)
    said = runs.run(3)
    assert "srun: unrecognized option '--container-image=docker://registry.example#a@sha256:" in said
    assert "this Slurm's srun has no pyxis" in said
    assert not (runs.out / "cells.parquet").exists() or {cell["status"] for cell in runs.cells()} == {"skipped"}


def test_an_interpreter_that_no_node_has_leaves_no_outcome(tmp_path):
    runs = Runs(tmp_path, runner=f"{RUNNER % '10'}python: /nowhere/python\n")
    assert "execve(): /nowhere/python: No such file or directory" in runs.run(3)
    assert {cell["status"] for cell in runs.cells()} == {"skipped"}


def test_a_rank_that_crashes_before_it_greets_crashed(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nkill -SEGV $$\n")
    python.chmod(0o755)
    runs = Runs(tmp_path, runner=f"{RUNNER % '10'}python: {python}\n")
    runs.run(1)
    assert {(cell["status"], cell["reason_code"]) for cell in runs.cells()} == {("crashed", "signal")}
