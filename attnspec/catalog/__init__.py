"""What plug-ins exist and what their parameters allow, for the host."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from pydantic import ValidationError

from attnspec import plugins
from attnspec.catalog.findings import dotted, findings_of
from attnspec.catalog.params import ParamField, checked, param_fields
from attnspec.errors import Problem, SpecError


def names(kind: str) -> tuple[str, ...]:
    """Sorted names of the plug-ins of a kind (`kernels`, `masks`, `strategies`, `launchers`, `figures`)."""
    return plugins.names(kind)


def load(kind: str, name: str) -> ModuleType:
    """The module of a plug-in. Raises InputError with the nearest name when there is none."""
    return plugins.load(kind, name)


def validate_params(kind: str, name: str, values: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """JSON values of all parameters of a plug-in, defaults filled and token counts as integers.

    Raises InputError for an unknown plug-in, SpecError with a Problem per fault whose path starts with `path`.
    """
    module = load(kind, name)
    try:
        return checked(module, values)
    except ValidationError as error:
        around = (path,) if path else ()
        raise SpecError(
            Problem(message=finding.message, path=dotted((*around, *finding.loc))) for finding in findings_of(error)
        ) from None


__all__ = ["ParamField", "load", "names", "param_fields", "validate_params"]
