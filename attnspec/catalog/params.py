"""A plug-in's `Params` dataclass as a pydantic model: the one adapter through which all parameters are validated."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, create_model

from attnspec.catalog.findings import Finding, Section, fail, shown
from attnspec.errors import nearest
from attnspec.params import ParamInfo, info
from attnspec.units import parse_count


def param_fields(module: ModuleType) -> dict[str, dataclasses.Field[Any]]:
    """The parameters that a plug-in declares, by name; none when it has no `Params`."""
    held = getattr(module, "Params", None)
    return {} if held is None else {field.name: field for field in dataclasses.fields(held)}


def checked(module: ModuleType, values: Mapping[str, Any], *, partial: bool = False) -> dict[str, Any]:
    """JSON values of all parameters, defaults filled. `partial` asks for no parameter and fills none.

    Raises pydantic's ValidationError with one finding per fault.
    """
    model = _model(module, partial)
    return model.model_validate(dict(values)).model_dump(mode="json", exclude_unset=partial)


@cache
def _model(module: ModuleType, partial: bool) -> type[Section]:
    fields = param_fields(module)
    hints = typing.get_type_hints(module.Params) if fields else {}
    definitions: dict[str, Any] = {}
    for name, field in fields.items():
        default = None if partial else ... if _required(field) else _default(field)
        definitions[name] = (_annotation(hints[name], info(field)), default)
    return create_model("Params", __base__=Section, **definitions)


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _annotation(hint: Any, about: ParamInfo) -> Any:
    choices = about.choices or literal_choices(hint)
    before = BeforeValidator(lambda value: _prepared(value, hint, choices, about.tokens))
    bare = _without_none(hint)
    held: Any = Any if literal_choices(hint) else Annotated[bare, Field(ge=about.ge, le=about.le)]
    if bare is not hint and held is not Any:
        held = held | None
    return Annotated[held, before]


def literal_choices(hint: Any) -> tuple[Any, ...] | None:
    """The values that a `Literal[...]`, perhaps with None, lists; None for any other type."""
    bare = _without_none(hint)
    return typing.get_args(bare) if typing.get_origin(bare) is Literal else None


def _without_none(hint: Any) -> Any:
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        rest = tuple(one for one in typing.get_args(hint) if one is not type(None))
        return rest[0] if len(rest) == 1 else typing.Union[rest]  # noqa: UP007 (built at run time)
    return hint


def optional(hint: Any) -> bool:
    """Whether a type takes null."""
    return type(None) in typing.get_args(hint)


def _prepared(value: Any, hint: Any, choices: tuple[Any, ...] | None, tokens: bool) -> Any:
    if value is None and optional(hint):
        return value
    if isinstance(value, list | tuple):
        if typing.get_origin(_without_none(hint)) is not tuple:
            fail([Finding(message="got a list; allowed: one value. To measure several values, repeat the whole item")])
        return tuple(_parsed(one, choices, tokens) for one in _tuples(value))
    return _parsed(value, choices, tokens)


def _parsed(value: Any, choices: tuple[Any, ...] | None, tokens: bool) -> Any:
    if tokens and isinstance(value, str):
        value = parse_count(value)
    if choices is not None and not any(type(value) is type(one) and value == one for one in choices):
        hint = nearest(value, [one for one in choices if isinstance(one, str)]) if isinstance(value, str) else ""
        fail([Finding(message=f"got {shown(value)}{hint}; allowed: {', '.join(map(str, choices))}")])
    return value


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value
