"""One cuDNN in a process: torch's own leads, once, and what a user chose stays."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from attnspec.worker.one_cudnn import changes_for

SCRIPT = """
import os, sys
from attnspec.worker.one_cudnn import restart_with_torchs_cudnn
print("started", flush=True)
restart_with_torchs_cudnn()
print(os.environ.get("LD_LIBRARY_PATH"), os.environ.get("CUDNN_HOME"), sys.argv[1:], sys.flags.utf8_mode)
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "nvidia" / "cudnn"
    (folder / "lib").mkdir(parents=True)
    (folder / "lib" / "libcudnn.so.9").touch()
    return folder


def said(tmp_path: Path, *command: str, **env: str) -> list[str]:
    held = {name: value for name, value in os.environ.items() if name not in ("LD_LIBRARY_PATH", "CUDNN_HOME")}
    held["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *sys.path])
    command = (sys.executable, *(command or ("-X", "utf8", "-c", SCRIPT, "an argument")))
    return subprocess.run(
        command, env={**held, **env}, capture_output=True, text=True, check=True, timeout=60
    ).stdout.splitlines()


def test_a_process_starts_again_once_with_its_arguments(package, tmp_path):
    *starts, found = said(tmp_path, LD_LIBRARY_PATH="/elsewhere")
    assert starts == ["started"] * 2
    assert found == f"{package / 'lib'}:/elsewhere {package} ['an argument'] 1"


def test_a_chosen_cudnn_stays(package, tmp_path):
    assert said(tmp_path, CUDNN_PATH="/mine") == ["started", "None None ['an argument'] 1"]
    assert changes_for(package, {"CUDNN_HOME": "/mine"}) == {}


def test_nothing_to_do_without_the_package(tmp_path, package):
    (package / "lib" / "libcudnn.so.9").unlink()
    assert changes_for(package, {}) == {}
    assert changes_for(None, {}) == {}


def test_a_command_is_run_with_it(package, tmp_path):
    show = "import os; print(os.environ['LD_LIBRARY_PATH'])"
    assert said(tmp_path, "-m", "attnspec.worker.one_cudnn", sys.executable, "-c", show) == [str(package / "lib")]
