"""Strategies with a library's stand-in as their kernel, inside the ranks of a RankPool."""

from __future__ import annotations

import dataclasses

import pytest
from strategy_runs import run_strategies

_HELD = []
_INSTALLED = set()


class Finalizers:
    """What a stand-in wants of pytest's `request`; the library stays for as long as the process."""

    def addfinalizer(self, call):
        _HELD.append(call)


def run_with_stand_in(ranks, name, cases):
    """run_strategies with the adapter `name` of test_library_adapters, on the CPU and in the cases' element types."""
    from fakes.arithmetic import Log
    from test_library_adapters import ADAPTERS

    from attnspec import plugins

    kernel, _, _, install = ADAPTERS[name]
    if name not in _INSTALLED:
        install(pytest.MonkeyPatch(), Finalizers(), Log())
        _INSTALLED.add(name)
    module = plugins.load("kernels", kernel)
    module.SUPPORT = dataclasses.replace(
        module.SUPPORT,
        devices=("cpu", "cuda"),
        dtypes=(*module.SUPPORT.dtypes, "float32"),
        capability_min=None,
        capability_max=None,
    )
    return run_strategies(ranks, cases)
