"""A plug-in's `Params` dataclass as a pydantic model: the one adapter through which all parameters are validated."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PydanticUserError, WithJsonSchema, create_model
from pydantic.json_schema import GenerateJsonSchema

from attnspec.catalog.findings import Finding, Section, error_of, not_among, shown
from attnspec.errors import InputError
from attnspec.params import ParamInfo, info
from attnspec.units import MAX_COUNT, parse_count

COUNT_PATTERN = r"^(0|[1-9][0-9]*)(\.[0-9]+)?[KM]?$"
POSITIVE_PATTERN = rf"^(?!0(\.0+)?[KM]?$){COUNT_PATTERN[1:]}"


def count_schema(least: float, most: float) -> dict[str, Any]:
    """JSON Schema of a token count within bounds; its text is what `units.parse_count` reads.

    >>> count_schema(0, 8)["anyOf"][0]
    {'type': 'integer', 'minimum': 0, 'maximum': 8}
    """
    return {
        "anyOf": [
            {"type": "integer", "minimum": least, "maximum": most},
            {"type": "string", "pattern": POSITIVE_PATTERN if least > 0 else COUNT_PATTERN},
        ],
        "description": "A token count: 8192, or 8K (times 1024), 1.5K, 1M (times 1048576).",
    }


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ParamField:
    """One parameter of a plug-in: its type with and without null, what it allows, and its default."""

    name: str
    hint: Any
    about: ParamInfo
    required: bool
    default: Any = None

    @property
    def bare(self) -> Any:
        """The type without null."""
        if typing.get_origin(self.hint) not in (types.UnionType, typing.Union):
            return self.hint
        rest = tuple(one for one in typing.get_args(self.hint) if one is not type(None))
        return rest[0] if len(rest) == 1 else typing.Union[rest]  # noqa: UP007 (the members are known at run time only)

    @property
    def takes_null(self) -> bool:
        """Whether null is a value."""
        return type(None) in typing.get_args(self.hint)

    @property
    def choices(self) -> tuple[Any, ...] | None:
        """Every allowed value, where they are listed."""
        if self.about.choices is not None:
            return self.about.choices
        return typing.get_args(self.bare) if typing.get_origin(self.bare) is Literal else None


@cache
def param_fields(module: ModuleType) -> Mapping[str, ParamField]:
    """The parameters that a plug-in declares, by name; none when it has no `Params`.

    Raises InputError when the types in its `Params` cannot be read.
    """
    held = getattr(module, "Params", None)
    if held is None:
        return {}
    try:
        hints = typing.get_type_hints(held)
        fields = dataclasses.fields(held)
    except (NameError, TypeError) as error:
        raise InputError(f"plug-in {module.__name__}: Params is not a dataclass with readable types: {error}") from None
    return {field.name: _param_field(field, hints[field.name]) for field in fields}


def _param_field(field: dataclasses.Field[Any], hint: Any) -> ParamField:
    about = info(field)
    if field.default_factory is not dataclasses.MISSING:
        return ParamField(name=field.name, hint=hint, about=about, required=False, default=field.default_factory())
    required = field.default is dataclasses.MISSING
    return ParamField(
        name=field.name, hint=hint, about=about, required=required, default=None if required else field.default
    )


def checked(module: ModuleType, values: Mapping[str, Any], *, partial: bool = False) -> dict[str, Any]:
    """JSON values of all parameters, defaults filled. `partial` asks for no parameter and fills none.

    A parameter that is null by default and was not given stays out, so that a new one changes no id.
    Raises pydantic's ValidationError with one finding per fault.
    """
    held = (
        _model(module, partial)
        .model_validate(dict(values))
        .model_dump(mode="json", by_alias=True, exclude_unset=partial)
    )
    fields = param_fields(module)
    return {name: value for name, value in held.items() if value is not None or fields[name].default is not None}


def params_schema(module: ModuleType) -> dict[str, Any]:
    """JSON Schema of a plug-in's parameters: an object without `title`."""
    schema = _model(module, False).model_json_schema(schema_generator=UntitledJsonSchema)
    return {key: schema[key] for key in ("properties", "required", "$defs") if key in schema}


class UntitledJsonSchema(GenerateJsonSchema):
    """Pydantic's JSON Schema without the titles that it makes from names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Never."""
        return False


@cache
def _model(module: ModuleType, partial: bool) -> type[Section]:
    # The alias keeps parameters such as `copy` or `schema` apart from pydantic's own attributes.
    definitions: dict[str, Any] = {
        f"param_{name}": (
            _annotation(field),
            Field(
                alias=name,
                description=field.about.doc,
                **({} if field.required and not partial else {"default": field.default}),
            ),
        )
        for name, field in param_fields(module).items()
    }
    try:
        return create_model("Params", __base__=Section, **definitions)
    except PydanticUserError as error:
        raise InputError(f"plug-in {module.__name__}: Params cannot be validated: {error.message}") from None


def _annotation(field: ParamField) -> Any:
    before = BeforeValidator(lambda value: _prepared(value, field))
    if field.choices is not None:
        null = (None,) if field.takes_null else ()
        return Annotated[Any, before, WithJsonSchema({"enum": [*field.choices, *null]})]
    held: Any = _bounded(field.bare, field.about)
    if field.about.tokens and field.bare is int:
        held = Annotated[held, WithJsonSchema(count_schema(*_count_bounds(field.about)))]
    return Annotated[held | None if field.takes_null else held, before]


def _bounded(hint: Any, about: ParamInfo) -> Any:
    """The type with its bounds; those of a list hold for its elements."""
    ge, le = _count_bounds(about) if about.tokens else (about.ge, about.le)
    if ge is None and le is None:
        return hint
    if typing.get_origin(hint) is tuple:
        elements = tuple(one if one is ... else _bounded(one, about) for one in typing.get_args(hint))
        return types.GenericAlias(tuple, elements)
    return Annotated[hint, Field(ge=ge, le=le)]


def _count_bounds(about: ParamInfo) -> tuple[float, float]:
    """Of a token count, as number and as text: its own, else those of every count."""
    return (0 if about.ge is None else about.ge, MAX_COUNT if about.le is None else about.le)


def _prepared(value: Any, field: ParamField) -> Any:
    if value is None and field.takes_null:
        return value
    if not isinstance(value, list | tuple):
        return _element(value, field)
    if typing.get_origin(field.bare) is not tuple:
        message = f"got {shown(value)}; allowed: one value. To measure several, repeat the item with each"
        raise error_of(Finding(message=message))
    return tuple(_element(one, field) for one in _tuples(value))


def _element(value: Any, field: ParamField) -> Any:
    if field.about.tokens and isinstance(value, str):
        value = parse_count(value, least=math.ceil(_count_bounds(field.about)[0]))
    if field.choices is not None and not any(type(value) is type(one) and value == one for one in field.choices):
        raise error_of(Finding(message=not_among(value, field.choices)))
    if field.about.refusal is not None and isinstance(value, str) and (wrong := field.about.refusal(value)):
        raise error_of(Finding(message=wrong))
    return value


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value
