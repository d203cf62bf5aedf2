"""Every attention library of the package index is an extra, and what a provider tells to do names it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from attnspec import plugins

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
    "torch": "pip install torch",
}
"""Providers that no extra can bring, and how what they tell to do begins."""


@pytest.mark.parametrize("name", PROVIDERS)
def test_what_to_do_about_a_provider(name):
    provider = PROVIDERS[name]
    if name in ELSEWHERE:
        assert provider.fix.startswith(ELSEWHERE[name])
        return
    assert f"'attnspec[{name}]'" in provider.fix
    requirement, *others = EXTRAS[name]
    assert requirement.split("[")[0].split(">")[0] == provider.distribution
    assert requirement.endswith(provider.requires)
    for other in others:  # what it imports may be there and be too new
        assert f"'{other}'" in provider.fix


def test_torch_itself_is_an_extra():
    assert EXTRAS["torch"] == [f"torch{PROVIDERS['torch'].requires}"]
