"""One command per job; `nox -l` lists them.

    nox -s bench -- specs/quickstart.yaml            in a virtual environment made here
    nox --no-venv -s bench -- specs/h200_kernel.yaml in the environment in use, with the attention libraries it holds

Sessions install torch as pinned in .ci/constraints.txt; ATTNSPEC_CONSTRAINTS names another file, or is empty for none.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import nox

HERE = Path(__file__).parent
CONSTRAINTS = os.environ.get("ATTNSPEC_CONSTRAINTS", str(HERE / ".ci" / "constraints.txt"))
TESTS = ["-e", ".[torch,tests]"]
# Doctests run too, but not of a file that imports its library at once (it is loaded from there only).
QUICK = ["tests", "attnspec", "--doctest-modules", "--ignore=attnspec/kernels/_fa4_masks.py"]

nox.needs_version = ">=2024.4.15"
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_venv = "yes"
nox.options.error_on_external_run = True
nox.options.sessions = ["tests", "lint"]


def install(session: nox.Session, *requirements: str) -> None:
    """Install by pip under the pinned constraints; nothing under `--no-venv`."""
    if session.virtualenv.venv_backend == "none":
        return
    constraints = ["-c", CONSTRAINTS] if CONSTRAINTS else []
    session.install("--quiet", *constraints, *requirements)


def hand_on(session: nox.Session, *command: str) -> None:
    """Run a command and leave with its own exit code: nox itself knows only 0 and 1.

    Ctrl-C reaches the command through the terminal and SIGTERM is passed on; the command then ends in good order.
    """
    python = sys.executable if session.virtualenv.venv_backend == "none" else str(Path(session.bin) / "python")
    environment = {name: value for name, value in {**os.environ, **session.env}.items() if value is not None}
    process = subprocess.Popen([python, "-m", *command], env=environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: process.send_signal(number))
    code = process.wait()
    if code:
        raise SystemExit(code if code > 0 else 128 - code)


@nox.session
def bench(session: nox.Session) -> None:
    """Run a spec: nox -s bench -- specs/quickstart.yaml [options of `attnspec run`]."""
    if not session.posargs:
        session.error("name a spec: nox -s bench -- specs/quickstart.yaml")
    install(session, "-e", ".[torch]")
    hand_on(session, "attnspec", "run", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """The quick test suite, on the CPU: under two minutes on two cores."""
    install(session, *TESTS)
    session.run(
        "pytest",
        "-m",
        "not gpu and not integration and not slow",
        "-n",
        "2",
        "--dist",
        "worksteal",
        *(session.posargs or QUICK),
    )


@nox.session(default=False)
def slow(session: nox.Session) -> None:
    """What takes longer on the CPU: large sizes, many seeds, faults with real workers, other libraries' strategies."""
    install(session, *TESTS)
    # Without flash-attn and transformers, which they need on GPUs and the tests stand in for.
    install(session, "--no-deps", "ring-flash-attn==0.1.8", "yunchang==0.6.4")
    session.run("pytest", "-m", "slow and not gpu and not integration", "-n", "2", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Style, strict types and the import direction."""
    install(session, "-e", ".[torch,lint]")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    session.run("lint-imports", "--no-cache")


@nox.session(default=False)
def benchmarks(session: nox.Session) -> None:
    """How long our own pure parts take: planning, areas, sampling (pytest-benchmark)."""
    install(session, *TESTS)
    session.run("pytest", "tests/benchmarks", "--benchmark-only", "-p", "no:xdist", *session.posargs)


@nox.session(default=False)
def gpu(session: nox.Session) -> None:
    """Tests that need a CUDA device; mostly with --no-venv, in the environment that holds the libraries."""
    install(session, *TESTS)
    ahead = ("python", "-m", "attnspec.worker.one_cudnn")  # TransformerEngine in the process of the tests themselves
    session.run(*ahead, "python", "-m", "pytest", "-m", "gpu", *session.posargs, external=True)


@nox.session(default=False)
def browser(session: nox.Session) -> None:
    """The report's page in the system's own Chromium (Debian: apt-get install chromium)."""
    install(session, *TESTS, "-e", ".[browser]")
    session.run("pytest", "-m", "browser", *(session.posargs or ["tests/integration"]))


@nox.session(default=False)
def integration(session: nox.Session) -> None:
    """Tests with containers and Slurm, as far as they are here; .ci/integration.sh installs and starts them all."""
    install(session, *TESTS)
    session.run("pytest", "-m", "integration", *session.posargs)


@nox.session(default=False)
def docs(session: nox.Session) -> None:
    """Run every example of the documentation, and check its links."""
    install(session, *TESTS, "-e", ".[analysis]")
    session.run("pytest", "tests/docs", "-m", "not gpu and not integration", *session.posargs)
