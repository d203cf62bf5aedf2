"""The language of specs as Markdown for the documentation: made from the JSON Schema and the plug-ins. Pure.

Each function returns one table. A page holds their output between marks, and a test makes it again
(tests/docs/test_pages.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

from attnspec import catalog
from attnspec.catalog.params import COUNT_PATTERN, POSITIVE_PATTERN, params_schema
from attnspec.errors import InputError
from attnspec.spec.excludes import AXES
from attnspec.spec.implementations import runnable_kernels
from attnspec.spec.models import DEFAULT_NUM_PACKS
from attnspec.spec.scalars import resolve_plain
from attnspec.spec.schema import SETTINGS, Json, json_schema
from attnspec.support.provider import UNSET, Provider
from attnspec.units import parse_count, parse_fraction

_LINKS = {
    "ShapeSection": "[shape](#shape)",
    "Data": "[data](#data)",
    "MeasureSection": "[measure](#measure)",
    "KernelSweep": "[kernel level](#a-sweep-of-the-kernel-level)",
    "DistributedSweep": "[distributed level](#a-sweep-of-the-distributed-level)",
    "masks": "list of [masks](#masks)",
    "kernels": "list of [kernels](#kernels)",
    "strategies": "list of [strategies](#strategies)",
    "exclude_kernel": "list, see [exclude](#exclude)",
    "exclude_distributed": "list, see [exclude](#exclude)",
    "count": "token count",
    "share": "share",
    "env": "mapping of text",
}
"""What stands for a part of the schema that has a section of its own."""
_PLAIN = {
    "integer": "integer",
    "number": "number",
    "string": "text",
    "boolean": "true or false",
    "array": "list",
    "object": "mapping",
}
_SETTING_KINDS = {"kernel": "a [kernel](#kernels)"}
_COUNTS = ("8192", "8K", "1.5K", "1M", "0x2000", "8k", "8KB", "1,024", "08")
_SHARES = ("1/4", "0.25", "25%", "0", "125%")


def fields(section: str) -> str:
    """The fields of an object of a spec, named as in the JSON Schema: Spec, Data, KernelSweep and so on."""
    schema = json_schema()
    held = schema if section == "Spec" else schema["$defs"][section]
    required = held.get("required", ())
    return table(
        ("field", "type", "default", "limits", "meaning"),
        (
            (
                f"`{name}`",
                kind(one),
                "required" if name in required else _default(section, name, one),
                limits(one, schema["$defs"]),
                _meaning_of(one, schema["$defs"]),
            )
            for name, one in held["properties"].items()
        ),
    )


def settings() -> str:
    """The keys that every kernel or strategy takes beside its own parameters."""
    return table(
        ("setting", "of", "type", "default", "meaning"),
        (
            (
                f"`{name}`",
                "strategies" if name == "kernel" else "kernels, strategies",
                _SETTING_KINDS.get(name) or kind(one),
                "required unless the strategy runs one kernel only" if name == "kernel" else "none",
                one["description"],
            )
            for name, one in SETTINGS.items()
        ),
    )


def excludes() -> str:
    """The axes that an entry of `exclude` may name, and at which level."""
    defs = json_schema()["$defs"]
    rows: dict[str, tuple[list[str], str]] = {}
    for level, axes in AXES.items():
        for axis in axes:
            meaning = defs[f"exclude_{level}"]["items"]["properties"][axis]["description"]
            rows.setdefault(axis, ([], meaning))[0].append(level)
    return table(
        ("axis", "level", "values"),
        ((f"`{axis}`", " and ".join(levels), meaning) for axis, (levels, meaning) in rows.items()),
    )


def masks() -> str:
    """Every mask with the pairs that it allows and its parameters."""
    return table(
        ("mask", "query q sees key k where", "documents", "parameters"),
        (
            (f"`{name}`", _first_line(module), "yes" if module.USES_DOCUMENTS else "no", _parameters(module))
            for name, module in _all("masks")
        ),
    )


def kernels() -> str:
    """Every kernel with its backends, its providers in order of preference, and its other parameters."""
    return table(
        ("kernel", "what it is", "`backend`", "`provider`, preferred first", "parameters"),
        (
            (f"`{name}`", _first_line(module), _backends(module), _providers(module), _parameters(module, "backend"))
            for name, module in _all("kernels")
        ),
    )


def strategies() -> str:
    """Every strategy with the kernels that it runs, the library that it is of, and its parameters."""
    return table(
        ("strategy", "what it is", "`kernel`", "library", "parameters"),
        (
            (f"`{name}`", _first_line(module), _kernels_of(module), _providers(module), _parameters(module))
            for name, module in _all("strategies")
        ),
    )


def spellings(what: str) -> str:
    """How token counts (`counts`) or shares (`shares`) are written, and what is refused."""
    read: Mapping[str, tuple[Sequence[str], Callable[[Any], Any]]] = {
        "counts": (_COUNTS, parse_count),
        "shares": (_SHARES, parse_fraction),
    }
    written, parse = read[what]
    return table(("written", "means"), ((f"`{text}`", _read(text, parse)) for text in written))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    r"""A Markdown table; a bar inside a cell is escaped.

    >>> print(table(("a", "b"), [("1", "|q|")]), end="")
    | a | b |
    | --- | --- |
    | 1 | \|q\| |
    """
    lines = [head, ["---"] * len(head), *([cell.replace("|", r"\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def kind(schema: Json) -> str:
    """The type of a value by its JSON Schema; null is told by its default.

    >>> kind({"anyOf": [{"$ref": "#/$defs/count"}, {"type": "array", "items": {"$ref": "#/$defs/count"}}]})
    'token count, or a list of them'
    >>> kind({"type": ["string", "null"]}), kind({"enum": ["fwd", "bwd"]})
    ('text', 'name')
    """
    if "$ref" in schema:
        return _LINKS[schema["$ref"].rpartition("/")[2]]
    if "enum" in schema or "const" in schema:
        return "name" if isinstance(schema.get("const", schema.get("enum", [None])[0]), str) else "integer"
    if "anyOf" in schema:
        first, *others = _options(schema)
        if any(one.get("pattern") in (COUNT_PATTERN, POSITIVE_PATTERN) for one in others):
            return "token count"
        return kind(first) + (", or a list of them" if any(one.get("items") == first for one in others) else "")
    if "oneOf" in schema:
        return " or ".join(kind(one) for one in schema["oneOf"])
    (name,) = (one for one in _listed(schema["type"]) if one != "null")
    elements = schema.get("items", {})
    return f"list: {kind(elements)}" if "oneOf" in elements else _PLAIN[name]


def limits(schema: Json, defs: Mapping[str, Json]) -> str:
    """What a value may be, as far as its JSON Schema says.

    >>> limits({"minimum": 1, "maximum": 2**31 - 1}, {}), limits({"exclusiveMinimum": 0, "maximum": 1}, {})
    ('1 to 2^31 - 1', 'over 0, at most 1')
    >>> limits({"enum": ["fwd", "bwd", None]}, {}), limits({"minimum": 16}, {})
    ('`fwd`, `bwd`', 'at least 16')
    """
    name = schema.get("$ref", "").rpartition("/")[2]
    if name in ("count", "share"):
        return limits(defs[name], defs)
    if "anyOf" in schema:
        return limits(_options(schema)[0], defs)
    allowed = schema.get("enum", [schema["const"]] if "const" in schema else [])
    if allowed:
        return ", ".join(f"`{one}`" for one in allowed if one is not None)
    if "pattern" in schema:
        return f"`{schema['pattern']}`"
    if schema.get("minLength") or schema.get("minItems"):
        return "not empty"
    least, over, most = (schema.get(key) for key in ("minimum", "exclusiveMinimum", "maximum"))
    if least is not None and most is not None:
        return f"{_number(least)} to {_number(most)}"
    bounds = {"at least": least, "over": over, "at most": most}
    return ", ".join(f"{words} {_number(bound)}" for words, bound in bounds.items() if bound is not None)


def _options(schema: Json) -> list[Json]:
    """The alternatives of a schema, without null and with those inside others."""
    held = [one for one in schema["anyOf"] if one.get("type") != "null"]
    return _options(held[0]) if len(held) == 1 and "anyOf" in held[0] else held


def _listed(one_or_more: Any) -> list[Any]:
    return one_or_more if isinstance(one_or_more, list) else [one_or_more]


def _number(bound: float) -> str:
    """A bound as people read it; large powers of two as such."""
    for added, words in ((0, ""), (1, " - 1")):
        power = int(bound + added).bit_length() - 1
        if power > 16 and bound + added == 2**power:
            return f"2^{power}{words}"
    return f"{bound:g}" if isinstance(bound, float) else str(bound)


def _meaning_of(schema: Json, defs: Mapping[str, Json]) -> str:
    """What a field means; where it does not say so itself, what the object in it is."""
    named = defs.get(schema.get("$ref", "").rpartition("/")[2], {})
    return str(schema.get("description") or named["description"])


def _default(section: str, name: str, schema: Json) -> str:
    if (section, name) == ("Data", "num_packs"):
        return ", ".join(f"{count} ({level})" for level, count in DEFAULT_NUM_PACKS.items())
    if kind(schema) in (_LINKS["Data"], _LINKS["MeasureSection"]):
        return "its defaults"
    return _value(schema["default"])


def _value(value: Any) -> str:
    """A default as a spec writes it.

    >>> _value(["fwd", "bwd"]), _value(True), _value(900.0), _value(None), _value("")
    ('`[fwd, bwd]`', '`true`', '`900`', 'none', 'none')
    """
    if value is None or value in ("", []):
        return "none"
    if isinstance(value, list):
        return f"`[{', '.join(map(str, value))}]`"
    if isinstance(value, float):
        return f"`{value:g}`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _all(plugin_kind: str) -> list[tuple[str, ModuleType]]:
    return [(name, catalog.load(plugin_kind, name)) for name in catalog.names(plugin_kind)]


def _first_line(module: ModuleType) -> str:
    """What a plug-in is, from its docstring, which begins with its name."""
    return (module.__doc__ or "").strip().partition("\n")[0].partition(": ")[2]


def _parameters(module: ModuleType, *left_out: str) -> str:
    schema = params_schema(module)
    required = schema.get("required", ())
    told = []
    for name, one in schema.get("properties", {}).items():
        if name in left_out:
            continue
        parts = [kind(one), limits(one, {}), "required" if name in required else f"default {_value(one['default'])}"]
        told.append(f"`{name}` ({', '.join(part for part in parts if part)}): {one.get('description', '')}")
    return "<br>".join(told)


def _backends(module: ModuleType) -> str:
    field = catalog.param_fields(module).get("backend")
    if field is None:
        return ""
    beside: Mapping[str, Provider] = getattr(module, "BACKEND_PACKAGES", {})
    names = [
        f"`{one}`" + (f" (needs {beside[one].name}{beside[one].requires})" if one in beside else "")
        for one in field.choices or ()
    ]
    return f"{', '.join(names)}: {field.about.doc}"


def _providers(module: ModuleType) -> str:
    held: Sequence[Provider] = getattr(module, "PROVIDERS", ())
    return ", ".join(f"`{one.name}`" + (f" {one.requires}" if one.requires else "") for one in held)


def _kernels_of(module: ModuleType) -> str:
    limited = runnable_kernels(module)
    if limited is None:
        return "any"
    variables: Callable[[str], Mapping[str, str]] = getattr(module, "variables", lambda kernel: {})
    told = []
    for name in limited:
        needed = ", ".join(f'{key}: "{value}"' for key, value in variables(name).items() if value != UNSET)
        told.append(f"`{name}`" + (f" with `env: {{{needed}}}`" if needed else ""))
    return "<br>".join(told)


def _read(text: str, parse: Callable[[Any], Any]) -> str:
    try:
        return str(parse(resolve_plain(text)))
    except (InputError, ValueError):
        return "refused"
