"""Plug-ins are found by file; bad names and bad files are named."""

from __future__ import annotations

import pytest

from attnspec import plugins
from attnspec.errors import InputError


def test_every_mask_of_the_design_is_found():
    assert {
        "full",
        "causal",
        "varlen_full",
        "varlen_causal",
        "sliding_window_causal",
        "varlen_block_causal",
        "slices",
    } <= set(plugins.names("masks"))


def test_unknown_names_offer_the_nearest():
    with pytest.raises(InputError, match=r"unknown mask 'casual' \(did you mean 'causal'\?\); allowed: .*varlen_full"):
        plugins.load("masks", "casual")


@pytest.fixture
def plugin_file(tmp_path, monkeypatch):
    monkeypatch.setattr(plugins, "_extra", {kind: {} for kind in plugins.KINDS})
    return tmp_path / "my_mask.py"


def test_a_users_file_is_a_plug_in(plugin_file):
    plugin_file.write_text("PLUGIN_KIND = 'masks'\nUSES_DOCUMENTS = False\n")
    assert plugins.load_file(plugin_file) == "my_mask"
    assert "my_mask" in plugins.names("masks")
    assert plugins.load("masks", "my_mask").USES_DOCUMENTS is False


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "PLUGIN_KIND is None; allowed: kernels, masks"),
        ("PLUGIN_KIND = 'mask'", "PLUGIN_KIND is 'mask'; allowed: kernels"),
    ],
)
def test_a_file_says_its_kind(plugin_file, text, message):
    plugin_file.write_text(text)
    with pytest.raises(InputError, match=message):
        plugins.load_file(plugin_file)


def test_a_users_file_cannot_hide_a_shipped_plug_in(plugin_file):
    file = plugin_file.with_name("causal.py")
    file.write_text("PLUGIN_KIND = 'masks'")
    with pytest.raises(InputError, match="a mask named 'causal' exists already"):
        plugins.load_file(file)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match="nothing.py: not a Python file"):
        plugins.load_file(tmp_path / "nothing.py")


def test_a_file_that_fails_to_load_is_an_input_error(plugin_file):
    plugin_file.write_text("PLUGIN_KIND = 'masks'\n1 / 0\n")
    with pytest.raises(InputError, match="my_mask.py: failed to load: ZeroDivisionError: division by zero"):
        plugins.load_file(plugin_file)
