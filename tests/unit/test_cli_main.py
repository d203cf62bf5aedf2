"""The command line's entry: every ending is a message and an exit code; plug-in files; light help."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import click
import pytest

from attnspec import __version__, plugins
from attnspec.cli import main as entry
from attnspec.errors import EnvironmentMissingError, InputError, LockedError, Problem, SpecError


@pytest.fixture
def ending(monkeypatch):
    """Makes the command `validate` end in a given way."""

    def make(error):
        @click.command()
        def command():
            raise error

        monkeypatch.setattr(entry.Commands, "get_command", lambda self, ctx, name: command)

    return make


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (InputError("got 5"), 2, "attnspec: got 5\n"),
        (LockedError("locked by 7"), 2, "attnspec: locked by 7\n"),
        (EnvironmentMissingError("no GPU"), 3, "attnspec: no GPU\n"),
        (
            SpecError([Problem(message="a", file="f", line=1, path="x"), Problem(message="b")]),
            2,
            "f:1: x: a\nb\nattnspec: 2 problems found\n",
        ),
        (SpecError([Problem(message="a")]), 2, "a\nattnspec: 1 problem found\n"),
        (KeyboardInterrupt(), 130, "\nattnspec: interrupted\n"),
        (click.Abort(), 130, "attnspec: interrupted\n"),
        (click.exceptions.Exit(1), 1, ""),
        (OSError(28, "No space left on device", "runs/x"), 1, "attnspec: runs/x: No space left on device\n"),
        (PermissionError(13, "Permission denied", "a", None, "b"), 1, "attnspec: a, b: Permission denied\n"),
        (OSError("odd"), 1, "attnspec: odd\n"),
    ],
)
def test_every_ending_has_a_message_and_a_code(ending, capsys, error, code, text):
    ending(error)
    assert entry.exit_code(["validate"]) == code
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", text)


def test_a_bug_is_one_line_and_its_traceback_is_there_on_demand(ending, capsys, monkeypatch):
    ending(ValueError("two\nlines"))
    monkeypatch.delenv(entry.TRACEBACK_VARIABLE, raising=False)
    assert entry.exit_code(["validate"]) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("attnspec: internal error, please report it: ValueError: two lines (at test_cli_main.py:")
    assert second == "attnspec: run the same again with ATTNSPEC_TRACEBACK=1 for the traceback to report"
    monkeypatch.setenv(entry.TRACEBACK_VARIABLE, "1")
    assert entry.exit_code(["validate"]) == 1
    assert capsys.readouterr().err.startswith("Traceback (most recent call last)")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["valdate"], "no command 'valdate' (did you mean 'validate'?); allowed: "),
        (["validate"], "Missing argument 'SPEC...'"),
        (["validate", "--jsn", "x"], "No such option '--jsn'"),
        (["--plugin"], "Option '--plugin' requires an argument"),
        (["--plugin", "no.py", "schema"], "attnspec: no.py: no such file"),
        ([], "Usage: attnspec"),
    ],
)
def test_wrong_use_ends_with_2(capsys, arguments, text):
    assert entry.exit_code(arguments) == 2
    assert text in capsys.readouterr().err


def test_version_and_help_end_with_0(capsys):
    assert entry.exit_code(["--version"]) == 0
    assert capsys.readouterr().out == f"attnspec {__version__}\n"
    assert entry.exit_code(["--help"]) == 0
    text = capsys.readouterr().out
    assert "  validate  Check spec files" in text
    assert "main" not in text.split("Commands:")[1]


def test_every_command_has_help(capsys):
    for name in entry.cli.list_commands(click.Context(entry.cli)):
        assert entry.exit_code([name, "--help"]) == 0
        assert f"Usage: attnspec {name}" in capsys.readouterr().out


def test_help_imports_no_command():
    code = (
        "import sys\nfrom attnspec.cli.main import exit_code\nassert exit_code(['--help']) == 0\n"
        "heavy = {'torch', 'numpy', 'pydantic', 'pyarrow', 'matplotlib', 'networkx', 'yaml', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_plugin_files_are_taken_before_and_after_the_command(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(plugins, "_extra", {kind: {} for kind in plugins.KINDS})
    for name in ("one_mask", "two_mask"):
        (tmp_path / f"{name}.py").write_text(f"'''{name}: a mask.'''\nPLUGIN_KIND = 'masks'\nUSES_DOCUMENTS = False\n")
    before, after = (str(tmp_path / f"{name}.py") for name in ("one_mask", "two_mask"))
    assert entry.exit_code(["--plugin", before, "schema", "--plugin", after]) == 0
    masks = json.loads(capsys.readouterr().out)["$defs"]["masks"]
    assert {"one_mask", "two_mask"} <= set(masks["items"]["anyOf"][0]["enum"])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_unwind_and_end_with_their_code(tmp_path, number, code):
    plugin = tmp_path / "waits.py"
    plugin.write_text(
        "import time\ntry:\n    print('ready', flush=True)\n    time.sleep(60)\nfinally:\n    print('closed', flush=True)\n"
    )
    arguments = [sys.executable, "-m", "attnspec.cli.main", "--plugin", str(plugin), "schema"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        out, error = process.communicate(timeout=30)
    assert (process.returncode, out) == (code, "closed\n")
    assert "Traceback" not in error


def test_a_reader_that_has_gone_is_no_crash():
    reader, writer = os.pipe()
    os.close(reader)
    arguments = [sys.executable, "-m", "attnspec.cli.main", "schema"]
    done = subprocess.run(arguments, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")
