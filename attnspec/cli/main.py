"""The `attnspec` command: finds its commands by file name, and turns every ending into an exit code.

A command is a file `attnspec/cli/<name>.py` with a click command named `command`; an underscore in the file name is a
dash on the command line, and files that start with one are no commands. Only the command that runs is imported: the
list in `attnspec --help` is read off the files' text.

Exit codes: 0 fine; 1 something is wrong, crashed, failed or regressed; 2 bad input or a locked folder; 3 the
environment lacks something; 130 and 143 on SIGINT and SIGTERM, and of a run 129 on SIGHUP.
"""

from __future__ import annotations

import ast
import importlib
import io
import os
import pkgutil
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click

import attnspec
from attnspec import plugins
from attnspec.errors import AttnspecError, InputError, SpecError, nearest

TRACEBACK_VARIABLE = "ATTNSPEC_TRACEBACK"
_INTERRUPTED, _TERMINATED = 130, 143


def _load_plugins(context: click.Context, parameter: click.Parameter, paths: tuple[str, ...]) -> None:
    plugins.load_files(paths)


def plugin_option() -> click.Option:
    """`--plugin FILE`, taken before or after the name of a command."""
    return click.Option(
        ["--plugin"],
        multiple=True,
        metavar="FILE",
        expose_value=False,
        is_eager=True,
        callback=_load_plugins,
        help="Load a plug-in file (kernel, mask, strategy, launcher or figure); may be repeated.",
    )


class Commands(click.Group):
    """The commands found as files beside this one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Sorted names of all commands."""
        files = pkgutil.iter_modules([str(Path(__file__).parent)])
        names = (file.name for file in files if not file.name.startswith("_") and file.name != "main")
        return sorted(name.replace("_", "-") for name in names)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The names of all commands, each with the first sentence about it."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, _first_sentence(_file(name))) for name in self.list_commands(ctx)])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a name, which takes `--plugin` too."""
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f"attnspec.cli.{_file(cmd_name).stem}")
        command: click.Command = module.command
        command.name = cmd_name
        if not any(parameter.name == "plugin" for parameter in command.params):
            command.params.append(plugin_option())
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with the nearest name of an unknown command."""
        known = self.list_commands(ctx)
        if args and not args[0].startswith("-") and args[0] not in known:
            ctx.fail(f"no command {args[0]!r}{nearest(args[0], known)}; allowed: {', '.join(known)}")
        return super().resolve_command(ctx, args)


def _file(name: str) -> Path:
    return Path(__file__).with_name(f"{name.replace('-', '_')}.py")


def _first_sentence(file: Path) -> str:
    """Of the docstring of the function `command` in a file, else of the file's own; without importing it."""
    tree = ast.parse(file.read_bytes())
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "command"]
    text = ast.get_docstring(found[0] if found else tree) or ""
    return " ".join(text.partition("\n\n")[0].split()).partition(". ")[0].rstrip(".")


cli = Commands(
    name="attnspec",
    params=[plugin_option()],
    help="Benchmarks of attention kernels and context-parallel attention, compiled from a declarative spec.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
cli = click.version_option(attnspec.__version__, prog_name="attnspec", message="%(prog)s %(version)s")(cli)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and leave with its exit code."""
    signal.signal(signal.SIGTERM, _terminate)
    _ready_streams()
    raise SystemExit(exit_code(arguments))


def exit_code(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; whatever ends it becomes a message on standard error and an exit code."""
    try:
        code = cli.main(
            args=None if arguments is None else list(arguments), prog_name="attnspec", standalone_mode=False
        )
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except SpecError as error:
        count = len(error.problems)
        _say(f"{error}\nattnspec: {count} {'problem' if count == 1 else 'problems'} found")
        return error.exit_code
    except AttnspecError as error:
        _say(f"attnspec: {error}")
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        _say("attnspec: interrupted")
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone; Python must not fail once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        _say(f"attnspec: {_system_error(error)}")
        return 1
    except Exception as error:  # noqa: BLE001 (the outermost boundary: a bug becomes one line and an exit code)
        plugin = plugins.culprit(error)
        _say(_bug(error, plugin))
        return 1 if plugin is None else InputError.exit_code
    return code if isinstance(code, int) else 0


def _ready_streams() -> None:
    """Have three open streams that take any text, so that nothing written ends up in a file of ours, or nowhere."""
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(handle, True)
    os.close(handle)
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 (as long as the process)
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    """SIGTERM unwinds the stack as an exit would, so that what is open is closed."""
    raise SystemExit(_TERMINATED)


def _system_error(error: OSError) -> str:
    names = ", ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
    reason = error.strerror or str(error) or type(error).__name__
    return f"{names}: {reason}" if names else reason


def _bug(error: Exception, plugin: str | None) -> str:
    if os.environ.get(TRACEBACK_VARIABLE):
        return "".join(traceback.format_exception(error)).rstrip()
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(last.filename).name}:{last.lineno}"
    what = " ".join(f"{type(error).__name__}: {error}".split())
    blame = "internal error, please report it" if plugin is None else f"plug-in {plugin} failed"
    return (
        f"attnspec: {blame}: {what} (at {where})\n"
        f"attnspec: run the same again with {TRACEBACK_VARIABLE}=1 for the traceback to report"
    )


def _say(text: str) -> None:
    click.echo(text, err=True)


if __name__ == "__main__":
    main()
