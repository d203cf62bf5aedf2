"""Every attention library of the package index is an extra, and what a provider tells to do names the same requirements.

Not the extra: where a library is missing, attnspec itself often is not installed (a runner's interpreter, an image).
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from attnspec import plugins
from attnspec.wire import WORKER_FIX

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
PROVIDERS = {
    one.name: one
    for kind in ("strategies", "kernels")
    for name in plugins.names(kind)
    for one in getattr(plugins.load(kind, name), "PROVIDERS", ())
}
ELSEWHERE = {
    "flash-attn-3": "build hopper/ of ",
    "xformers": "pip install --no-deps xformers==",
    "magi-attention": "the package index has an empty placeholder only: build ",
    "flashmask": "build flashmask/",
}
"""Providers that no extra can bring, and how what they tell to do begins."""


@pytest.mark.parametrize("name", PROVIDERS)
def test_what_to_do_about_a_provider(name):
    provider = PROVIDERS[name]
    if name in ELSEWHERE:
        assert provider.fix.startswith(ELSEWHERE[name])
        return
    requirement = EXTRAS[name][0]
    assert re.split(r"\[|>", requirement)[0] == provider.distribution
    assert requirement.endswith(provider.requires)
    assert re.findall(r"'([^']+)'", provider.fix) == EXTRAS[name]  # what it imports may be there and be too new


def test_what_to_do_about_an_interpreter_without_what_workers_need():
    needed = [*EXTRAS["torch"], *(one for one in PROJECT["dependencies"] if one.startswith(("numpy", "pyarrow")))]
    assert re.findall(r"'([^']+)'", WORKER_FIX) == needed
    assert WORKER_FIX.startswith("pip install ")


def test_nothing_tells_to_install_an_extra():
    for file in (Path(__file__).parents[2] / "attnspec").rglob("*.py"):
        assert "attnspec[" not in file.read_text(), file
