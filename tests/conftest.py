"""Fixtures that several areas share."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnspec import plugins

TOYS = Path(__file__).parent / "toys"


@pytest.fixture
def toys(monkeypatch):
    """The toy plug-ins, for one test: kernels toy_kernel and toy_plain, strategies toy_ring and toy_bound."""
    monkeypatch.setattr(plugins, "_extra", {kind: {} for kind in plugins.KINDS})
    return plugins.load_files(sorted(TOYS.glob("toy_*.py")))
