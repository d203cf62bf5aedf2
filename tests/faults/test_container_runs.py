"""Whole runs in containers that are none: stand-ins of apptainer and podman start the worker on this machine."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from attnspec.cli.main import exit_code
from attnspec.launch import container_place

DIGEST, ID = "sha256:" + "d" * 64, "sha256:" + "a" * 64
IMAGE = f"registry.example/attnspec/cpu@{DIGEST}"
# Takes what follows the image for the process, and the code from where it is mounted; knows one image.
STAND_IN = """\
import csv, json, os, sys
from pathlib import Path

argv, environ = sys.argv[1:], dict(os.environ)
Path(__file__).with_name("calls.jsonl").open("a").write(json.dumps(argv) + "\\n")
here, there = Path(__file__).with_name("here"), Path(__file__).with_name("there")
if argv[:2] == ["image", "inspect"]:
    if not here.exists():
        sys.exit("no such image")
    print(json.dumps([{"Id": here.read_text(), "RepoDigests": [], "Config": {}, "Size": 1}]))
    sys.exit()
if argv[0] == "pull":
    if not there.exists():
        sys.exit("manifest unknown")
    here.write_text(there.read_text())
    sys.exit()
if argv[:2] == ["image", "ls"] or argv[0] in ("ps", "rm"):
    sys.exit()
if Path(__file__).with_name("broken").exists():
    print("Error: crun: setrlimit `RLIMIT_NOFILE`: Operation not permitted: OCI permission denied", file=sys.stderr)
    sys.exit(126)
image = next(index for index, one in enumerate(argv) if index and not one.startswith("-"))
for one in argv[:image]:
    name, _, value = one.partition("=")
    if name == "--env":
        environ[value.partition("=")[0]] = value.partition("=")[2]
    if name == "--mount":
        fields = dict(part.partition("=")[::2] for part in next(csv.reader([value])))
        if fields["destination"].endswith("/attnspec"):
            environ["CODE"] = str(Path(fields["source"]).parent)
environ |= {k.removeprefix("APPTAINERENV_"): v for k, v in os.environ.items() if k.startswith("APPTAINERENV_")}
environ["PYTHONPATH"] = environ.pop("CODE", "")
os.execvpe(argv[image + 1], argv[image + 1 :], environ)
"""
SPEC = """\
attnspec: 1
name: small
shape: {num_heads_q: 2, num_heads_kv: 2, head_dim: 16, dtype: float32}
sweeps:
  - {level: kernel, masks: [causal], seqlen: 64, passes: [fwd], kernels: [reference]}
measure: {min_iters: 3, max_seconds: 0.05}
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    folder = tmp_path / 'my runs, "new"'
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "small.yaml").write_text(SPEC)
    (tmp_path / "bin").mkdir()
    for program in ("apptainer", "podman"):
        stand_in = tmp_path / "bin" / program
        stand_in.write_text(f"#!{sys.executable}\n{STAND_IN}")
        stand_in.chmod(0o755)
        runner = f"launcher: {program}\nimage: {IMAGE}\npython: {sys.executable}\ndevice: {{type: cpu}}\n"
        (folder / f"{program}.yaml").write_text(runner)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return folder


def cell(run: Path) -> dict:
    (row,) = pq.read_table(run / "cells.parquet").to_pylist()
    return row


def calls(home: Path) -> list[list[str]]:
    return [json.loads(line) for line in (home.parent / "bin" / "calls.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_run_through_apptainer_is_kept_under_the_digest(home):
    assert exit_code(["run", "small.yaml", "--runner", "./apptainer.yaml", "--out", "run"]) == 0
    assert (cell(home / "run")["status"], cell(home / "run")["image_digest"]) == ("ok", DIGEST)
    images = [argv[[one.startswith("-") for one in argv[1:]].index(False) + 1] for argv in calls(home)]
    assert set(images) == {f"docker://{IMAGE}"}


@pytest.mark.slow
def test_what_was_measured_unpinned_stays_told_once_the_image_is_pinned(home):
    runner = home / "podman.yaml"
    pinned = runner.read_text()
    (home.parent / "bin" / "here").write_text(ID.removeprefix("sha256:"))
    runner.write_text(pinned.replace(f"@{DIGEST}", ":latest"))
    assert exit_code(["run", "small.yaml", "--runner", "./podman.yaml", "--out", "run", "--unpinned"]) == 0
    measured = cell(home / "run")
    runner.write_text(pinned)
    assert exit_code(["run", "small.yaml", "--runner", "./podman.yaml", "--out", "run"]) == 0
    assert cell(home / "run") == measured  # nothing is measured anew
    held = json.loads((home / "run" / "provenance.json").read_text())
    assert [facts for one in held["runs"] for facts in one["images"].values()] == [
        {"identity": ID, "pinned": False},
        {"identity": ID, "pinned": True},
    ]


@pytest.mark.slow
def test_an_image_is_pulled_by_digest_run_by_id_and_had_again_for_a_rerun(home, capsys):
    bin_folder = home.parent / "bin"
    assert exit_code(["run", "small.yaml", "--runner", "./podman.yaml", "--out", "run"]) == 3
    said = capsys.readouterr().err
    assert f"podman cannot pull {IMAGE}: manifest unknown" in said
    assert "--rehearse   runs the whole pipeline" in said
    (bin_folder / "there").write_text(ID.removeprefix("sha256:"))
    assert exit_code(["run", "small.yaml", "--runner", "./podman.yaml", "--out", "run"]) == 0
    assert cell(home / "run")["image_digest"] == ID
    said = capsys.readouterr().err
    assert said.index(f"podman pulls {IMAGE}; this may take minutes\n") < said.index(f"podman pulled {IMAGE} in ")
    assert [argv for argv in calls(home) if argv[0] == "run" and IMAGE in argv] == []  # always by its ID
    (bin_folder / "here").unlink()
    assert exit_code(["rerun", "run"]) in (0, 1, 2)  # as comparing ends
    assert cell(home / "run-rerun")["image_digest"] == ID
    (bin_folder / "here").write_text("b" * 64)
    capsys.readouterr()
    assert exit_code(["rerun", "run", "--out", "third"]) == 3
    assert f"image ID: {ID} -> sha256:{'b' * 64}" in capsys.readouterr().err


def test_a_podman_that_may_not_set_limits_is_told_with_what_to_do(home, capsys):
    (home.parent / "bin" / "here").write_text("a" * 64)
    (home.parent / "bin" / "broken").touch()
    fix = "point CONTAINERS_CONF at a file with the settings that docs/containers.md has for machines where podman's "
    why = f"image {IMAGE} cannot be started: {sys.executable} in image {IMAGE} failed with exit code 126: Error: crun: setr"
    assert exit_code(["run", "small.yaml", "--runner", "./podman.yaml", "--out", "run"]) == 3
    said = capsys.readouterr().err
    assert why in said
    assert f"OCI permission denied; {fix}" in said
    assert "Instead:\n  --runner local   runs on what is here" in said
    assert exit_code(["doctor", "--runner", "./podman.yaml"]) == 3
    said = " ".join(capsys.readouterr().out.split())
    assert f"no {why}" in said
    assert f"OCI permission denied fix: {fix}" in said
    assert "no podman podman run fails: Error: crun: setrlimit" in said


def test_a_mount_that_is_not_there_is_refused(home, capsys):
    with (home / "podman.yaml").open("a") as file:
        file.write("mounts: [{source: /nowhere/at all}]\n")
    (home.parent / "bin" / "there").write_text("a" * 64)
    assert exit_code(["run", "small.yaml", "--runner", "./podman.yaml", "--out", "run"]) == 2
    assert "mounts[0].source: /nowhere/at all is not there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("runner", "message"),
    [
        ("podman-cpu", "podman is not on the path; install it, or choose another runner"),
        (
            "docker-h100",
            "runner docker-h100 expects a CUDA device named H100 with compute capability 9.0; this machine",
        ),
        ("slurm-b200", "runner slurm-b200 submits to Slurm, and sinfo is not on the path"),
        ("slurm-apptainer", "runner slurm-apptainer submits to Slurm, and sinfo is not on the path"),
    ],
)
def test_a_machine_without_what_a_shipped_runner_needs_ends_with_3_and_what_to_do(
    home, capsys, monkeypatch, runner, message
):
    monkeypatch.setenv("PATH", str(home))
    monkeypatch.setattr(container_place, "NVIDIA", home / "nowhere")
    assert exit_code(["run", "small.yaml", "--runner", runner, "--out", "run"]) == 3
    said = capsys.readouterr().err
    assert message in said
    assert "--rehearse   runs the whole pipeline, shrunk, on the CPU" in said
    assert not (home / "run").exists()
