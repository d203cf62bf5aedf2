"""doctor tells what is usable, with the real reason; a plug-in that crashes or hangs costs itself alone."""

import json
import os
import re
import sys
import textwrap
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from attnspec import plugins
from attnspec.cli import doctor
from attnspec.errors import InputError
from attnspec.launch.found import Found
from attnspec.launch.runner_profile import Runner, load_runner, search_folders

KERNEL = """
PLUGIN_KIND = "kernels"
import os, signal
from attnspec.kernels.sdpa import Params, lower
from attnspec.kernels import sdpa
from attnspec.support import Provider, Support
PROVIDERS = (Provider(name="p", distribution="torch", module={module!r}, fix="pip install p"),)
SUPPORT = Support(devices={devices!r}, dtypes=("float32",), max_head_dim=64)
def bind(lowered, problem, params, provider, device):
    {before}
    return sdpa.bind(lowered, problem, params, provider, device)
"""
SOURCES = {
    "fine": {},
    "chatty": {"before": "os.write(1, b'{\"starts\": \"nonsense\"}\\n'); print('loading kernels ...')"},
    "crashing": {"before": "os.kill(os.getpid(), signal.SIGSEGV)"},
    "absent": {"module": "nowhere_at_all"},
    "elsewhere": {"devices": ("cuda",)},
    "raising": {"before": "raise OSError('libcuda.so.1: cannot open shared object file')"},
}


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    """The kernels of SOURCES as plug-in files, loaded; targets in their order."""
    monkeypatch.setattr(plugins, "_extra", {kind: {} for kind in plugins.KINDS})
    for name, values in SOURCES.items():
        held = {"module": "torch", "devices": ("cpu", "cuda"), "before": "pass", **values}
        (tmp_path / f"{name}.py").write_text(KERNEL.format(**held))
        plugins.load_file(tmp_path / f"{name}.py")
    return tuple(f"kernels:{name}" for name in SOURCES)


@pytest.fixture
def runner() -> Runner:
    return load_runner("local", search_folders(cwd=Path.cwd(), environ=os.environ))


def test_every_kernel_gets_its_own_answer(kernels, runner):
    answers = doctor._examined(doctor._outside(sys.executable, runner), kernels, 300, {})
    assert list(answers) == list(kernels)
    told = {target.removeprefix("kernels:"): answer for target, answer in answers.items()}
    for name in ("fine", "chatty"):
        assert told[name]["usable"]
        assert told[name]["provider"] == "p"
        assert told[name]["version"]
        assert told[name]["reason"] is None
        assert told[name]["fix"] is None
    assert told["crashing"]["reason"].startswith("its process ended with signal SIGSEGV")
    assert told["absent"]["reason"] == "p: ModuleNotFoundError: No module named 'nowhere_at_all'"
    assert told["absent"]["fix"] == "pip install p"
    assert told["elsewhere"]["reason"].startswith("p: runs on cuda, not on cpu")
    assert told["elsewhere"]["fix"] is None
    assert told["raising"]["reason"] == "p: OSError: libcuda.so.1: cannot open shared object file"
    assert told["raising"]["fix"] == "pip install p"
    for name in SOURCES.keys() - {"fine", "chatty"}:
        assert told[name]["usable"] is False
        assert told[name]["provider"] is None


def fake_python(tmp_path, script):
    """An interpreter that runs a shell script whatever it is asked."""
    file = tmp_path / "python"
    file.write_text("#!/bin/sh\n" + textwrap.dedent(script))
    file.chmod(0o755)
    return str(file)


@pytest.mark.slow
def test_a_kernel_that_hangs_is_ended_with_what_it_started(tmp_path, runner):
    left = tmp_path / "left"
    python = fake_python(
        tmp_path,
        f"""
        case "$*" in *kernels:first*)
            echo '{{"starts": "kernels:first"}}'
            (sleep 2; touch {left}) &
            sleep 60;;
        esac
        echo '{{"starts": "kernels:second"}}'
        echo '{{"done": "kernels:second", "usable": true}}'
        """,
    )
    answers = doctor._examined(doctor._outside(python, runner), ("kernels:first", "kernels:second"), 1, {})
    assert answers["kernels:first"]["reason"] == "no answer in 1 s"
    assert answers["kernels:second"] == {"usable": True}
    time.sleep(1.5)
    assert not left.exists()


def test_a_process_that_cannot_begin_answers_for_all(tmp_path, runner):
    python = fake_python(tmp_path, "echo 'No module named attnspec' >&2; exit 1")
    answers = doctor._examined(doctor._outside(python, runner), ("kernels:first", "kernels:second"), 30, {})
    assert {answer["reason"] for answer in answers.values()} == {
        "its process ended with exit code 1: No module named attnspec"
    }


def found(missing=()):
    return Found(python="3.12.0", versions={}, missing=dict(missing), cuda=None, devices=())


def test_json_has_the_three_kinds(monkeypatch):
    answer = {"usable": True, "provider": "p", "version": "1.2", "reason": None, "fix": None}
    absent = doctor._unusable("p: ModuleNotFoundError: No module named 'p'", "pip install p")
    answers = {"kernels:fine": answer, "kernels:absent": absent, "strategies:ring": answer}
    monkeypatch.setattr(doctor, "look", lambda python, env: found())
    monkeypatch.setattr(doctor, "_examined", lambda *_: answers)
    result = CliRunner().invoke(doctor.command, ["--json"], standalone_mode=False)
    assert result.return_value == 0, result.output
    content = json.loads(result.output)
    assert list(content) == ["kernels", "strategies", "launchers"]
    fine = {"usable": True, "provider": "p", "version": "1.2", "reason": None}
    assert content["kernels"] == {
        "fine": fine,
        "absent": {
            "usable": False,
            "provider": None,
            "version": None,
            "reason": "p: ModuleNotFoundError: No module named 'p'; fix: pip install p",
        },
    }
    assert content["strategies"] == {"ring": fine}
    assert content["launchers"]["local"]["usable"]
    shown = CliRunner().invoke(doctor.command, [], standalone_mode=False).output
    assert re.search(r"yes  fine +p 1\.2\n", shown)
    assert re.search(r"no   absent +p: ModuleNotFoundError: No module named 'p'\n +fix: pip install p\n", shown)


def test_without_torch_nothing_is_usable_and_the_exit_code_says_so(monkeypatch):
    why = {"torch": "ImportError: libtorch_cuda.so: undefined symbol: ncclCommShrink"}
    monkeypatch.setattr(doctor, "look", lambda python, env: found(why))
    result = CliRunner().invoke(doctor.command, [], standalone_mode=False)
    assert result.return_value == 3
    assert "torch: ImportError: libtorch_cuda.so: undefined symbol: ncclCommShrink" in result.output
    assert "fix: pip install 'attnspec[torch]'" in result.output


def test_a_launcher_whose_program_is_not_here_is_not_usable(toys, monkeypatch):
    launcher = plugins.load("launchers", "local")
    monkeypatch.setattr(launcher, "PROGRAMS", ("sh", "no-such-program"), raising=False)
    assert doctor._launcher("local") == {
        "usable": False,
        "provider": None,
        "version": None,
        "reason": "not found: no-such-program",
        "fix": "install no-such-program",
    }
    monkeypatch.setattr(launcher, "PROGRAMS", ("sh",))
    assert doctor._launcher("local")["usable"]


def test_a_runner_of_a_launcher_that_is_not_here_is_refused(tmp_path):
    (tmp_path / "away.yaml").write_text("launcher: elsewhere\n")
    result = CliRunner().invoke(doctor.command, ["--runner", str(tmp_path / "away.yaml")], standalone_mode=False)
    assert isinstance(result.exception, InputError)
    assert "starts its workers with elsewhere; doctor looks at this machine only" in str(result.exception)


def test_of_a_cluster_the_nodes_and_images_are_told(tmp_path, monkeypatch):
    """The stand-in of sinfo has two nodes with two GPUs and four cores each."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "fakes" / "slurm"))
    import programs

    monkeypatch.setenv("PATH", f"{programs.install(tmp_path / 'bin')}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SLURM", str(tmp_path))
    file = tmp_path / "site.yaml"
    fits = "launcher: slurm\ngpus_per_node: 2\nnodes: 2\ndevice: {type: cuda}\n"
    digest = f"sha256:{'1' * 64}"
    image = f"image: registry.example/a@{digest}\nslurm: {{container: pyxis}}\n"

    def told(text, *more):
        file.write_text(text)
        result = CliRunner().invoke(doctor.command, ["--runner", str(file), *more], standalone_mode=False)
        assert result.exception is None
        return result.return_value, result.output

    code, output = told(fits + image)
    assert code == 0
    assert "yes  Slurm has nodes for 4 ranks" in output
    assert f"yes  image registry.example/a@{digest}" in output
    code, output = told(fits.replace("nodes: 2", "nodes: 8") + image.replace(f"registry.example/a@{digest}", "hopper"))
    assert code == 3
    assert "16 ranks needs 8 nodes with 2 GPUs" in output
    assert "no   image hopper: image hopper has no reference by digest to pull" in output
    code, output = told(fits + image.replace(f"@{digest}", ":latest"), "--json")
    assert code == 3
    (problem,) = json.loads(output)["problems"]
    assert "given by a tag" in problem


@pytest.mark.slow
def test_another_device_than_the_runner_expects_is_told(toys, monkeypatch):
    monkeypatch.setattr(doctor, "look", lambda python, env: found({}))
    result = CliRunner().invoke(doctor.command, ["--runner", "h100"], standalone_mode=False)
    assert result.return_value == 3
    assert "runner h100 expects a CUDA device named H100" in result.output
