"""Runs in real containers: by digest, again in the same image, refused, stopped and killed, and with hostile names."""

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

from attnspec.images.lock import Lock, lock_text, read_lock
from attnspec.images.pinning import Choice, pin
from attnspec.images.reference import parse_image
from attnspec.images.store import ImageStore
from attnspec.resources import shipped

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
PATIENCE_S = 240
RUNNER = """\
launcher: %s
image: %s
device: {type: cpu}
options: {%s}
"""
PODMAN = "network: none, tls_verify: false"
HANGS = Path(__file__).with_name("hanging_kernel.py")
SPEC = """\
attnspec: 1
name: small
shape: {num_heads_q: 2, num_heads_kv: 2, head_dim: 16, dtype: float32}
sweeps:
  - level: kernel
    masks: [causal]
    seqlen: 64
    passes: [fwd]
    kernels: [%s]
measure: {min_iters: 3, max_seconds: 0.05, setup_timeout_s: %d}
"""


def absent(*programs: str) -> str | None:
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        return f"not here: {', '.join(missing)}; .ci/containers.sh installs what these tests need"
    if not os.environ.get("ATTNSPEC_CONTAINERS"):
        return "ATTNSPEC_CONTAINERS names no folder with an image; .ci/containers.sh makes one"
    return None


def need(*programs: str) -> None:
    reason = absent(*programs)
    if reason is not None:
        if os.environ.get("ATTNSPEC_REQUIRE_INTEGRATION") == "1":
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.fixture(scope="module")
def place() -> Path:
    """The folder whose ./containers holds the image cpu, built and locked."""
    need("podman")
    return Path(os.environ["ATTNSPEC_CONTAINERS"]) / "place"


@pytest.fixture(scope="module")
def lock(place: Path) -> Lock:
    return read_lock(place / "containers" / "cpu" / "image.lock")


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    if absent("podman") is None:
        assert containers("podman") == []


def containers(program: str) -> list[str]:
    """Names of all containers of ours."""
    listed = subprocess.run(
        [program, "ps", "--all", "--format={{.Names}}"], check=True, capture_output=True, text=True, timeout=60
    )
    return [name for name in listed.stdout.split() if name.startswith("attnspec-")]


class Runs:
    """The command line in a folder of its own, beside the image's folder."""

    def __init__(self, home: Path, place: Path, runner: str = RUNNER % ("podman", "cpu", PODMAN)) -> None:
        self.home = home
        home.mkdir(parents=True, exist_ok=True)
        shutil.copytree(place / "containers", home / "containers")
        (home / "there.yaml").write_text(runner, encoding="utf-8")

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "attnspec", *arguments],
            cwd=self.home,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # even where we ignore it
        )

    def run(self, code: int, *arguments: str) -> str:
        return finished(self.start(*arguments), code)

    def cells(self, run: str) -> list[dict]:
        return pq.read_table(self.home / run / "cells.parquet").to_pylist()

    def provenance(self, run: str) -> dict:
        return json.loads((self.home / run / "provenance.json").read_text())


def finished(process: subprocess.Popen[str], *codes: int) -> str:
    text, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode in codes, text
    return text


def small(home: Path, kernels: str = "reference", setup_timeout_s: int = 100) -> str:
    (home / "small.yaml").write_text(SPEC % (kernels, setup_timeout_s))
    return "small.yaml"


@pytest.fixture(scope="module")
def measured(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """A run of quickstart in the pinned image, named by its digest in the registry."""
    image = read_lock(place / "containers" / "cpu" / "image.lock").pull_reference
    runs = Runs(tmp_path_factory.mktemp("runs"), place, RUNNER % ("podman", image, PODMAN))
    quickstart = str(shipped("specs") / "quickstart.yaml")
    only = ["--only", "seqlen=256,kernel=sdpa|reference,mask=causal|varlen_causal"]
    runs.run(0, "run", quickstart, "--runner", "./there.yaml", *only, "--out", "run")
    return runs


def test_quickstart_runs_in_the_image_of_a_digest(measured: Runs, lock: Lock) -> None:
    cells = [one for one in measured.cells("run") if one["result_key"] is not None]
    assert len(cells) == 8
    assert {(one["status"], one["image_digest"]) for one in cells} == {("ok", lock.image_id)}
    held = measured.provenance("run")
    (facts,) = held["images"].values()
    assert (facts["image_id"], facts["digest"], facts["pinned"]) == (lock.image_id, lock.manifest_digest, True)
    assert facts["packages"]["torch"] == lock.packages["torch"]
    (environment,) = held["workers"]["environment"].values()
    assert environment["code_sha256"] == held["code_sha256"]
    assert (measured.home / "run" / "report" / "index.html").is_file()


def test_a_second_run_measures_nothing_again(measured: Runs) -> None:
    before = (measured.home / "run" / "timings.parquet").read_bytes()
    quickstart = str(shipped("specs") / "quickstart.yaml")
    only = ["--only", "seqlen=256,kernel=sdpa,mask=causal"]
    text = measured.run(0, "run", quickstart, "--runner", "./there.yaml", *only, "--out", "run")
    assert "2 cases have an ok record under the same conditions: not measured again" in text
    assert pq.read_table(measured.home / "run" / "timings.parquet").num_rows > 0 and before


def test_a_rerun_repeats_in_the_same_image_and_compares(measured: Runs, lock: Lock) -> None:
    text = finished(measured.start("rerun", "run"), 0, 1)  # 1: a case became slower, which a busy machine may do
    assert "repeating 8 cases of run on runner there, into run-rerun" in text
    again = [one for one in measured.cells("run-rerun") if one["result_key"] is not None]
    assert {(one["status"], one["image_digest"]) for one in again} == {("ok", lock.image_id)}
    assert {one["case_id"] for one in again} == {
        one["case_id"] for one in measured.cells("run") if one["result_key"] is not None
    }
    held = measured.provenance("run-rerun")
    assert held["settings"]["rerun_of"] == str(measured.home / "run")
    assert held["settings"]["drift"] == []


def test_a_rerun_names_what_differs(measured: Runs) -> None:
    shutil.copytree(measured.home / "run", measured.home / "elsewhere")
    file = measured.home / "elsewhere" / "provenance.json"
    held = json.loads(file.read_text())
    held["host"]["num_cpus"] += 1
    held["found"]["driver"] = "570.1"
    for facts in held["workers"]["environment"].values():
        facts["versions"]["numpy"] = "1.0"
    file.write_text(json.dumps(held))
    text = measured.run(3, "rerun", "elsewhere")
    for line in ("driver: 570.1 -> none", "package numpy: 1.0 -> ", "host num_cpus: "):
        assert line in text
    assert "--allow-drift repeats it all the same" in text
    assert not (measured.home / "elsewhere-rerun").exists()


def test_an_image_that_is_not_the_locked_one_is_refused(place: Path, lock: Lock, tmp_path: Path) -> None:
    runs = Runs(tmp_path, place)
    packages = {**lock.packages, "torch": "1.0"}
    other = lock.model_copy(
        update={
            "image_id": "sha256:" + "1" * 64,
            "reference": None,
            "manifest_digest": None,
            "packages": packages,
            "unresolved": {**lock.unresolved, "manifest_digest": "in no registry"},
        }
    )
    (tmp_path / "containers" / "cpu" / "image.lock").write_text(lock_text(other))
    text = runs.run(3, "run", small(tmp_path), "--runner", "./there.yaml")
    assert f"image ID: locked {other.image_id}, found {lock.image_id}" in text
    assert f"package torch: locked 1.0, found {lock.packages['torch']}" in text
    assert not (tmp_path / "runs").exists()
    verified = runs.run(1, "image", "verify", "cpu", "--json")
    assert json.loads(verified)["ok"] is False
    runs.run(0, "run", "small.yaml", "--runner", "./there.yaml", "--unpinned", "--out", "run")
    (facts,) = runs.provenance("run")["images"].values()
    assert (facts["pinned"], facts["image_id"]) == (False, lock.image_id)


def test_doctor_examines_kernels_inside_the_image(place: Path, tmp_path: Path) -> None:
    runs = Runs(tmp_path, place)
    process = runs.start("doctor", "--runner", "./there.yaml", "--json")
    kernels = json.loads(finished(process, 0).splitlines()[-1])["kernels"]
    held = {name for name, answer in kernels.items() if answer["usable"]}
    assert held == {"reference", "sdpa", "flex"}, kernels
    assert kernels["fa4"]["reason"] == "no image of runner there holds it"


def test_two_ranks_share_a_container(place: Path, tmp_path: Path) -> None:
    runs = Runs(tmp_path, place)
    spec = str(shipped("specs") / "quickstart_distributed.yaml")
    only = ["--only", "cp_size=2,strategy=ring_p2p,mask=causal,pass=fwd"]
    runs.run(0, "run", spec, "--runner", "./there.yaml", *only, "--out", "run")
    assert [one["status"] for one in runs.cells("run") if one["result_key"] is not None] == ["ok"]


def test_hostile_names_reach_the_worker(place: Path, tmp_path: Path) -> None:
    home = tmp_path / "-a b, \"c\" 'd' $E \u00e9"
    seen = home / 'mounted, "here"'
    seen.mkdir(parents=True)
    runs = Runs(home, place)
    mounts = f"mounts: [{{source: {json.dumps(str(seen))}, target: '/seen, by \"it\"'}}]\n"
    values = "env: {HOSTILE: 'a, \"b\" $C \u00e9'}\n"
    (home / "there.yaml").write_text(RUNNER % ("podman", "cpu", PODMAN) + mounts + values, encoding="utf-8")
    runs.run(0, "run", small(home), "--runner", "./there.yaml", "--out", '-run, "it"')
    held = runs.provenance('-run, "it"')
    (environment,) = held["workers"]["environment"].values()
    assert environment["env"]["HOSTILE"] == 'a, "b" $C \u00e9'


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_no_container(place: Path, tmp_path: Path, number: int, code: int) -> None:
    runs = Runs(tmp_path, place)
    process = runs.start("--plugin", str(HANGS), "run", small(tmp_path, "hanging_kernel"), *there())
    wait_for(lambda: hangs(tmp_path / "run"))
    os.kill(process.pid, number)
    finished(process, code)
    assert containers("podman") == []
    runs.run(0, "run", small(tmp_path), *there())  # and no lock


def test_a_killed_host_leaves_no_container(place: Path, tmp_path: Path) -> None:
    runs = Runs(tmp_path, place)
    process = runs.start("--plugin", str(HANGS), "run", small(tmp_path, "{hanging_kernel: {softly: true}}"), *there())
    wait_for(lambda: hangs(tmp_path / "run"))
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    wait_for(lambda: not containers("podman"))


def test_what_a_killed_host_left_hanging_is_ended_by_the_next_run(place: Path, tmp_path: Path) -> None:
    runs = Runs(tmp_path, place)
    process = runs.start("--plugin", str(HANGS), "run", small(tmp_path, "hanging_kernel"), *there())
    wait_for(lambda: hangs(tmp_path / "run"))
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    (left,) = containers("podman")
    runs.run(0, "run", small(tmp_path), *there())
    assert left not in containers("podman")


def test_a_case_over_its_limit_leaves_no_container(place: Path, tmp_path: Path) -> None:
    runs = Runs(tmp_path, place)
    runs.run(1, "--plugin", str(HANGS), "run", small(tmp_path, "hanging_kernel", 20), *there())
    assert [(one["status"], one["reason_code"]) for one in runs.cells("run")] == [("timeout", "setup")]
    assert containers("podman") == []


def test_a_digest_is_pulled_when_it_is_not_here(place: Path, lock: Lock, tmp_path: Path) -> None:
    store = ImageStore("podman")
    (tmp_path / "Containerfile").write_text("FROM scratch\nCOPY Containerfile /\n")
    store.run(["build", "--quiet", "--tag=localhost/attnspec-tiny", "."], 100, cwd=tmp_path)
    assert lock.reference is not None
    target = f"{lock.reference.partition('/')[0]}/attnspec/tiny"
    digest = store.push("localhost/attnspec-tiny", target, flags=["--tls-verify=false"])
    before = store.find("localhost/attnspec-tiny")
    assert before is not None
    store.run(["rmi", "--force", before.image_id], 100)
    assert store.find(before.image_id) is None
    image = pin(Choice(name=parse_image(f"{target}@{digest}")), store, pull_flags=["--tls-verify=false"])
    store.run(["rmi", "--force", image.run_as], 100)
    assert (image.image_id, image.digest, image.pinned) == (before.image_id, digest, True)


def test_docker_runs_the_same_image(place: Path, lock: Lock, tmp_path: Path) -> None:
    need("podman", "docker", "dockerd")
    runs = Runs(tmp_path, place, RUNNER % ("docker", "cpu", "network: none"))
    runs.run(0, "run", small(tmp_path), *there())
    assert [(one["status"], one["image_digest"]) for one in runs.cells("run")] == [("ok", lock.image_id)]
    assert containers("docker") == []
    process = runs.start("--plugin", str(HANGS), "run", small(tmp_path, "hanging_kernel"), *there("stopped"))
    wait_for(lambda: hangs(tmp_path / "stopped"))
    os.kill(process.pid, signal.SIGTERM)
    finished(process, 143)
    assert containers("docker") == []


def there(out: str = "run") -> list[str]:
    return ["--runner", "./there.yaml", "--out", out]


def hangs(run: Path) -> bool:
    """Whether a worker has said that it will hang."""
    return any("hanging" in log.read_text() for log in run.glob("artifacts/logs/*.log"))


def wait_for(condition) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.2)
