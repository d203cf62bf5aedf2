"""A worker's call to the command line of docker, podman and apptainer: whole, with hostile names, against files."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from attnspec import plugins
from attnspec.launchers import Mounted, WorkerCall
from attnspec.launchers._containers import CODE, Container, apptainer_argv, apptainer_env, docker_argv, podman_argv

GOLDEN = Path(__file__).parent / "containers"
LAUNCHERS = ("apptainer", "docker", "podman")
CALL = WorkerCall(
    request_path="/runs/a/artifacts/jobs/j-1.json",
    run_dir="/runs/a",
    python="python3",
    world_size=1,
    env={"NVIDIA_TF32_OVERRIDE": "0"},
    package="/src/attnspec",
    code_path="/runs/a/artifacts/code",
    name="attnspec-j-1-00",
    image="sha256:" + "0" * 64,
)
HOSTILE_RUN = '/data/-my runs, "new"/it\'s `x` $HOME %/\u6ce8\u610f'
HOSTILE = dataclasses.replace(
    CALL,
    request_path=f"{HOSTILE_RUN}/artifacts/jobs/j-1.json",
    run_dir=HOSTILE_RUN,
    python="/opt/my env/bin/python",
    world_size=4,
    env={"A": "a \"b\", 'c' $D `e` --rm", "LINES": "1\n2", "U": "\u00e9", "EMPTY": ""},
    plugins=("/home/me/-k, e.py",),
    mounts=(Mounted(source="/models=1,2", target="/m:o", read_only=False),),
    gpus=True,
    user="1000:1000",
    params={"network": "none", "extra": ("--memory=8g",)},
)
CALLS = {"plain": CALL, "hostile": HOSTILE}


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("name", CALLS)
def test_the_command_line(launcher, name):
    argv, env = plugins.load("launchers", launcher).command(CALLS[name])
    lines = [*(f"{key}={value}" for key, value in sorted(env.items())), *argv]
    assert "".join(f"{json.dumps(one, ensure_ascii=False)}\n" for one in lines) == (
        GOLDEN / f"{launcher}-{name}.txt"
    ).read_text(encoding="utf-8")


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_every_value_arrives_as_it_is(launcher, tmp_path, monkeypatch):
    """Through a stand-in of the program that reads its arguments as the programs document them."""
    stand_in = tmp_path / launcher
    stand_in.write_text(f"#!{sys.executable}\nimport json, os, sys\nprint(json.dumps([sys.argv, dict(os.environ)]))\n")
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    argv, env = plugins.load("launchers", launcher).command(HOSTILE)
    done = subprocess.run(argv, env={**os.environ, **env}, capture_output=True, check=True)
    heard, environ = json.loads(done.stdout)
    mounts = [next(csv.reader([one.partition("=")[2]])) for one in heard if one.startswith("--mount=")]
    fields = [dict(part.partition("=")[::2] for part in mount) for mount in mounts]
    assert [(one["source"], one["destination"]) for one in fields] == [
        (HOSTILE_RUN, HOSTILE_RUN),
        ("/src/attnspec", f"{CODE}/attnspec"),
        ("/home/me/-k, e.py", "/home/me/-k, e.py"),
        ("/models=1,2", "/m:o"),
    ]
    assert ["ro" in one or "readonly" in one for one in fields] == [False, True, True, False]
    given = dict(one.removeprefix("--env=").partition("=")[::2] for one in heard if one.startswith("--env="))
    if launcher == "apptainer":
        given = {k.removeprefix("APPTAINERENV_"): v for k, v in environ.items() if k.startswith("APPTAINERENV_")}
    assert {name: given[name] for name in HOSTILE.env} == HOSTILE.env
    assert given["PYTHONPATH"] == CODE
    image = heard.index(HOSTILE.image)
    assert heard[image + 1] == "/opt/my env/bin/python"
    assert heard[-1] == HOSTILE.request_path
    assert all(one.startswith("-") for one in heard[2:image])


@pytest.mark.parametrize("launcher", ["docker", "podman"])
def test_the_ending_names_the_container(launcher):
    module = plugins.load("launchers", launcher)
    argv, _ = module.command(CALL)
    assert f"--name={CALL.name}" in argv
    assert module.ending(CALL)[-1] == CALL.name


def test_inherited_variables_take_the_value_that_they_have_there():
    container = Container(image="i", inherited=("SLURM_PROCID",))
    assert "--env=SLURM_PROCID" in podman_argv(container)
    assert "--env=SLURM_PROCID" in docker_argv(container)
    argv = apptainer_argv(container)
    shown = subprocess.run(
        [*argv[:4], "env"], env={"SLURM_PROCID": "3 'x", "PATH": os.environ["PATH"]}, capture_output=True, check=True
    )
    assert "APPTAINERENV_SLURM_PROCID=3 'x" in shown.stdout.decode().splitlines()
    assert argv[4] == "apptainer"
    assert apptainer_env(container) == {}


def test_compilers_caches_in_apptainer_are_the_runs_own_and_the_users_word_stands():
    folders = []
    for run_dir in ("/runs/a", "/runs/a", "/runs/b"):
        _, env = plugins.load("launchers", "apptainer").command(dataclasses.replace(CALL, run_dir=run_dir))
        folders.append(env["APPTAINERENV_TORCHINDUCTOR_CACHE_DIR"])
        assert env["APPTAINERENV_TRITON_CACHE_DIR"] == folders[-1].replace("/inductor", "/triton")
    assert (folders[0] == folders[1], folders[0] == folders[2]) == (True, False)
    call = dataclasses.replace(CALL, env={"TRITON_CACHE_DIR": "/mine"})
    assert plugins.load("launchers", "apptainer").command(call)[1]["APPTAINERENV_TRITON_CACHE_DIR"] == "/mine"
    for launcher in ("docker", "podman"):  # these have a /tmp of their own
        assert "CACHE_DIR" not in " ".join(plugins.load("launchers", launcher).command(CALL)[0])


def test_no_argument_is_read_by_a_shell():
    for launcher in LAUNCHERS:
        argv, _ = plugins.load("launchers", launcher).command(HOSTILE)
        assert argv[0] == launcher
        assert shlex.split(shlex.join(argv)) == argv
