"""The JSON Schema of spec files, for editors: made from the models and the plug-ins that are there. Pure.

It says what can be said without looking at two values at once; `attnspec validate` says the rest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from attnspec import catalog
from attnspec.catalog.params import UntitledJsonSchema, count_schema, params_schema
from attnspec.shape import PASSES
from attnspec.spec.environment import LAUNCHER_VARIABLES, NAME
from attnspec.spec.excludes import AXES
from attnspec.spec.implementations import provider_names, runnable_kernels
from attnspec.spec.items import SINGULAR
from attnspec.spec.models import Spec
from attnspec.spec.sweeps import MAX_CP_SIZE, DistributedSweep, KernelSweep
from attnspec.units import MAX_COUNT

Json = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"
SETTINGS: Mapping[str, Json] = {
    "kernel": {"description": "The kernel that each rank runs, by name or as `name: {parameter: value}`."},
    "backend": {
        "type": ["string", "null"],
        "description": "The kernel's own variant; the kernel chooses if not given.",
    },
    "provider": {
        "type": ["string", "null"],
        "description": "The package that runs the kernel; the first usable one if not given.",
    },
    "env": {"$ref": "#/$defs/env", "description": "Environment variables that the process starts with."},
}
"""The keys that stand beside the parameters of kernels and strategies (`kernel` at strategies only)."""
_ENV: Json = {
    "type": ["object", "null"],
    "propertyNames": {"pattern": f"^{NAME}$", "not": {"enum": list(LAUNCHER_VARIABLES)}},
    "additionalProperties": {"type": "string"},
    "description": "Environment variables by name; values in quotes.",
}
_SHARE: Json = {
    "anyOf": [
        {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        {"type": "string", "pattern": r"^\s*([0-9]+\s*/\s*[0-9]+|[0-9]+(\.[0-9]+)?(\s*%)?)\s*$"},
    ],
    "description": "A share over 0 and at most 1: 1/4, 0.25 or 25%.",
}
_AXES = {
    "masks": "Masks by name, alone or with some of their parameters.",
    "seqlen": "Total tokens of a pack.",
    "cp_size": "Ranks that share a sequence.",
    "seqlen_per_rank": "Tokens per rank.",
    "passes": "Passes.",
    "kernels": "Kernels by name, alone or with some of their settings, `env` aside.",
    "strategies": "Strategies by name, alone or with some of their settings, `env` aside.",
}


def json_schema() -> Json:
    """The schema of a spec file with the names and parameters of every plug-in."""
    models: list[tuple[type[BaseModel], JsonSchemaMode]] = [
        (model, "validation") for model in (Spec, KernelSweep, DistributedSweep)
    ]
    _, made = models_json_schema(models, schema_generator=UntitledJsonSchema)
    defs: Json = {name: _filled(schema) for name, schema in made["$defs"].items()}
    defs["count"] = count_schema(1, MAX_COUNT)
    defs["share"] = _SHARE
    defs["env"] = _ENV
    defs["masks"] = _items("masks", _mask_settings)
    defs["kernels"] = _items("kernels", _kernel_settings)
    defs["strategies"] = _items("strategies", _strategy_settings)
    for name in catalog.names("kernels"):
        defs[f"kernel_{name}"] = _described(catalog.load("kernels", name), _kernel_settings)
    for level, axes in AXES.items():
        defs[f"exclude_{level}"] = _excludes(axes)
    root = defs.pop("Spec")
    used = _reachable(root, defs)
    return {
        "$schema": DIALECT,
        "title": "attnspec spec",
        **root,
        "$defs": {name: schema for name, schema in sorted(defs.items()) if name in used},
    }


def schema_text() -> str:
    """The schema as the text of `schema.json`."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


def _reachable(root: Any, defs: Json) -> set[str]:
    """The names in `defs` that `root` refers to, also through others."""
    found: set[str] = set()
    todo = [root]
    while todo:
        held = todo.pop()
        if isinstance(held, dict):
            name = str(held.get("$ref", "")).removeprefix("#/$defs/")
            if name in defs and name not in found:
                found.add(name)
                todo.append(defs[name])
            todo.extend(held.values())
        elif isinstance(held, list):
            todo.extend(held)
    return found


def _filled(schema: Any) -> Any:
    """The schema with every part that the models leave open filled in."""
    if isinstance(schema, list):
        return [_filled(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "attnspec" in schema and isinstance(schema["attnspec"], str):
        rest = {key: value for key, value in schema.items() if key != "attnspec"}
        return _open_part(schema["attnspec"]) | rest
    return {key: _filled(value) for key, value in schema.items() if key != "title" or not isinstance(value, str)}


def _open_part(name: str) -> Json:
    parts: dict[str, Json] = {
        "sweeps": {
            "type": "array",
            "minItems": 1,
            "items": {"oneOf": [{"$ref": "#/$defs/KernelSweep"}, {"$ref": "#/$defs/DistributedSweep"}]},
        },
        "sizes": _several({"$ref": "#/$defs/count"}),
        "ranks": _several({"type": "integer", "minimum": 1, "maximum": MAX_CP_SIZE}),
        "passes": _several({"enum": list(PASSES)}),
    }
    return parts.get(name, {"$ref": f"#/$defs/{name}"})


def _several(one: Json) -> Json:
    return {"anyOf": [one, {"type": "array", "minItems": 1, "uniqueItems": True, "items": one}]}


def _items(kind: str, settings: Callable[[ModuleType], Json]) -> Json:
    """A list whose items are a name, or a mapping from one name to its settings."""
    modules = {name: catalog.load(kind, name) for name in catalog.names(kind)}
    by_name = {name: _described(module, settings) for name, module in modules.items()}
    alone = [name for name, schema in by_name.items() if not schema.get("required")]
    return {
        "type": "array",
        "minItems": 1,
        "uniqueItems": True,
        "items": {"anyOf": [*([{"enum": alone}] if alone else []), _one_of(by_name)]},
    }


def _one_of(by_name: Json) -> Json:
    return {
        "type": "object",
        "minProperties": 1,
        "maxProperties": 1,
        "additionalProperties": False,
        "properties": by_name,
    }


def _settings(properties: Json, required: Iterable[str]) -> Json:
    needed = list(required)
    held: Json = {"type": "object" if needed else ["object", "null"], "additionalProperties": False}
    return {**held, "properties": properties, **({"required": needed} if needed else {})}


def _mask_settings(module: ModuleType) -> Json:
    params = params_schema(module)
    return _settings(params.get("properties", {}), params.get("required", ()))


def _kernel_settings(module: ModuleType) -> Json:
    params = params_schema(module)
    own = {
        "backend": {"type": "null", "description": "This kernel has no backends."},
        "provider": {"enum": [*provider_names(module), None], "description": SETTINGS["provider"]["description"]},
        "env": SETTINGS["env"],
    }
    return _settings({**own, **params.get("properties", {})}, params.get("required", ()))


def _strategy_settings(module: ModuleType) -> Json:
    params = params_schema(module)
    limited = runnable_kernels(module)
    kernels = list(limited or catalog.names("kernels"))
    own = {
        **SETTINGS,
        "kernel": {
            "anyOf": [
                {"enum": kernels},
                _one_of({name: {"$ref": f"#/$defs/kernel_{name}"} for name in kernels}),
            ],
            **SETTINGS["kernel"],
        },
    }
    needed = params.get("required", [])
    return _settings(
        {**own, **params.get("properties", {})}, needed if limited and len(limited) == 1 else ["kernel", *needed]
    )


def _excludes(axes: Iterable[str]) -> Json:
    values: dict[str, Json] = {
        "passes": {"enum": list(PASSES)},
        **{axis: _selector(axis) for axis in SINGULAR},
    }
    properties = {
        axis: {**_several(values.get(axis, {"$ref": "#/$defs/count"})), "description": _AXES[axis]} for axis in axes
    }
    entry = {"type": "object", "minProperties": 1, "additionalProperties": False, "properties": properties}
    return {"type": "array", "uniqueItems": True, "items": entry}


def _selector(kind: str) -> Json:
    names = list(catalog.names(kind))
    mapping = {"type": "object", "minProperties": 1, "maxProperties": 1, "propertyNames": {"enum": names}}
    return {"anyOf": [{"enum": names}, mapping]}


def _described(module: ModuleType, settings: Callable[[ModuleType], Json]) -> Json:
    return {"description": (module.__doc__ or "").strip().partition("\n")[0], **settings(module)}
