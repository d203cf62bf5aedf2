"""Findings: what is wrong inside a piece of user input, by location, in the words of the house.

A finding travels as a pydantic error of type `attnspec`, so that nested models, plug-in parameters and hand-written
checks add up to one ValidationError. Models derive from Section, which words pydantic's own errors the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from attnspec.errors import InputError, nearest

Loc = tuple[str | int, ...]
P = ParamSpec("P")
T = TypeVar("T")

_SHOWN_CHARACTERS = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing wrong: where (keys and list indexes from the value that was checked) and what."""

    message: str
    loc: Loc = ()


def error_of(*findings: Finding) -> ValidationError:
    """The pydantic error that carries these findings, to be raised."""
    return ValidationError.from_exception_data(
        "attnspec",
        [
            InitErrorDetails(
                type=PydanticCustomError("attnspec", "{message}", {"message": finding.message}),
                loc=finding.loc,
                input=None,
            )
            for finding in findings
        ],
    )


def findings_of(error: ValidationError, about: Mapping[str, str] | None = None) -> list[Finding]:
    """The findings in a ValidationError; `about` holds the keys of the model that raised it and what each means."""
    keys = about or {}
    errors = error.errors(include_url=False)
    meant = [nearest(str(one["loc"][-1]), keys) for one in errors if one["type"] == "extra_forbidden"]
    return [
        Finding(message=_message(one, keys), loc=one["loc"])
        for one in errors
        # A misspelt key is one fault, not an unknown key and a missing one.
        if not (one["type"] == "missing" and any(f"'{one['loc'][-1]}'" in hint for hint in meant))
    ]


def collect(findings: list[Finding], loc: Loc, check: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """The result of a check, or None after adding what it found wrong to `findings`, seen from `loc`."""
    try:
        return check(*args, **kwargs)
    except ValidationError as error:
        findings.extend(Finding(message=one.message, loc=(*loc, *one.loc)) for one in findings_of(error))
    except InputError as error:
        findings.append(Finding(message=str(error), loc=loc))
    return None


def shown(value: Any) -> str:
    """A value as a message shows it: scalars much as a spec writes them, lists and mappings by their kind.

    >>> shown(True), shown(None), shown("8"), shown(8), shown([8])
    ('true', 'null', "'8'", '8', 'a list')
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def dotted(loc: Iterable[str | int]) -> str:
    """A location as a path.

    >>> dotted(("sweeps", 0, "kernels", 1, "sdpa", "backend"))
    'sweeps[0].kernels[1].sdpa.backend'
    """
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def unknown_key(key: Any, allowed: Iterable[str]) -> str:
    """The message for a key that nothing reads."""
    names = tuple(allowed)
    return f"unknown key {shown(key)}{nearest(str(key), names)}; allowed: {', '.join(names) or 'none'}"


def not_among(value: Any, allowed: Iterable[Any]) -> str:
    """The message for a value outside a list of names."""
    names = tuple(map(str, allowed))
    hint = nearest(value, names) if isinstance(value, str) else ""
    return f"got {shown(value)}{hint}; allowed: {', '.join(names) or 'none'}"


class Section(BaseModel):
    """Base of every model that user text enters through: frozen, strict, no unknown keys, no NaN; its errors
    say what was given, what is allowed and the nearest name.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )

    @classmethod
    def about(cls) -> dict[str, str]:
        """The keys that a mapping may have, and what each means."""
        return {field.alias or name: field.description or "" for name, field in cls.model_fields.items()}

    @model_validator(mode="wrap")
    @classmethod
    def _worded(cls, value: Any, handler: ModelWrapValidatorHandler[Any]) -> Any:
        if not isinstance(value, cls | Mapping):
            raise error_of(Finding(message=f"got {shown(value)}; allowed: a mapping with {', '.join(cls.about())}"))
        try:
            return handler(value)
        except ValidationError as error:
            raise error_of(*findings_of(error, cls.about())) from None


_KINDS = {
    "int": "an integer",
    "float": "a number",
    "finite": "a finite number",
    "string": "text",
    "bool": "true or false",
    "tuple": "a list",
    "list": "a list",
    "dict": "a mapping",
}
_BOUNDS = {"ge": "at least", "gt": "over", "le": "at most", "lt": "under"}


def _number(bound: Any) -> str:
    return str(int(bound)) if isinstance(bound, float) and bound.is_integer() else str(bound)


def _message(error: ErrorDetails, about: Mapping[str, str]) -> str:
    kind, context, got = error["type"], error.get("ctx", {}), error["input"]
    if kind == "attnspec":
        return str(context["message"])
    if kind == "missing":
        meaning = about.get(str(error["loc"][-1]), "").rstrip(".")
        return f"is missing ({meaning})" if meaning else "is missing"
    if kind == "extra_forbidden":
        return unknown_key(error["loc"][-1], about)
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        return f"got {shown(got)}; allowed: {context['expected']}"
    if kind == "string_type" and isinstance(got, int | float):
        return f'got {shown(got)}; allowed: text; write it in quotes: "{shown(got)}"'
    for bound, words in _BOUNDS.items():
        if bound in context:
            return f"got {shown(got)}; allowed: {words} {_number(context[bound])}"
    wanted = _KINDS.get(kind.partition("_")[0])
    return f"got {shown(got)}; allowed: {wanted}" if wanted else f"got {shown(got)}: {error['msg']}"
