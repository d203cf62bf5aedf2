"""Findings: what is wrong inside a piece of user input, by location, in the words of the house.

Every pydantic model of attnspec derives from Section, which turns pydantic's errors into findings whose messages say
what was given, what is allowed and the nearest name. A finding travels as a pydantic error of type `attnspec`, so that
nested models, plug-in parameters and hand-written checks add up to one ValidationError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from attnspec.errors import InputError, nearest

Loc = tuple[str | int, ...]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing wrong: where (keys and list indexes from the value that was checked) and what."""

    message: str
    loc: Loc = ()

    def under(self, *loc: str | int) -> Finding:
        """The same finding seen from further out."""
        return Finding(message=self.message, loc=(*loc, *self.loc))


def fail(findings: Iterable[Finding], title: str = "attnspec") -> NoReturn:
    """Raise a pydantic ValidationError that holds these findings."""
    raise ValidationError.from_exception_data(
        title,
        [
            InitErrorDetails(
                type=PydanticCustomError("attnspec", "{message}", {"message": finding.message}),
                loc=finding.loc,
                input=None,
            )
            for finding in findings
        ],
    )


def findings_of(error: ValidationError, allowed: Iterable[str] = ()) -> list[Finding]:
    """The findings in a ValidationError; `allowed` are the keys of the model that raised it."""
    keys = tuple(allowed)
    return [Finding(message=_message(one, keys), loc=one["loc"]) for one in error.errors(include_url=False)]


def collect(findings: list[Finding], loc: Loc, check: Callable[[], T]) -> T | None:
    """The result of `check`, or None after adding what it found wrong to `findings`, seen from `loc`."""
    try:
        return check()
    except ValidationError as error:
        findings.extend(one.under(*loc) for one in findings_of(error))
    except InputError as error:
        findings.append(Finding(message=str(error), loc=loc))
    return None


def shown(value: Any) -> str:
    """A value as a message shows it: scalars as written in a spec, lists and mappings by their kind.

    >>> shown(True), shown(None), shown("8"), shown(8), shown([8])
    ('true', 'null', "'8'", '8', 'a list')
    """
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return repr(value)


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
    names = sorted(allowed)
    hint = nearest(key, names) if isinstance(key, str) else ""
    return f"unknown key {shown(key)}{hint}; allowed: {', '.join(names) if names else 'none'}"


class Section(BaseModel):
    """Base of every model that user text enters through: frozen, strict, no unknown keys, no NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="wrap")
    @classmethod
    def _worded(cls, value: Any, handler: ModelWrapValidatorHandler[Any]) -> Any:
        if not isinstance(value, cls | Mapping):
            fields = ", ".join(cls.model_fields)
            fail([Finding(message=f"got {shown(value)}; allowed: a mapping with {fields}")], cls.__name__)
        try:
            return handler(value)
        except ValidationError as error:
            fail(findings_of(error, cls.model_fields), cls.__name__)


_KINDS = {
    "int": "an integer",
    "float": "a number",
    "string": "text",
    "bool": "true or false",
    "tuple": "a list",
    "list": "a list",
    "dict": "a mapping",
    "finite": "a finite number",
}


def _message(error: ErrorDetails, allowed: tuple[str, ...]) -> str:
    kind, context, got = error["type"], error.get("ctx", {}), error["input"]
    if kind == "attnspec":
        return str(context["message"])
    if kind == "missing":
        return "is missing"
    if kind == "extra_forbidden":
        return unknown_key(error["loc"][-1], allowed)
    bounds = {"ge": "at least", "gt": "over", "le": "at most", "lt": "under"}
    for bound, words in bounds.items():
        if bound in context:
            return f"got {shown(got)}; allowed: {words} {context[bound]}"
    if kind == "value_error":
        return str(context["error"])
    wanted = _KINDS.get(kind.partition("_")[0])
    if wanted is not None and got is not None and not isinstance(got, str) and isinstance(got, list | tuple):
        return f"got a list; allowed: {wanted}"
    return f"got {shown(got)}; allowed: {wanted}" if wanted else f"got {shown(got)}: {error['msg']}"
