"""From jobs to sbatch's arguments, batch scripts and srun's arguments, as golden files.

ATTNSPEC_WRITE_GOLDEN=1 writes them anew; read what changed before committing it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import time
from pathlib import Path

import pytest

from attnspec.errors import InputError
from attnspec.launchers import Mounted
from attnspec.launchers.slurm import (
    Allocation,
    RankContainer,
    Step,
    batch_script,
    lay_out,
    meeting,
    prepare_argv,
    sbatch_argv,
    step_command,
)

GOLDEN = Path(__file__).with_name("slurm")
HOSTILE = '/data/it\'s "mine" $HOME `id` %j; é -x\\'
DIGEST = "sha256:" + "ab" * 32


def as_text(argv: list[str], env: dict[str, str] | None = None) -> str:
    """One argument a line, quoted for a shell."""
    lines = [f"{name}={shlex.quote(value)}" for name, value in (env or {}).items()]
    return "\n".join([*lines, *map(shlex.quote, argv)]) + "\n"


def check(name: str, text: str) -> None:
    file = GOLDEN / name
    if os.environ.get("ATTNSPEC_WRITE_GOLDEN") == "1":
        file.write_text(text)
    assert text == file.read_text()


def container(program: str, **more) -> RankContainer:
    reference = f"registry.example:5000/attnspec/hopper@{DIGEST}"
    image = {"pyxis": f"docker://registry.example:5000#attnspec/hopper@{DIGEST}", "apptainer": f"docker://{reference}"}
    held = {
        "program": program,
        "image": image.get(program, reference),
        "image_id": "sha256:" + "cd" * 32,
        "run_dir": "/shared/runs/h100",
        "package": "/home/ann/attnspec/attnspec",
        "mounts": (Mounted(source="/shared/data", target="/data"),),
        "gpus": True,
    }
    return RankContainer(**{**held, **more})


def test_an_allocation_of_eight_nodes():
    allocation = Allocation(
        name="attnspec-0123456789ab-00ff",
        layout=lay_out(64, 8),
        gpus_per_node=8,
        partition="h100",
        account="team",
        qos="high",
        time="1-00:00:00",
        extra=("--exclusive", "--constraint=h100&ib"),
    )
    argv = sbatch_argv(allocation, output="/shared/runs/100%/slurm.log", script="/shared/runs/100%/job.sh", after=[41])
    check("sbatch_64_ranks.txt", as_text(argv))


def test_a_batch_script_with_a_hostile_path():
    script = batch_script(
        python="/opt/my python/bin/python",
        order=f"{HOSTILE}/order.json",
        import_path=HOSTILE,
        title="job a\n\nrm -rf /",
    )
    check("job_hostile.sh", script)


@pytest.mark.parametrize("program", [None, "pyxis", "apptainer", "podman"])
def test_a_step(program):
    held = None if program is None else container(program)
    step = Step(layout=lay_out(64, 8), python="python3", code_path="/shared/runs/h100/artifacts/code", container=held)
    env = {"CUDA_DEVICE_MAX_CONNECTIONS": "8", **meeting(master_addr="node001", master_port=29500)}
    argv, added = step_command(step, "/shared/runs/h100/artifacts/jobs/a-1.json", env)
    check(f"srun_{program or 'host'}.txt", as_text(argv, added))


def test_an_image_is_brought_to_every_node_once_and_compared():
    argv = prepare_argv(Step(layout=lay_out(64, 8), python="p", code_path="/c", container=container("podman")))
    check("srun_prepare_podman.txt", as_text(argv))
    for program in ("pyxis", "apptainer"):
        assert (
            prepare_argv(Step(layout=lay_out(2, 1), python="p", code_path="/c", container=container(program))) is None
        )
    assert prepare_argv(Step(layout=lay_out(2, 1), python="p", code_path="/c")) is None


def test_containers_of_ranks_have_names_of_their_own(tmp_path, monkeypatch):
    """Against a podman that says what it was called with."""
    podman = tmp_path / "podman"
    podman.write_text('#!/bin/sh\nfor word; do case "$word" in --name=*|--label=*) echo "$word";; esac; done\n')
    podman.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    held = container("podman", scratch=str(tmp_path))
    step = Step(layout=lay_out(2, 1), python="python3", code_path="/c", container=held)
    names, labels = set(), set()
    for request, job, number, rank in (("j/a-1.json", 7, 1, 0), ("j/a-1.json", 7, 1, 1), ("j/a 'b-2.json", 7, 2, 0)):
        argv, _ = step_command(step, f"/runs/it's/{request}", {})
        ids = {"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(number), "SLURM_PROCID": str(rank)}
        said = subprocess.run(
            argv[argv.index("sh") :], env={**os.environ, **ids}, capture_output=True, text=True, check=True
        )
        name, label = said.stdout.splitlines()
        names.add(name.removeprefix("--name="))
        labels.add(label)
    assert names == {"attnspec-a-1-7.1-rank0", "attnspec-a-1-7.1-rank1", "attnspec-a--b-2-7.2-rank0"}
    assert len(labels) == 1
    assert all(re.fullmatch("[a-zA-Z0-9][a-zA-Z0-9_.-]*", name) for name in names)


@pytest.mark.parametrize("end", ["exit 3", "kill -KILL $PPID", "sleep 30"])
def test_a_rank_leaves_no_mark_that_stops_the_next_start_of_its_step(tmp_path, monkeypatch, end):
    """Against a podman that refuses a mark that is there, as the real one does; a requeued job counts its steps anew."""
    programs, scratch, told = tmp_path / "bin", tmp_path / "scratch", tmp_path / "told"
    for folder in (programs, scratch):
        folder.mkdir()
    (programs / "podman").write_text(
        f'#!/bin/sh\necho "$1 $*" >> {told}\n[ "$1" = run ] || exit 0\nfor word; do case "$word" in\n'
        '--cidfile=*) mark=${word#--cidfile=}; [ ! -e "$mark" ] || exit 125; echo id > "$mark";; esac; done\n'
        f"{end}\n"
    )
    (programs / "podman").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    step = Step(layout=lay_out(2, 1), python="p", code_path="/c", container=container("podman", scratch=str(scratch)))
    argv, _ = step_command(step, "/runs/j/a-1.json", {})
    ids = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1", "SLURM_PROCID": "0"}
    wanted = {"exit 3": 3, "kill -KILL $PPID": -9, "sleep 30": 143}[end]
    for _ in range(2):
        told.unlink(missing_ok=True)
        rank = subprocess.Popen(argv[argv.index("sh") :], env={**os.environ, **ids}, stdin=subprocess.DEVNULL)
        if end == "sleep 30":
            while not told.exists() or "run" not in told.read_text():
                time.sleep(0.02)
            rank.terminate()
        assert rank.wait(timeout=20) == wanted
        assert told.read_text().startswith("rm rm --force --time 0 --ignore attnspec-a-1-7.1-rank0\n")
    assert bool(list(scratch.iterdir())) == (wanted == -9)


def test_a_shell_reads_a_batch_script_as_it_was_meant(tmp_path):
    """Every hostile character arrives, and nothing in a path runs."""
    told = tmp_path / "told.json"
    python = tmp_path / "a python"
    python.write_text(f'#!/bin/sh\nprintf "%s\\n" "$PYTHONPATH" "$@" > {told}\n')
    python.chmod(0o755)
    order = f"{HOSTILE}$(touch {tmp_path}/ran)/order.json"
    script = tmp_path / "job.sh"
    script.write_text(
        batch_script(python=str(python), order=order, import_path=HOSTILE, title=f"x\ntouch {tmp_path}/ran")
    )
    subprocess.run(["sh", str(script)], check=True, timeout=20)
    assert told.read_text().splitlines() == [HOSTILE, "-m", "attnspec.launch.slurm_job", order]
    assert not (tmp_path / "ran").exists()


def test_a_zero_byte_is_refused():
    with pytest.raises(InputError, match="holds a zero byte"):
        batch_script(python="p", order="/a\0b", import_path="/", title="t")


@pytest.mark.parametrize("path", ["/runs/a,b", "/runs/a:b"])
def test_what_pyxis_cannot_mount_is_refused(path):
    step = Step(layout=lay_out(2, 1), python="p", code_path="/c", container=container("pyxis", run_dir=path))
    with pytest.raises(InputError, match=r"pyxis cannot mount a path with a comma or colon; choose another with --out"):
        step_command(step, f"{path}/q.json", {})


@pytest.mark.parametrize("flag", ["gres", "gpus-per-node", "none"])
def test_how_gpus_are_asked_for(flag):
    argv = sbatch_argv(
        Allocation(name="a", layout=lay_out(8, 8), gpus_per_node=8, gpu_flag=flag), output="/o", script="/s"
    )
    asked = [word for word in argv if "gpu" in word]
    assert asked == {"gres": ["--gres=gpu:8"], "gpus-per-node": ["--gpus-per-node=8"], "none": []}[flag]
    assert not any(word.startswith(("--dependency", "--kill-on-invalid-dep")) for word in argv)


def run_on_stand_ins(tmp_path, monkeypatch, program, env):
    import sys

    sys.path.insert(0, str(Path(__file__).parents[1] / "fakes" / "slurm"))
    import programs

    (tmp_path / "state").mkdir()
    bin_ = programs.install(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{bin_}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SLURM", str(tmp_path / "state"))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    held = container(program, run_dir=str(tmp_path), package="/src/attnspec", gpus=False)
    step = Step(layout=lay_out(3, 2), python=str(bin_ / "interpreter"), code_path="/c", container=held)
    argv, added = step_command(step, "request.json", {**env, **meeting(master_addr="n1", master_port=7)})
    monkeypatch.setattr(programs, "WORKER", Path("/nowhere"))
    done = subprocess.run(argv, env={**os.environ, **added}, capture_output=True, text=True, timeout=60)
    calls = [json.loads(line) for line in (tmp_path / "state" / "calls.jsonl").read_text().splitlines()]
    ranks = [json.loads(line) for line in (tmp_path / "state" / "ranks.jsonl").read_text().splitlines()]
    return done, calls, sorted(ranks, key=lambda one: one["SLURM_PROCID"])


def test_variables_reach_every_rank_through_apptainer(tmp_path, monkeypatch):
    """Against a stand-in that keeps apptainer's clean environment; apptainer itself was not at hand."""
    hostile = "a,b=c 'd' $HOME \"e\""
    _, calls, ranks = run_on_stand_ins(tmp_path, monkeypatch, "apptainer", {"FAKE_VALUE": hostile})
    assert [rank["SLURM_PROCID"] for rank in ranks] == ["0", "1", "2"]
    assert [rank["SLURM_LOCALID"] for rank in ranks] == ["0", "1", "0"]
    assert {(rank["FAKE_VALUE"], rank["MASTER_ADDR"], rank["ATTNSPEC_RANKS"]) for rank in ranks} == {
        (hostile, "n1", "slurm")
    }
    assert {rank["FAKE_IMAGE"] for rank in ranks} == {f"docker://registry.example:5000/attnspec/hopper@{DIGEST}"}
    assert sum(call[0] == "apptainer" for call in calls) == 3


def test_pyxis_gets_its_options_before_the_command(tmp_path, monkeypatch):
    """Against a stand-in of srun; pyxis itself was not at hand."""
    _, calls, ranks = run_on_stand_ins(tmp_path, monkeypatch, "pyxis", {"FAKE_VALUE": "a,b"})
    (srun,) = (call for call in calls if call[0] == "srun")
    at = next(index for index, word in enumerate(srun) if word.endswith("/interpreter"))
    options = dict(word.partition("=")[::2] for word in srun[1:at])
    assert options["--container-image"].endswith(f"#attnspec/hopper@{DIGEST}")
    assert f"{tmp_path}:{tmp_path}," in options["--container-mounts"]
    assert "/src/attnspec:/opt/attnspec/attnspec:ro" in options["--container-mounts"].split(",")
    assert {"FAKE_VALUE", "PYTHONPATH", "MASTER_ADDR"} <= set(options["--container-env"].split(","))
    assert {rank["FAKE_VALUE"] for rank in ranks} == {"a,b"}


def test_a_log_with_a_backslash_is_refused():
    """Slurm drops backslashes from the name of a log, so that it could not open it, and the job would never start."""
    with pytest.raises(InputError, match=r"drops backslashes.*choose another folder with --out"):
        sbatch_argv(Allocation(name="a", layout=lay_out(1, 1)), output="/runs/a\\b/slurm.log", script="/s")


@pytest.mark.parametrize("program", ["apptainer", "podman"])
def test_what_a_case_sets_is_not_overridden_by_the_node(program):
    step = Step(layout=lay_out(2, 2), python="p", code_path="/c", container=container(program))
    plain, _ = step_command(step, "/r.json", {})
    own, added = step_command(step, "/r.json", {"CUDA_VISIBLE_DEVICES": "1,0"})
    assert any("CUDA_VISIBLE_DEVICES" in word for word in plain)
    assert added.get("APPTAINERENV_CUDA_VISIBLE_DEVICES") == "1,0" or "--env=CUDA_VISIBLE_DEVICES=1,0" in own
    assert "--env=CUDA_VISIBLE_DEVICES" not in own
    assert not any("export APPTAINERENV_CUDA_VISIBLE_DEVICES" in word for word in own)
