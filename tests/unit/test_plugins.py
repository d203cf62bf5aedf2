"""Plug-ins are found by file; bad names and bad files are named."""

from __future__ import annotations

import pytest

from attnspec import plugins
from attnspec.cli.main import exit_code
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
        ("PLUGIN_KIND = 'mask'", r"PLUGIN_KIND is 'mask' \(did you mean 'masks'\?\); allowed: kernels"),
        ("PLUGIN_KIND = ['masks']", r"PLUGIN_KIND is \['masks'\]; allowed: kernels"),
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
    with pytest.raises(InputError, match="nothing.py: no such file; allowed: a plug-in's Python file"):
        plugins.load_file(tmp_path / "nothing.py")


def test_a_file_that_fails_to_load_is_an_input_error(plugin_file):
    plugin_file.write_text("PLUGIN_KIND = 'masks'\n1 / 0\n")
    with pytest.raises(InputError, match="my_mask.py: failed to load: ZeroDivisionError: division by zero"):
        plugins.load_file(plugin_file)


def test_a_file_that_ends_the_process_is_an_input_error(plugin_file):
    plugin_file.write_text("raise SystemExit(0)\n")
    with pytest.raises(InputError, match="my_mask.py: failed to load: SystemExit: 0"):
        plugins.load_file(plugin_file)


def test_a_file_given_twice_is_loaded_once(plugin_file):
    plugin_file.write_text("PLUGIN_KIND = 'masks'\n")
    assert plugins.load_files([plugin_file, plugin_file]) == ("my_mask", "my_mask")
    assert plugins.loaded_files() == (str(plugin_file),)


MASK = """
from dataclasses import dataclass
from attnspec.slices import AttnSlices
PLUGIN_KIND = "masks"
USES_DOCUMENTS = False
@dataclass(frozen=True)
class Params: pass
def slices({arguments}):
    {body}
"""
ARGUMENTS = "params, docs, seqlen_q, seqlen_k"
ROWS = "return AttnSlices.from_rows({}, seqlen_q=seqlen_q, seqlen_k={})"


@pytest.mark.parametrize(
    ("arguments", "body", "message"),
    [
        (ARGUMENTS, "1 / 0", "my_mask.py failed: ZeroDivisionError: division by zero"),
        ("params", "pass", "my_mask.py failed: TypeError: slices() takes 1 positional argument but 4 were given"),
        (ARGUMENTS, "pass", "my_mask.py: slices() returned NoneType; allowed: AttnSlices"),
        (
            ARGUMENTS,
            ROWS.format("[(0, 4, 0, 2, 0)]", 2),
            "my_mask.py: slices() returned a mask of 4 x 2; asked: 4 x 4",
        ),
        (ARGUMENTS, ROWS.format("[(0, 4, 0, 4, 0), (0, 1, 0, 1, 0)]", 4), "overlap: both allow q=0, k=0"),
        (ARGUMENTS, ROWS.format("[(0, 9, 0, 4, 0)]", 4), "is not inside the sequence"),
    ],
)
def test_a_mask_from_outside_is_checked(plugin_file, capsys, arguments, body, message):
    plugin_file.write_text(MASK.format(arguments=arguments, body=body))
    assert exit_code(["mask", "my_mask", "--seqlen", "4", "--plugin", str(plugin_file)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"attnspec: mask plug-in {plugin_file}") and message in said


def test_what_a_plug_in_lacks_or_raises_is_about_its_file(plugin_file, tmp_path, capsys):
    plugin_file.write_text("PLUGIN_KIND = 'masks'\n")
    assert exit_code(["mask", "my_mask", "--seqlen", "4", "--plugin", str(plugin_file)]) == 2
    assert capsys.readouterr().err.startswith(f"attnspec: plug-in {plugin_file} failed: AttributeError: ")
    figure = tmp_path / "my_figure.py"
    figure.write_text("PLUGIN_KIND = 'figures'\ndef drawings(cells):\n    raise ValueError('no colour')\n")
    plugins.load_file(figure)
    with pytest.raises(ValueError, match="no colour") as caught:
        plugins.load("figures", "my_figure").drawings(None)
    assert plugins.culprit(caught.value) == str(figure)
    assert plugins.culprit(ValueError("ours")) is None
