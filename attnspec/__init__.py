"""attnspec: a declarative benchmark compiler for attention kernels and context-parallel attention.

Public names load lazily, so that `import attnspec` stays light.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnspec.plan import compile_plan
    from attnspec.report.run import open_run
    from attnspec.spec import load_spec

__version__ = "0.1.0.dev0"
__all__ = ["__version__", "compile_plan", "load_spec", "open_run"]

_HOMES = {"load_spec": "attnspec.spec", "compile_plan": "attnspec.plan", "open_run": "attnspec.report.run"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'attnspec' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
