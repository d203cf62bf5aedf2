"""The conditions that a run was made under, as its provenance keeps them, and what differs from them now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from attnspec.catalog.findings import dotted, findings_of
from attnspec.errors import InputError
from attnspec.launch.measured_code import environments, inherited_variables, measured_code
from attnspec.launch.provenance import differences
from attnspec.launch.runner_profile import Profile, Runner

_HOST = ("machine", "processor", "num_cpus")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What a measurement depends on, as far as it is known.

    code: SHA-256 of attnspec's own, several where attempts had several. images: name -> image ID, digest. packages:
    those that the run's cases use, by normalised name. host: machine, processor, cores. devices: CUDA devices,
    each with model and capability. variables: of the environment, in words where attempts had several values of one;
    None where an earlier version did not record them.
    """

    code: tuple[str, ...]
    python: str = ""
    images: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    driver: str | None = None
    devices: tuple[Mapping[str, Any], ...] = ()
    host: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, str] | None = None

    def among(self, names: Iterable[str]) -> Mapping[str, str]:
        """The versions of some packages."""
        return {name: self.packages[name] for name in names if name in self.packages}


def drift(before: Conditions, now: Conditions, *, seen: bool = True) -> list[str]:
    """What differs, one line each. Packages count that the earlier run used. Pure.

    seen: whether anybody has looked at the machines of now; else code and images alone are compared.

    >>> old = Conditions(code=("a",), packages={"torch": "2.11.0"}, driver="570", host={"num_cpus": 8})
    >>> drift(old, Conditions(code=("a",), packages={"torch": "2.13.0", "x": "1"}, driver="580", host={"num_cpus": 8}))
    ['driver: 570 -> 580', 'package torch: 2.11.0 -> 2.13.0']
    """
    lines = differences({"attnspec's code": _short(before.code)}, {"attnspec's code": _short(now.code)})
    for name, image in before.images.items():
        here = now.images.get(name, {})
        for key, what in (("image_id", "image ID"), ("digest", "digest")):
            lines += differences({what: image.get(key)}, {what: here.get(key)}, f"image {name}: ")
    if not seen:
        return lines
    lines += differences({"driver": before.driver}, {"driver": now.driver})
    lines += differences({"python": before.python}, {"python": now.python})
    lines += differences(before.packages, now.among(before.packages), "package ")
    lines += differences({"devices": _counted(before.devices)}, {"devices": _counted(now.devices)})
    if before.variables is not None:
        lines += differences(before.variables, now.variables or {}, "variable ")
    return lines + differences(before.host, now.host, "host ")


def _short(code: Iterable[str]) -> str:
    return ", ".join(one[:12] for one in code)


def _counted(devices: Iterable[Mapping[str, Any]]) -> str:
    models = [str(device["model"]) for device in devices]
    return ", ".join(f"{models.count(model)} x {model}" for model in dict.fromkeys(models)) or "none"


def recorded_conditions(provenance: Mapping[str, Any]) -> Conditions:
    """Those of a run. Raises InputError for a provenance that tells too little."""
    try:
        found, host = provenance["found"], provenance["host"]
        workers = provenance.get("workers", {}).get("environment", {}).values()
        used = {name: version for facts in workers for name, version in facts["versions"].items()}
        return Conditions(
            code=tuple(measured_code(provenance)) or (provenance["code_sha256"],),
            python=found["python"],
            images=provenance["images"],
            packages=_normalised(used or found["versions"]),
            driver=found["driver"],
            devices=tuple(found["devices"]),
            host={name: host[name] for name in _HOST},
            variables=_recorded_variables(provenance),
        )
    except KeyError as error:
        raise InputError(f"the run's provenance.json has no {error}; an older attnspec wrote it") from None


def _recorded_variables(provenance: Mapping[str, Any]) -> dict[str, str] | None:
    """Those of the attempts whose samples stand, else of the last run; of several values no present one repeats all."""
    last: dict[str, str] | None = provenance["found"].get("variables")
    if last is None or provenance["images"]:  # containers have their own
        return last
    held: dict[str, str | None] = dict(last)
    for name, values in inherited_variables(provenance).items():
        told = " and ".join("unset" if value is None else value for value in values)
        held[name] = values[0] if len(values) == 1 else f"mixed in the run itself, whose attempts had {told}"
    return {name: value for name, value in held.items() if value is not None}


def workers_drift(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What the workers of two runs found differently: driver, device, versions, variables. From their provenance. Pure.

    Variables count where both runs tell them.

    >>> old = {"workers": {"environment": {"a": {"driver": "570", "device": "H100", "versions": {"torch": "2.11"}}}}}
    >>> new = {"workers": {"environment": {"b": {"driver": "580", "device": "H100", "versions": {"torch": "2.11"}}}}}
    >>> workers_drift(old, new)
    ['driver: 570 -> 580']
    """
    old, new = (_variables_of_workers(one) for one in (before, now))
    lines = differences(_told_by_workers(before), _told_by_workers(now))
    return lines if old is None or new is None else lines + differences(old, new)


def _told_by_workers(provenance: Mapping[str, Any]) -> dict[str, Any]:
    facts = list(provenance.get("workers", {}).get("environment", {}).values())
    told: dict[str, Any] = {
        name: ", ".join(sorted({str(one.get(name)) for one in facts})) for name in ("driver", "device")
    }
    versions = {name: version for one in facts for name, version in one["versions"].items()}
    return {**told, **{f"package {name}": version for name, version in versions.items()}}


def _variables_of_workers(provenance: Mapping[str, Any]) -> dict[str, str] | None:
    """`variable NAME` -> its values; None where a worker of an earlier version told none."""
    facts = [one.get("variables") for one in environments(provenance)]
    told = [one for one in facts if one is not None]
    if not told or len(told) < len(facts):
        return None
    names = dict.fromkeys(name for one in told for name in one)
    return {f"variable {name}": ", ".join(sorted({one.get(name, "none") for one in told})) for name in names}


def present_conditions(provenance: Mapping[str, Any]) -> Conditions:
    """Those of now, from a provenance gathered for a run to come."""
    found, host = provenance["found"], provenance["host"]
    return Conditions(
        code=(provenance["code_sha256"],),
        python=found["python"],
        images=provenance["images"],
        packages=_normalised(found["packages"]),
        driver=found["driver"],
        devices=tuple(found["devices"]),
        host={name: host[name] for name in _HOST},
        variables=found["variables"],
    )


def _normalised(packages: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-").replace(".", "-").lower(): version for name, version in packages.items()}


def recorded_runner(provenance: Mapping[str, Any]) -> Runner:
    """The runner of a run, as its profile was then. Raises InputError where it cannot be read."""
    content = dict(provenance["runner"])
    name, file = content.pop("name"), content.pop("file")
    device = dict(content["device"])
    if device.get("capability") is not None:
        device["capability"] = ".".join(map(str, device["capability"]))
    try:
        return Runner(**dict(Profile.model_validate({**content, "device": device})), name=name, file=str(Path(file)))
    except ValidationError as error:
        wrong = "; ".join(f"{dotted(one.loc)}: {one.message}" for one in findings_of(error))
        raise InputError(f"the runner in the run's provenance.json cannot be read: {wrong}") from None
