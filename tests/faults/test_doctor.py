"""doctor tells what is usable, with the real reason; a plug-in that crashes or hangs costs itself alone."""

import dataclasses
import json
import os
import re
import sys
import textwrap
import time
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from attnspec import plugins
from attnspec.cli import _answers, _examination, _launchers, _variants, doctor
from attnspec.cli.main import exit_code
from attnspec.errors import InputError, UnsupportedError
from attnspec.launch import processes
from attnspec.launch.found import Found
from attnspec.launch.runner_profile import Runner, load_runner, search_folders
from attnspec.launchers._containers import ending_argv
from attnspec.support import Device
from attnspec.wire import WORKER_FIX

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
    "absent": {"module": "nowhere_at_all"},
    "elsewhere": {"devices": ("cuda",)},
    "leaving": {"before": "raise SystemExit(7)"},
    "raising": {"before": "raise OSError('libcuda.so.1: cannot open shared object file')"},
    "crashing": {"before": "os.kill(os.getpid(), signal.SIGSEGV)"},
    "exiting": {"before": "os.write(2, b'its own last words'); os._exit(7)"},
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
    answers = _examination.examined(_examination.outside(sys.executable, runner), kernels, 300, {})
    assert list(answers) == list(kernels)
    told = {target.removeprefix("kernels:"): answer for target, answer in answers.items()}
    for name in ("fine", "chatty"):
        assert told[name]["usable"]
        assert told[name]["provider"] == "p"
        assert told[name]["version"]
        assert told[name]["reason"] is None
        assert told[name]["fix"] is None
    # What others print is not its own last word, nor does ending it hide how it ended.
    assert told["crashing"]["reason"] == "its process ended with signal SIGSEGV"
    assert told["exiting"]["reason"] == "its process ended with exit code 7: its own last words"
    assert told["crashing"]["fix"] == told["exiting"]["fix"] == "install it anew: pip install p"
    assert told["leaving"]["reason"] == "p: SystemExit: 7"
    assert told["absent"]["reason"] == "p: ModuleNotFoundError: No module named 'nowhere_at_all'"
    assert told["absent"]["fix"] == "pip install p"
    assert told["elsewhere"]["reason"].startswith("p: runs on cuda, not on cpu")
    assert told["elsewhere"]["fix"] is None
    assert told["raising"]["reason"] == "p: OSError: libcuda.so.1: cannot open shared object file"
    assert told["raising"]["fix"] == "pip install p"
    for name in SOURCES.keys() - {"fine", "chatty"}:
        assert told[name]["usable"] is False
        assert told[name]["provider"] is None


WAYS = """
PLUGIN_KIND = "kernels"
import os
from dataclasses import dataclass
from typing import Literal
from attnspec.errors import UnsupportedError
from attnspec.kernels import sdpa
from attnspec.params import param
from attnspec.support import Provider, Support
PROVIDERS = (
    Provider(name="absent", distribution="absent", module="nowhere_at_all", fix="pip install absent"),
    Provider(name="one", distribution="torch", module="torch", fix="pip install one", apart=True),
    Provider(name="other", distribution="torch", module="torch", fix="pip install other", apart=True),
)
BACKEND_PACKAGES = {"packed": Provider(name="more", distribution="more", module="no_more", fix="pip install more")}
SUPPORT = Support(devices=("cpu",), dtypes=("float32",), max_head_dim=64)
@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    backend: Literal["plain", "packed", "crashing"] | None = param(default=None, doc="Its variant.")
def lower(problem, params, provider):
    return sdpa.lower(problem, sdpa.Params(), provider)
def bind(lowered, problem, params, provider, device):
    held = os.environ.setdefault("HELD_BY_THIS_PROCESS", provider)
    if held != provider:
        raise UnsupportedError("broken_package", f"this process holds the operators of {held} already")
    if params.backend == "crashing":
        os.abort()
    return sdpa.bind(lowered, problem, sdpa.Params(), provider, device)
"""


@pytest.fixture
def ways(tmp_path, monkeypatch):
    """A kernel with three providers, two of which no process can hold together, and three backends."""
    monkeypatch.setattr(plugins, "_extra", {kind: {} for kind in plugins.KINDS})
    (tmp_path / "ways.py").write_text(WAYS)
    plugins.load_file(tmp_path / "ways.py")
    return tuple(_variants.kernel_targets("ways"))


def test_targets_of_a_provider_apart_share_no_process(ways):
    alone = [[f"kernels:ways:{provider}{backend}"] for provider in ("one", "other") for backend in ("", ":plain")]
    processes = _examination._processes(ways)
    assert [one for one in processes if one in alone] == alone
    assert "kernels:ways:absent:plain" in processes[0] and len(processes[0]) > 3


@pytest.mark.slow
def test_each_provider_and_backend_gets_its_own_answer(ways, runner):
    answers = _examination.examined(_examination.outside(sys.executable, runner), ways, 300, {})
    assert len(answers) == 12
    (answer,) = _variants.kernel_answers(answers).values()
    assert (answer["usable"], answer["provider"]) == (True, "one")
    found = {(one["provider"], one["backend"]): one for one in answer["variants"]}
    assert list(found) == [
        (provider, backend) for provider in ("absent", "one", "other") for backend in ("plain", "packed", "crashing")
    ]
    for provider in ("one", "other"):
        assert found[provider, "plain"]["usable"]
        assert found[provider, "plain"]["version"]
        assert found[provider, "packed"]["reason"] == "more: ModuleNotFoundError: No module named 'no_more'"
        assert found[provider, "packed"]["fix"] == "pip install more"
        assert found[provider, "crashing"]["reason"].startswith("its process ended with signal SIGABRT")
        assert found[provider, "crashing"]["fix"] == f"install it anew: pip install {provider}"
    for backend in ("plain", "packed", "crashing"):
        assert found["absent", backend]["reason"] == "absent: ModuleNotFoundError: No module named 'nowhere_at_all'"
        assert found["absent", backend]["fix"] == "pip install absent"


def test_every_way_of_the_shipped_specs_is_a_target():
    spec = yaml.safe_load((Path(__file__).parents[2] / "specs" / "h200_kernel.yaml").read_text())
    targets = [target.split(":")[1:] for target in _examination.targets_here() if target.startswith("kernels:")]
    for entry in spec["sweeps"][0]["kernels"]:
        ((name, settings),) = entry.items() if isinstance(entry, dict) else [(entry, {})]
        provider, backend = settings.get("provider"), settings.get("backend")
        assert any(
            one == name and provider in (None, way[0]) and [backend] == (way[1:] or [None]) for one, *way in targets
        ), entry
    assert len(targets) == len({tuple(target) for target in targets})


FAULTS = {
    "slash": ('PROVIDERS = (Provider(name="site/a", distribution="torch", module="torch"),)', None),
    "colon": ('PROVIDERS = (Provider(name="a:b:c", distribution="torch", module="torch"),)', None),
    "unlisted": ("del PROVIDERS", "AttributeError: module 'attnspec_plugin_unlisted' has no attribute 'PROVIDERS'"),
    "empty": ("PROVIDERS = ()", "it has no provider"),
    "words": ('PROVIDERS = ("torch",)', "AttributeError: 'str' object has no attribute 'fix'"),
    "number": ("PROVIDERS = 5", "TypeError: 'int' object is not iterable"),
    "variables": ("ENVIRONMENT = 5", "AttributeError: 'int' object has no attribute 'items'"),
    "host_only": ('import sys\nassert "attnspec.worker.doctor" not in sys.orig_argv', "failed to load: AssertionError"),
    "fine": ("", None),
}


def test_a_plug_in_at_fault_costs_itself_alone(tmp_path, monkeypatch, runner):
    monkeypatch.setattr(plugins, "_extra", {kind: {} for kind in plugins.KINDS})
    for name, (more, _) in FAULTS.items():
        text = KERNEL.format(module="torch", devices=("cpu", "cuda"), before="pass")
        (tmp_path / f"{name}.py").write_text(f"{text}\n{more}\n")
        plugins.load_file(tmp_path / f"{name}.py")
    targets = [target for name in FAULTS for target in _variants.kernel_targets(name)]
    answers = _examination.examined(_examination.outside(sys.executable, runner), targets, 300, {})
    told = _variants.kernel_answers(answers)
    assert list(told) == list(FAULTS)
    for name, (_, reason) in FAULTS.items():
        assert told[name]["usable"] == (reason is None), told[name]
        assert (reason or "") in (told[name]["reason"] or ""), name
    assert [told[name]["provider"] for name in ("slash", "colon")] == ["site/a", "a:b:c"]


def test_names_of_ways_may_have_any_characters(tmp_path, monkeypatch, runner):
    monkeypatch.setattr(plugins, "_extra", {kind: {} for kind in plugins.KINDS})
    backends = '"plain", "packed", "crashing"'
    assert backends in WAYS
    text = WAYS.replace(backends, '"a:b", "c/d", "%"').replace('name="one"', 'name="o:n/e"')
    text = text.replace(", apart=True", "")  # one process for all three
    (tmp_path / "odd:name.py").write_text(text)
    plugins.load_file(tmp_path / "odd:name.py")
    targets = [one for one in _variants.kernel_targets("odd:name") if "n%2Fe" in one]
    place = _examination.Where(argv=(), env={}, kernels=("odd:name",), providers=("o:n/e",))
    assert all(place.holds(target) for target in targets)
    answers = _examination.examined(_examination.outside(sys.executable, runner), targets, 300, {})
    (answer,) = _variants.kernel_answers(answers).values()
    found = [(one["provider"], one["backend"], one["usable"]) for one in answer["variants"]]
    assert found == [("o:n/e", backend, True) for backend in ("a:b", "c/d", "%")]


def answer_of(provider, *, version=None, reason=None, fix=None):
    return {"usable": version is not None, "provider": provider, "version": version, "reason": reason, "fix": fix}


def test_answers_of_the_ways_become_one_of_the_kernel(monkeypatch):
    lacks, refuses = "a: ModuleNotFoundError: No module named 'a'", "torch: runs on CUDA only"
    ways = {
        "kernels:both:a": answer_of(None, reason=lacks, fix="pip install a"),
        "kernels:both:torch": answer_of("torch", version="2.13"),
        "kernels:none:a": answer_of(None, reason=lacks, fix="pip install a"),
        "kernels:none:torch": answer_of(None, reason=refuses),
        "kernels:lone:torch": answer_of("torch", version="2.13"),
        "kernels:wide:torch": answer_of(None, reason=refuses),
        "kernels:wide:torch:x": answer_of(None, reason=refuses),
        "kernels:wide:torch:y": answer_of("torch", version="2.13", reason="forward only"),
        "kernels:same:torch": answer_of(None, reason=refuses),
        "kernels:same:torch:x": answer_of(None, reason=refuses),
        "kernels:same:torch:y": answer_of(None, reason=refuses),
    }
    monkeypatch.setattr(doctor, "look", lambda python, env: found())
    monkeypatch.setattr(doctor, "examined", lambda *_: ways)
    result = CliRunner().invoke(doctor.command, ["--json"], standalone_mode=False)
    assert result.return_value == 0, result.output
    kernels = json.loads(result.output)["kernels"]
    lone = {"usable": True, "provider": "torch", "version": "2.13", "reason": None}
    first = {"usable": False, "provider": None, "version": None, "reason": f"{lacks}; fix: pip install a"}
    assert kernels["lone"] == lone
    assert kernels["both"] == {
        **lone,
        "variants": [{**first, "provider": "a", "backend": None}, {**lone, "backend": None}],
    }
    assert kernels["none"] == {
        **first,
        "reason": f"{lacks}; {refuses}; fix: pip install a",
        "variants": [
            {**first, "provider": "a", "backend": None},
            {**first, "provider": "torch", "backend": None, "reason": refuses},
        ],
    }
    assert kernels["wide"]["usable"]
    assert [(one["backend"], one["usable"]) for one in kernels["wide"]["variants"]] == [("x", False), ("y", True)]
    assert list(_answers.answer_lines({"kernels": _variants.kernel_answers(ways)})) == [
        "",
        "kernels: 3 of 5 usable",
        "  yes  both      torch 2.13",
        "     no   a      ModuleNotFoundError: No module named 'a'",
        "                 fix: pip install a",
        "     yes  torch  2.13",
        "  no   none",
        "     no   a      ModuleNotFoundError: No module named 'a'",
        "                 fix: pip install a",
        "     no   torch  runs on CUDA only",
        "  yes  lone      torch 2.13",
        "  yes  wide      torch 2.13, forward only",
        "     no   x      runs on CUDA only",
        "     yes  y      2.13, forward only",
        "  no   same      torch: runs on CUDA only",
    ]


def test_a_strategy_needs_the_package_whose_kernel_its_library_calls(monkeypatch):
    from attnspec.worker import doctor as examiner

    def installed(provider):
        if provider.name == "flash-attn":
            raise UnsupportedError("missing_package", "it is not here")
        return "0.6.4"

    monkeypatch.setattr(examiner, "installed_version", installed)
    answer = examiner.examine("strategies", "yunchang_usp", device=Device(type="cpu"))
    assert not answer["usable"] and answer["reason"] == "flash-attn: it is not here" and "flash-attn" in answer["fix"]
    assert examiner.examine("strategies", "te_p2p", device=Device(type="cpu"))["version"] == "0.6.4"


def test_an_image_is_asked_for_what_it_holds():
    place = _examination.Where(argv=(), env={}, kernels=("fa2",), strategies=(), providers=("torch",))
    asked = ("kernels:fa2", "kernels:fa2:torch", "kernels:fa2:flash-attn", "kernels:fa3:torch", "strategies:usp")
    assert [place.holds(one) for one in asked] == [True, True, False, False, False]


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
    answers = _examination.examined(_examination.outside(python, runner), ("kernels:first", "kernels:second"), 1, {})
    assert answers["kernels:first"]["reason"] == "no answer in 1 s"
    assert answers["kernels:first"]["fix"] == "--timeout 2 gives it more time"
    assert answers["kernels:second"] == {"usable": True}
    time.sleep(1.5)
    assert not left.exists()


@pytest.mark.parametrize(
    ("removal", "told"),
    [
        ("echo 'removal of container x is already in progress' >&2; exit 1", "removal of container x is already in"),
        ("exec sleep 30", "timed out after 0.5 seconds"),
        (None, "/bin/nowhere/docker"),
    ],
    ids=["in_progress", "slow_daemon", "gone"],
)
def test_a_container_that_cannot_be_removed_hides_no_answer(tmp_path, monkeypatch, runner, removal, told):
    """docker lists the container of a process that has just ended, and fails to remove it."""
    monkeypatch.setattr(processes, "ENDING_S", 0.5 if "sleep" in str(removal) else 20)
    docker = tmp_path / "docker"
    docker.write_text(f"#!/bin/sh\n[ $1 = rm ] || {{ echo x; exit; }}\n{removal}\n")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    ending = ending_argv("docker", "x") if removal else ["/bin/nowhere/docker"]
    python = fake_python(
        tmp_path,
        """
        case "$*" in *kernels:first*)
            echo '{"starts": "kernels:first"}'
            sleep 60;;
        esac
        echo '{"starts": "kernels:second"}'
        echo '{"done": "kernels:second", "usable": true}'
        """,
    )
    place = dataclasses.replace(_examination.outside(python, runner), ending=tuple(ending))
    assert _examination.examined(place, ("kernels:second",), 30, {}) == {"kernels:second": {"usable": True}}
    reason = _examination.examined(place, ("kernels:first",), 1, {})["kernels:first"]["reason"]
    assert reason.startswith("no answer in 1 s; it may still run: ")
    assert told in reason


def test_a_process_that_cannot_begin_answers_for_all(tmp_path, runner):
    python = fake_python(tmp_path, "echo 'No module named attnspec' >&2; exit 1")
    answers = _examination.examined(_examination.outside(python, runner), ("kernels:first", "kernels:second"), 30, {})
    assert {answer["reason"] for answer in answers.values()} == {
        "its process ended with exit code 1: No module named attnspec"
    }


def found(missing=()):
    return Found(python="3.12.0", versions={}, missing=dict(missing), cuda=None, devices=())


def test_json_has_the_three_kinds(monkeypatch):
    answer = {"usable": True, "provider": "p", "version": "1.2", "reason": None, "fix": None}
    absent = _answers.unusable("p: ModuleNotFoundError: No module named 'p'", "pip install p")
    answers = {"kernels:fine": answer, "kernels:absent": absent, "strategies:ring": answer}
    monkeypatch.setattr(doctor, "look", lambda python, env: found())
    monkeypatch.setattr(doctor, "examined", lambda *_: answers)
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
    assert f"fix: {WORKER_FIX}" in result.output


def test_a_launcher_whose_program_is_not_here_is_not_usable(toys, monkeypatch):
    launcher = plugins.load("launchers", "local")
    monkeypatch.setattr(launcher, "PROGRAMS", ("sh", "no-such-program"), raising=False)
    assert _launchers.launcher_answer("local") == {
        "usable": False,
        "provider": None,
        "version": None,
        "reason": "not found: no-such-program",
        "fix": "install no-such-program",
    }
    monkeypatch.setattr(launcher, "PROGRAMS", ("sh",))
    assert _launchers.launcher_answer("local")["usable"]


def test_a_runner_of_a_launcher_of_the_user_s_own_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(plugins, "_extra", {kind: {} for kind in plugins.KINDS})
    (tmp_path / "elsewhere.py").write_text('PLUGIN_KIND = "launchers"\n')
    plugins.load_file(tmp_path / "elsewhere.py")
    (tmp_path / "away.yaml").write_text("launcher: elsewhere\n")
    result = CliRunner().invoke(doctor.command, ["--runner", str(tmp_path / "away.yaml")], standalone_mode=False)
    assert isinstance(result.exception, InputError)
    assert "starts its workers with elsewhere; doctor looks at this machine only" in str(result.exception)


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Stand-ins of Slurm's commands; sinfo's has two nodes with two GPUs and four cores each."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "fakes" / "slurm"))
    import programs

    monkeypatch.setenv("PATH", f"{programs.install(tmp_path / 'bin')}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SLURM", str(tmp_path))
    return tmp_path


def test_of_a_cluster_the_nodes_and_images_are_told(cluster):
    file = cluster / "site.yaml"
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
    assert (
        "no   image hopper has no reference by digest to pull (manifest_digest, image_id, base.digest, packa" in output
    )
    assert "fix: `attnspec image build hopper --base docker.io/" in output
    assert "@sha256:DIGEST` builds it; push it to a registry that the machines reach: " in output
    assert "Instead:\n  --runner NAME   takes another runner" in output
    assert "--only" not in output
    code, output = told(fits + image.replace(f"@{digest}", ":latest"), "--json")
    assert code == 3
    (line, json_line) = sorted(output.splitlines())
    (problem,) = json.loads(json_line)["problems"]
    assert line == f"attnspec: {problem}"
    assert problem.startswith("image registry.example/a:latest is given by a tag")
    code, output = told(fits + image.replace(f"@{digest}", ":latest"), "--unpinned")
    assert code == 0
    assert "yes  image registry.example/a:latest: registry.example/a:latest" in output
    code, output = told(fits + "image: [hopper-magi, hopper-te]\nslurm: {container: pyxis}\n")
    assert code == 3
    assert output.count("has no reference by digest") == 1
    assert output.count("so it has not been built") == 1
    assert "no   image hopper-te: the same" in output
    assert "--unpinned" not in output
    code, output = told(fits + "image: hopper\nslurm: {container: apptainer}\n", "--unpinned")
    assert code == 3
    assert "--unpinned changes nothing here: the machines that run an image fetch it" in output


SMALL = """\
attnspec: 1
name: small
shape: {num_heads_q: 2, num_heads_kv: 2, head_dim: 16, dtype: float32}
sweeps:
  - {level: kernel, masks: [causal], seqlen: 64, passes: [fwd], kernels: [reference]}
"""


@pytest.mark.parametrize("lacks", ["pyxis", "nodes", "image"])
def test_run_and_doctor_refuse_alike_what_a_cluster_lacks(cluster, monkeypatch, capsys, lacks):
    monkeypatch.chdir(cluster)
    image = "hopper" if lacks == "image" else f"registry.example/a@sha256:{'1' * 64}"
    (cluster / "small.yaml").write_text(SMALL)
    (cluster / "site.yaml").write_text(
        "launcher: slurm\ngpus_per_node: 1\ndevice: {type: cpu}\n"
        f"image: {image}\nslurm: {{container: pyxis{', partition: nowhere' if lacks == 'nodes' else ''}}}\n"
    )
    if lacks == "pyxis":
        (cluster / "behaviour.json").write_text(json.dumps({"unknown": ["container-image"]}))
    told = {
        "pyxis": "starts its containers through pyxis, and `srun --help` here tells of no --container-image; this Slurm's",
        "nodes": "submits to Slurm, and Slurm has no partition 'nowhere'; there is: main",
        "image": "image hopper has no reference by digest to pull",
    }[lacks]
    assert exit_code(["run", "small.yaml", "--runner", "./site.yaml"]) == 3
    ran = capsys.readouterr().err
    assert exit_code(["doctor", "--runner", "./site.yaml"]) == 3
    examined = capsys.readouterr().out
    assert told in ran
    assert told in examined
    if lacks == "pyxis":
        assert "  no   pyxis: runner site starts" in examined
        assert "  yes  Slurm has nodes for 1 rank\n" in examined
    offers = [text.split("Instead:\n")[1] for text in (ran, examined)]
    lines = [[line for line in one.splitlines() if line.startswith("  ")] for one in offers]
    assert [line.split("   ")[0].strip() for line in lines[0][:3]] == ["--runner NAME", "--runner local", "--rehearse"]
    assert lines[1][: len(lines[0])] == lines[0]
    assert not (cluster / "runs").exists()
    calls = [json.loads(line)[0] for line in (cluster / "calls.jsonl").read_text().splitlines()]
    assert "sbatch" not in calls


@pytest.mark.parametrize("given", [(), ("--json",)])
def test_images_that_cannot_be_had_are_told_one_by_one_with_what_to_do(tmp_path, monkeypatch, given):
    """A podman that holds no image and reaches no registry."""
    podman = tmp_path / "podman"
    podman.write_text('#!/bin/sh\n[ "$1 $2" != "image inspect" ] && [ "$1" != pull ] || { echo gone >&2; exit 1; }\n')
    podman.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    file = tmp_path / "site.yaml"
    pulled = f"registry.example/a@sha256:{'1' * 64}"
    file.write_text(f"launcher: podman\nimage: [cpu, {pulled}]\ndevice: {{type: cpu}}\n")
    result = CliRunner().invoke(doctor.command, ["--runner", str(file), *given], standalone_mode=False)
    assert (result.exception, result.return_value) == (None, 3)
    if given:
        content = json.loads(result.stdout)
        assert content["problems"] == [
            (
                "image cpu is not here, and its lock names no registry to pull it from; "
                "`attnspec image build cpu --base docker.io/library/python@sha256:DIGEST` builds it"
            ),
            f"image {pulled} cannot be used: podman cannot pull {pulled}: gone",
        ]
        assert {answer["usable"] for answer in content["kernels"].values()} == {False}
        return
    assert result.stdout.startswith(f"runner {file.stem}:\n  no   image cpu is not here")
    assert (
        "\n       fix: `attnspec image build cpu --base docker.io/library/python@sha256:DIGEST` builds it\n"
        in result.stdout
    )
    assert f"  no   image {pulled} cannot be used: podman cannot pull" in result.stdout
    assert "Instead:\n  --runner local   runs on what is here\n" in result.stdout


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo banner >&2; echo 'Cannot connect to the daemon' >&2; exit 1", "docker version fails: Cannot connect to"),
        ("exit 3", "docker version fails: exit code 3"),
        ("exec sleep 30", "docker version gave no answer in 0.5 s"),
        ("echo 28.2.2", None),
    ],
    ids=["told", "silent", "hangs", "answers"],
)
def test_a_launcher_whose_daemon_does_not_answer_is_not_usable(tmp_path, monkeypatch, script, reason):
    (tmp_path / "docker").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(_launchers, "TRIAL_S", 0.5 if "sleep" in script else 20)
    answer = _launchers.launcher_answer("docker")
    assert answer["usable"] == (reason is None)
    if reason is None:
        assert answer["reason"] == "no container was started to try it"
        assert _launchers.launcher_answer("docker", proven=True)["reason"] is None
    else:
        assert answer["reason"].startswith(reason)
        assert "systemctl start docker" in answer["fix"]


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("exit 0", None),
        (
            "echo WARN >&2; echo 'Error: crun: setrlimit `RLIMIT_NOFILE`: Operation not permitted' >&2; exit 126",
            "podman run fails: Error: crun: setrlimit `RLIMIT_NOFILE`: Operation not permitted",
        ),
    ],
    ids=["starts", "rlimit"],
)
def test_podman_is_usable_where_it_starts_a_container_and_needs_no_image_for_that(tmp_path, monkeypatch, end, reason):
    podman = tmp_path / "podman"
    podman.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/argv\n{end}\n')
    podman.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    answer = _launchers.launcher_answer("podman")
    assert (answer["usable"], answer["reason"]) == (reason is None, reason)
    argv = (tmp_path / "argv").read_text().splitlines()
    assert argv[0] == "run"
    assert {"--rm", "--init", "--pull=never", "--ipc=host"} <= set(argv)  # as a worker's container
    *_, root, program, option = argv
    assert argv[-4] == "--rootfs"
    assert (program, option) == ("/run/podman-init", "--version")
    assert not Path(root).exists()
    if reason is not None:
        assert answer["fix"].startswith("point CONTAINERS_CONF at a file with the settings that docs/containers.md has")


@pytest.mark.slow
def test_another_device_than_the_runner_expects_is_told(toys, monkeypatch):
    monkeypatch.setattr(doctor, "look", lambda python, env: found({}))
    result = CliRunner().invoke(doctor.command, ["--runner", "h100"], standalone_mode=False)
    assert result.return_value == 3
    assert "runner h100 expects a CUDA device named H100" in result.output


def test_a_problem_of_a_local_runner_is_told_with_json_too(monkeypatch):
    monkeypatch.setattr(doctor, "look", lambda python, env: found())
    monkeypatch.setattr(doctor, "examined", lambda *_: {})
    result = CliRunner().invoke(doctor.command, ["--runner", "h100", "--json"], standalone_mode=False)
    assert result.return_value == 3
    (problem,) = json.loads(result.stdout)["problems"]
    assert problem.startswith("runner h100 expects a CUDA device named H100")
    assert result.stderr == f"attnspec: {problem}\n"


@pytest.mark.parametrize("seconds", ["0", "-5", "010"])
def test_a_time_limit_below_a_second_is_refused(monkeypatch, seconds):
    monkeypatch.setattr(doctor, "look", lambda python, env: found())
    monkeypatch.setattr(doctor, "examined", lambda *_: {})
    result = CliRunner().invoke(doctor.command, ["--timeout", seconds])
    assert result.exit_code == 2
    assert "Invalid value for '--timeout'" in result.output
