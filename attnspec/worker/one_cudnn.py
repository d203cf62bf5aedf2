"""One cuDNN in a process: the one that torch brings.

torch from the index finds its cuDNN, the package nvidia-cudnn, beside itself. Libraries that are linked against cuDNN
(TransformerEngine) find a system's own first, and two versions in one process fail with undefined symbols, or one of
them serves torch without a word. The loader reads its search path only when a process starts, so the process starts
itself again with torch's cuDNN ahead.

python -m attnspec.worker.one_cudnn COMMAND ...: run a command like that.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path

CHOSEN = ("CUDNN_HOME", "CUDNN_PATH")
"""Where these say which cuDNN to use, it is left to whoever set them."""


def restart_with_torchs_cudnn() -> None:
    """Start this process again, once, where torch's cuDNN is a package and nothing leads to it yet."""
    changes = changes_for(_package_folder(), os.environ)
    if changes:
        os.environ.update(changes)
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def changes_for(package: Path | None, environ: Mapping[str, str]) -> dict[str, str]:
    """What the environment lacks; empty where there is nothing to do. package: the folder of nvidia-cudnn.

    >>> changes_for(None, {})
    {}
    """
    if package is None or any(environ.get(name) for name in CHOSEN) or not any(package.glob("lib/libcudnn.so.*")):
        return {}
    held = environ.get("LD_LIBRARY_PATH")
    path = os.pathsep.join(filter(None, (str(package / "lib"), held)))
    return {"LD_LIBRARY_PATH": path, "CUDNN_HOME": str(package)}


def _package_folder() -> Path | None:
    try:
        found = importlib.util.find_spec("nvidia.cudnn")
    except ModuleNotFoundError:
        return None
    places = [] if found is None else list(found.submodule_search_locations or ())
    return Path(places[0]) if places else None


if __name__ == "__main__":
    os.environ.update(changes_for(_package_folder(), os.environ))
    os.execvp(sys.argv[1], sys.argv[1:])
