"""What the scripts in .ci do to the machine that they run on."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

HOSTS = Path(__file__).parents[2] / ".ci" / "slurm_hosts.sh"
BEFORE = "127.0.0.1 localhost\n# 127.0.0.1 n2\n127.0.0.1\tvm n1 n10\n10.0.0.3 n3\n\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    held = tmp_path / "hosts"
    held.write_text(BEFORE)
    return held


def names(file: Path, folder: str, *nodes: str) -> str:
    subprocess.run([str(HOSTS), str(file), folder, *nodes], check=True, timeout=20)
    return file.read_text()


def test_virtual_nodes_are_named_once_and_what_was_there_stays(file: Path) -> None:
    number = file.stat().st_ino
    named = f"{BEFORE}127.0.0.1 n2 # virtual node of the cluster in /tmp/a b\n"
    assert names(file, "/tmp/a b", "2") == named
    assert names(file, "/tmp/a b", "2") == named
    assert names(file, "/tmp/a") == named  # no cluster of that name
    assert names(file, "/tmp/a b") == BEFORE
    assert file.stat().st_ino == number  # never another file in its place: it may be mounted
    written = file.stat().st_mtime_ns
    assert names(file, "/tmp/a b") == BEFORE
    assert (
        file.stat().st_mtime_ns == written
    )  # nor is it touched for nothing: who stops a cluster twice may have no right


def test_each_of_two_clusters_has_its_own_names(file: Path) -> None:
    names(file, "/tmp/a", "2")
    names(file, "/tmp/b", "3")
    left = names(file, "/tmp/a")
    assert left.removeprefix(BEFORE).splitlines() == [
        f"127.0.0.1 n{number} # virtual node of the cluster in /tmp/b" for number in (2, 3)
    ]
    assert names(file, "/tmp/b") == BEFORE
