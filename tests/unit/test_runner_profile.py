"""Runner profiles: where they are found, what they say, what they refuse, and which device they expect."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attnspec.errors import InputError, SpecError
from attnspec.images.reference import parse_image
from attnspec.launch.device_peaks import nominal_tflops
from attnspec.launch.place import survey
from attnspec.launch.runner_profile import Profile, Runner, load_runner, read_runner, runner_names, search_folders
from attnspec.resources import shipped
from attnspec.support import Device

SHIPPED = [shipped("runners")]
H100 = Device(type="cuda", capability=(9, 0), model="NVIDIA H100 80GB HBM3")


@pytest.mark.parametrize("name", runner_names(SHIPPED))
def test_every_shipped_profile_is_read(name):
    runner = load_runner(name, SHIPPED)
    assert (runner.name, Path(runner.file).parent) == (name, shipped("runners"))
    first = name.partition("-")[0]
    assert runner.launcher == (first if first in ("docker", "podman", "slurm") else "local")
    assert runner.description


def test_the_shipped_profiles():
    assert set(runner_names(SHIPPED)) >= {"local", "h100", "h200", "b200", "slurm-h100", "slurm-b200"}
    assert load_runner("local", SHIPPED).expected_device() is None
    assert load_runner("b200", SHIPPED).expected_device() == Device(type="cuda", capability=(10, 0))
    assert load_runner("h100", SHIPPED).gpus_per_node == 8


@pytest.mark.parametrize("path", sorted(shipped("specs").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_spec_names_a_runner_that_is_there(path):
    first = next((line for line in path.read_text().splitlines() if line.startswith("runner:")), "runner: local")
    assert first.split()[1] in runner_names(SHIPPED)


def test_the_first_folder_wins(tmp_path):
    folders = search_folders(cwd=tmp_path / "here", environ={"XDG_CONFIG_HOME": str(tmp_path / "config")})
    assert folders == (tmp_path / "here/runners", tmp_path / "config/attnspec/runners", shipped("runners"))
    assert load_runner("local", folders).file == str(shipped("runners") / "local.yaml")
    for folder, text in ((folders[1], "mine"), (folders[0], "nearest")):
        folder.mkdir(parents=True)
        (folder / "local.yaml").write_text(f"description: {text}\nlauncher: local\n")
        assert load_runner("local", folders).description == text


def test_without_the_variable_the_users_folder_is_in_home(tmp_path):
    folders = search_folders(cwd=tmp_path, environ={"HOME": "/home/user"})
    assert folders[1] == Path("/home/user/.config/attnspec/runners")


def test_a_path_is_read_as_it_is(tmp_path):
    (tmp_path / "mine.yaml").write_text("launcher: local\ndevice: {type: cpu}\nenv: {OMP_NUM_THREADS: '2'}\n")
    runner = load_runner(str(tmp_path / "mine.yaml"), [])
    assert (runner.name, runner.env) == ("mine", {"OMP_NUM_THREADS": "2"})
    assert runner.expected_device() == Device(type="cpu")


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(InputError, match=r"unknown runner 'h10' \(did you mean 'h100'\?\); allowed: b200, .*or a path"):
        load_runner("h10", SHIPPED)


def test_everything_wrong_in_a_file_at_once_with_lines(tmp_path):
    file = tmp_path / "bad.yaml"
    file.write_text(
        "name: x\nlaunchr: local\ngpus_per_node: yes\n"
        'device: {type: cud, model: "(", capability: 9.0}\nenv: {RANK: "1", A: 1}\n'
    )
    with pytest.raises(SpecError) as caught:
        read_runner(file)
    said = {problem.path: (problem.line, problem.message) for problem in caught.value.problems}
    assert said["name"][0] == 1 and said["name"][1].startswith("unknown key 'name'; allowed: description, ")
    assert said["launchr"][0] == 2 and "(did you mean 'launcher'?)" in said["launchr"][1]
    assert said["gpus_per_node"] == (3, "got 'yes'; allowed: an integer")
    assert said["device.type"] == (4, "got 'cud' (did you mean 'cuda'?); allowed: auto, cpu, cuda")
    assert said["device.model"][1].startswith("got '(', no regular expression: ")
    assert said["device.capability"] == (4, 'got 9.0; allowed: text such as "9.0"')
    assert said["env.RANK"] == (5, "RANK is set by the launcher of a job; leave it out")
    assert said["env.A"] == (5, 'got 1; allowed: text; write it in quotes: "1"')


def test_what_another_device_or_launcher_has_is_refused(tmp_path):
    file = tmp_path / "bad.yaml"
    file.write_text('launcher: local\nnodes: 4\ndevice:\n  type: cpu\n  model: Xeon\n  capability: "9.0"\n')
    with pytest.raises(SpecError) as caught:
        read_runner(file)
    said = {problem.path: (problem.line, problem.message) for problem in caught.value.problems}
    assert said == {
        "nodes": (2, "got 4; launcher local starts jobs on one machine; allowed: 1"),
        "device.model": (5, "is for a CUDA device; device.type is cpu"),
        "device.capability": (6, "is for a CUDA device; device.type is cpu"),
    }


@pytest.mark.parametrize(
    ("name", "ranks", "why"),
    [
        ("h100", 8, ""),
        ("h100", 16, "c needs 16 devices; runner h100 has 8, and its launcher local does not reach others"),
        ("slurm-h100", 64, ""),
        ("slurm-h100", 128, "c needs 128 devices; runner slurm-h100 has 8 on a machine and 8 machines"),
        ("local", 64, ""),
    ],
)
def test_more_ranks_than_a_runner_allows(name, ranks, why):
    assert load_runner(name, SHIPPED).beyond(ranks, "c") == why


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"", "got null; allowed: a mapping with description, launcher,"),
        (b"device: {type: cpu}\n", "bad.yaml:1: launcher: is missing"),
        (b"- local\n", "got a list; allowed: a mapping with description, launcher,"),
        (b"launcher: local\nlauncher: slurm\n", r"bad.yaml:2: launcher: is given twice \(first in line 1\)"),
        (b"launcher: \xff\n", "cannot be read: 'utf-8' codec"),
    ],
    ids=["missing", "empty", "no launcher", "list", "twice", "encoding"],
)
def test_files_that_are_no_profile(tmp_path, text, message):
    if text is not None:
        (tmp_path / "bad.yaml").write_bytes(text)
    with pytest.raises(SpecError, match=message):
        read_runner(tmp_path / "bad.yaml")


@pytest.mark.parametrize(
    ("name", "found", "fits"),
    [
        ("h100", H100, True),
        ("h100", Device(type="cuda", capability=(9, 0), model="NVIDIA H100 PCIe"), True),
        ("h100", Device(type="cuda", capability=(9, 0), model="nvidia h100"), True),
        ("h100", Device(type="cuda", model="NVIDIA H100 NVL"), True),
        ("h200", Device(type="cuda", capability=(9, 0), model="NVIDIA GH200 480GB"), False),
        ("h200", H100, False),
        ("b200", H100, False),
        ("b200", Device(type="cpu", model="B200"), False),
        ("b200", Device(type="cuda", capability=(9, 0), model="NVIDIA B200"), False),
        ("local", Device(type="cpu"), True),
        ("local", H100, True),
    ],
)
def test_which_devices_fit(name, found, fits):
    assert (load_runner(name, SHIPPED).mismatch(found) is None) == fits


def test_a_mismatch_says_what_is_expected_and_what_was_found():
    assert load_runner("b200", SHIPPED).mismatch(H100) == (
        "runner b200 expects a CUDA device named B200 with compute capability 10.0; found NVIDIA H100 80GB HBM3 (cuda)"
    )
    assert load_runner("h100", SHIPPED).mismatch(Device(type="cpu")) == (
        "runner h100 expects a CUDA device named H100 with compute capability 9.0; found a device without a name (cpu)"
    )


def test_nominal_throughput_is_half_the_peak_of_the_first_device_that_fits():
    assert nominal_tflops(load_runner("h100", SHIPPED), "bfloat16") == 989.4 / 2
    assert nominal_tflops(load_runner("slurm-b200", SHIPPED), "float16") == 2250 / 2
    assert nominal_tflops(load_runner("h200", SHIPPED), "float64") is None
    assert nominal_tflops(load_runner("local", SHIPPED), "bfloat16") is None


@pytest.mark.parametrize(
    ("flag", "fine"),
    [
        ("--exclusive", True),
        ("--constraint=h100&ib", True),
        ("--mem=0", True),
        ("--nodelist=n[1-8]", True),
        ("--wait", False),
        ("--test-only", False),
        ("--clusters=other", False),
        ("--outp=/tmp/x", False),
        ("--part=other", False),
        ("-N4", False),
        ("4", False),
        ("--comment=a\nb", False),
    ],
)
def test_flags_of_sbatch(tmp_path, flag, fine):
    file = tmp_path / "site.yaml"
    file.write_text(f"launcher: slurm\ndevice: {{type: cpu}}\nslurm: {{extra: [{json.dumps(flag)}]}}\n")
    if fine:
        assert read_runner(file).slurm.extra == (flag,)
        return
    with pytest.raises(SpecError, match=r"slurm\.extra\[0\]"):
        read_runner(file)


def test_what_a_launcher_says_of_its_options_comes_with_file_and_line(tmp_path):
    file = tmp_path / "site.yaml"
    file.write_text(
        f"launcher: podman\nimage: registry.example/a@sha256:{'1' * 64}\n"
        "options:\n  tls_verify: false\n  netwrk: none\n"
    )
    with pytest.raises(SpecError) as caught:
        read_runner(file)
    (problem,) = caught.value.problems
    assert (problem.file, problem.line, problem.path) == (str(file), 5, "options.netwrk")
    assert problem.message.startswith("unknown key 'netwrk' (did you mean 'network'?); allowed: ")


def test_an_image_of_the_launcher_that_uses_none_is_refused_with_those_that_do(tmp_path):
    file = tmp_path / "site.yaml"
    file.write_text("launcher: local\nimage: cpu\n")
    with pytest.raises(SpecError, match="allowed with docker, podman, apptainer, slurm"):
        read_runner(file)


def test_a_folder_that_is_looked_in_is_told_once(tmp_path):
    with pytest.raises(InputError) as caught:
        load_runner("h10", [tmp_path, *SHIPPED, *SHIPPED])
    assert str(caught.value).endswith(f"looked in {tmp_path}, {SHIPPED[0]}")


@pytest.mark.parametrize(
    ("launcher", "options", "told"),
    [
        ("local", {"foo": 1}, "unknown key 'foo'"),
        ("apptainer", {"foo": 1}, "unknown key 'foo'"),
        ("apptainer", {"network": "bridge"}, "network.*bridge"),
        ("podman", {"extra": ["other-image"]}, "extra.*allowed: a long flag"),
        ("docker", {"extra": ["-v", "/a:/b"]}, "extra.*allowed: a long flag"),
        ("docker", {"extra": ["--entrypoint=sh"]}, "--entrypoint is set by attnspec"),
    ],
)
def test_options_of_every_launcher_are_checked_before_anything_starts(launcher, options, told):
    image = [] if launcher == "local" else [parse_image(f"registry.example/a@sha256:{'1' * 64}")]
    profile = Profile(launcher=launcher, image=image, options=options)
    with pytest.raises(SpecError, match=told):
        survey(Runner(**dict(profile), name="x", file="x.yaml"), python_in_use="python3")
