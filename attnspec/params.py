"""`param(...)`: one field of a plug-in's `Params` dataclass, with what it allows as metadata. Pure.

The dataclass checks nothing itself: the host builds a pydantic model from it (`attnspec.catalog`) and validates what a
spec or a command line says; the worker receives validated values. Write `tokens=True` for token counts, so that a spec
may say `8K`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

MISSING = dataclasses.MISSING
_KEY = "attnspec"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ParamInfo:
    """What a parameter means and allows: bounds are inclusive, `choices` lists every allowed value.

    refusal: what is wrong with a text and allowed in its place; None for one that is right.
    """

    doc: str
    ge: float | None = None
    le: float | None = None
    choices: tuple[Any, ...] | None = None
    tokens: bool = False
    refusal: Callable[[str], str | None] | None = None


def param(
    *,
    doc: str,
    default: Any = MISSING,
    ge: float | None = None,
    le: float | None = None,
    choices: Sequence[Any] | None = None,
    tokens: bool = False,
    refusal: Callable[[str], str | None] | None = None,
) -> Any:
    """A keyword-only dataclass field; without `default` the parameter is required.

    >>> @dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
    ... class Params:
    ...     window: int = param(ge=1, tokens=True, doc="Keys that a query sees, itself included.")
    >>> Params(window=4), info(dataclasses.fields(Params)[0]).ge
    (Params(window=4), 1)
    """
    held = None if choices is None else tuple(choices)
    return dataclasses.field(
        default=default,
        metadata={_KEY: ParamInfo(doc=doc, ge=ge, le=le, choices=held, tokens=tokens, refusal=refusal)},
    )


def switches_said(values: Mapping[str, Any]) -> str:
    """The names of the parameters that are switched on: they belong to the name of what runs.

    >>> switches_said({"kv_repeat": True, "lse": False, "block_q": 256, "block_k": None})
    'kv_repeat'
    """
    return " ".join(name for name, value in values.items() if value is True)


def info(field: dataclasses.Field[Any]) -> ParamInfo:
    """The ParamInfo of a dataclass field; an empty one for a field that was not made by `param`."""
    found = field.metadata.get(_KEY)
    return found if isinstance(found, ParamInfo) else ParamInfo(doc="")
