"""Fixtures that several areas share."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from attnspec import plugins

# One thread for torch here and in the workers that tests start: the tensors are small, pytest runs one process a core,
# and threads that wait for each other on busy cores cost many times what they bring. Before anything imports torch.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What starts tests in the background may have them ignore Ctrl-C, and so what they start: tests of signals send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

TOYS = Path(__file__).parent / "toys"


@pytest.fixture(scope="session")
def toy_modules():
    """The toy plug-ins, loaded once and not in place."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plugins, "_extra", {kind: {} for kind in plugins.KINDS})
        plugins.load_files(sorted(TOYS.glob("toy_*.py")))
        return plugins._extra


@pytest.fixture
def toys(monkeypatch, toy_modules):
    """The toy plug-ins in place, for one test: kernels toy_kernel, toy_plain; strategies toy_ring, toy_bound."""
    monkeypatch.setattr(plugins, "_extra", {kind: dict(held) for kind, held in toy_modules.items()})


@pytest.fixture
def not_imported(monkeypatch):
    """Forgets that packages were imported, and after the test whatever it imported of them."""
    packages: list[str] = []

    def held() -> list[str]:
        return [name for name in sys.modules if name.partition(".")[0] in packages]

    def forget(*names: str) -> None:
        packages.extend(names)
        for name in held():
            monkeypatch.delitem(sys.modules, name)

    yield forget
    for name in held():
        del sys.modules[name]


@pytest.fixture(scope="module")
def pools():
    """size -> a pool of so many ranks, kept for the module."""
    from ranks import RankPool

    held = {}

    def pool(size):
        if size not in held:
            held[size] = RankPool(size)
        return held[size]

    yield pool
    for one in held.values():
        one.close()
