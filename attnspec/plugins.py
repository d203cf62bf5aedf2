"""Finding plug-ins: one file each in its folder, an entry point, or a file given with `--plugin`.

A plug-in is a module. Its folder is its kind, its file name its name. Top levels of plug-ins import neither torch nor
the library that they adapt, so any machine can list and validate them. A file outside the package says its kind in
`PLUGIN_KIND` (one of KINDS). No folder keeps a list to edit.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import pkgutil
import sys
import traceback
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from attnspec.errors import InputError, nearest, worded

KINDS = ("kernels", "masks", "strategies", "launchers", "figures")
SINGULAR = {
    "kernels": "kernel",
    "masks": "mask",
    "strategies": "strategy",
    "launchers": "launcher",
    "figures": "figure",
}
_extra: dict[str, dict[str, ModuleType]] = {kind: {} for kind in KINDS}


@cache
def _shipped_names(kind: str) -> tuple[str, ...]:
    package = importlib.import_module(f"attnspec.{kind}")
    return tuple(sorted(item.name for item in pkgutil.iter_modules(package.__path__) if not item.name.startswith("_")))


@cache
def _entry_points(kind: str) -> Mapping[str, importlib.metadata.EntryPoint]:
    return {point.name: point for point in importlib.metadata.entry_points(group=f"attnspec.{kind}")}


def names(kind: str) -> tuple[str, ...]:
    """Sorted names of all plug-ins of one kind."""
    assert kind in KINDS, kind
    return tuple(sorted({*_shipped_names(kind), *_entry_points(kind), *_extra[kind]}))


def load(kind: str, name: str) -> ModuleType:
    """The module of one plug-in. Raises InputError with the nearest name when there is none."""
    assert kind in KINDS, kind
    if name in _extra[kind]:
        return _extra[kind][name]
    if name in _shipped_names(kind):
        return importlib.import_module(f"attnspec.{kind}.{name}")
    if name in _entry_points(kind):
        module = _entry_points(kind)[name].load()
        if not isinstance(module, ModuleType):
            raise InputError(f"entry point {name!r} of group attnspec.{kind} is not a module")
        return module
    known = names(kind)
    raise InputError(f"unknown {SINGULAR[kind]} {name!r}{nearest(name, known)}; allowed: {', '.join(known)}")


def load_file(path: str | Path) -> str:
    """Load a plug-in file given by the user and return its name. Raises InputError when it is not one."""
    file = Path(path).resolve()
    if str(file) in loaded_files():
        return file.stem
    if not file.exists():
        raise InputError(f"{path}: no such file; allowed: a plug-in's Python file")
    if not file.is_file() or file.suffix != ".py":
        raise InputError(f"{path}: not a Python file")
    name = file.stem
    spec = importlib.util.spec_from_file_location(f"attnspec_plugin_{name}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[spec.name]
        if isinstance(error, SystemExit) and traceback.extract_tb(error.__traceback__)[-1].filename != str(file):
            raise  # not its own doing: someone ends the process
        raise InputError(f"{path}: failed to load: {worded(error)}") from error
    kind = getattr(module, "PLUGIN_KIND", None)
    if kind not in KINDS:
        hint = nearest(kind, KINDS) if isinstance(kind, str) else ""
        raise InputError(f"{path}: PLUGIN_KIND is {kind!r}{hint}; allowed: {', '.join(KINDS)}")
    if name in names(kind):
        raise InputError(f"{path}: a {SINGULAR[kind]} named {name!r} exists already; rename the file")
    _extra[kind][name] = module
    return name


def load_files(paths: Iterable[str | Path]) -> tuple[str, ...]:
    """Load several plug-in files."""
    return tuple(load_file(path) for path in paths)


def loaded_files() -> tuple[str, ...]:
    """Paths of the plug-in files loaded so far, for a worker to load them too."""
    return tuple(str(module.__file__) for modules in _extra.values() for module in modules.values())


def culprit(error: BaseException) -> str | None:
    """The plug-in file, of those loaded by path, that an error comes from or that lacks what it was asked for."""
    files = loaded_files()
    lacking = error.obj if isinstance(error, AttributeError) else None
    if isinstance(lacking, ModuleType) and getattr(lacking, "__file__", None) in files:
        return lacking.__file__
    frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    return next((file for file in reversed(frames) if file in files), None)


def make_params(module: ModuleType, values: Mapping[str, Any]) -> Any:
    """A plug-in's `Params` from JSON values that were validated before (lists become tuples)."""
    return module.Params(**{name: _frozen(value) for name, value in values.items()})


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value
