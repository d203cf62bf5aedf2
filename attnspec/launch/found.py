"""What a runner's interpreter finds on this machine, and whether that is what the runner expects."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from attnspec.errors import EnvironmentMissingError
from attnspec.launch.runner_profile import Runner
from attnspec.record.variables import measured_variables
from attnspec.support import Device
from attnspec.wire import WORKER_FIX

PATIENCE_S = 180.0

# Runs in the runner's interpreter, which may lack anything but Python; so no attnspec and no torch outside `try`.
PROBE = """
import importlib.metadata, json, re, sys
found = {"python": "%d.%d.%d" % sys.version_info[:3], "versions": {}, "missing": {}, "devices": [], "packages": {}}
for one in importlib.metadata.distributions():
    if one.metadata["Name"]:
        found["packages"].setdefault(re.sub("[-_.]+", "-", one.metadata["Name"]).lower(), one.version)
try:
    driver = re.search(r"\\b\\d+\\.\\d+(\\.\\d+)?\\b", open("/proc/driver/nvidia/version").read())
    found["driver"] = driver and driver.group()
except OSError:
    pass
for name in ("torch", "numpy", "pyarrow"):
    try:
        found["versions"][name] = str(__import__(name).__version__)
    except Exception as error:
        found["missing"][name] = "%s: %s" % (type(error).__name__, error)
torch = sys.modules.get("torch")
if torch is not None and "torch" in found["versions"]:
    found["cuda"] = torch.version.cuda
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            device = torch.cuda.get_device_properties(index)
            found["devices"].append({"model": device.name, "capability": [device.major, device.minor]})
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A runner's interpreter and its CUDA devices.

    missing: package -> why it does not import. packages: every package installed there, by normalised name. variables:
    `measured_variables` of what it is started with on this machine; none in a container, which has its own.
    """

    python: str
    versions: Mapping[str, str]
    missing: Mapping[str, str]
    cuda: str | None
    devices: tuple[Device, ...]
    packages: Mapping[str, str] = field(default_factory=dict)
    driver: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def device(self) -> Device:
        """What planning assumes where a runner says `auto`."""
        return self.devices[0] if self.devices else Device(type="cpu")

    def describe(self) -> str:
        """In words."""
        torch = f"torch {self.versions['torch']}" if "torch" in self.versions else "no torch"
        if not self.devices:
            return f"no CUDA device ({torch}, Python {self.python})"
        models = ", ".join(sorted({device.model for device in self.devices}))
        return f"{len(self.devices)} x {models} ({torch}, Python {self.python})"


UNSEEN = Found(python="", versions={}, missing={}, cuda=None, devices=())
"""Of machines that a queue will choose; what they are, their workers tell."""


def look(python: str, env: Mapping[str, str]) -> Found:
    """Ask an interpreter. env: of the runner, added to the host's own. Raises EnvironmentMissingError when it fails."""
    found = ask([python], env, f"the runner's python {python}")
    return dataclasses.replace(found, variables=measured_variables({**os.environ, **env}))


def ask(interpreter: Sequence[str], env: Mapping[str, str], who: str) -> Found:
    """Run PROBE in an interpreter, also in a container's. Raises EnvironmentMissingError, which names `who`."""
    try:
        answer = subprocess.run(
            [*interpreter, "-c", PROBE],
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
    except OSError as error:
        raise EnvironmentMissingError(f"{who}: {interpreter[0]} cannot be started: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise EnvironmentMissingError(f"{who} gave no answer in {PATIENCE_S:g} s while importing torch") from None
    try:
        content: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        words = answer.stderr.decode(errors="replace").strip().splitlines()
        raise EnvironmentMissingError(
            f"{who} failed with exit code {answer.returncode}: {' '.join(words[-3:])}"
        ) from None
    return Found(
        python=content["python"],
        versions=content["versions"],
        missing=content["missing"],
        cuda=content.get("cuda"),
        packages=dict(sorted(content["packages"].items())),
        driver=content.get("driver"),
        devices=tuple(
            Device(type="cuda", capability=tuple(one["capability"]), model=one["model"]) for one in content["devices"]
        ),
    )


def device_type(runner: Runner, found: Found, *, world_sizes: Mapping[int, str]) -> Literal["cpu", "cuda"]:
    """The kind of device that jobs run on. Pure.

    world_sizes: ranks -> what needs them, in words. Raises EnvironmentMissingError when the runner expects what is not
    there: packages, the device, or as many devices as ranks.
    """
    if found.missing:
        missing = "; ".join(f"{name} ({why})" for name, why in found.missing.items())
        raise EnvironmentMissingError(
            f"the interpreter of runner {runner.name} (Python {found.python}, {runner.python or 'the one in use'}) "
            f"cannot import {missing}.\nInstall it there: {WORKER_FIX}. "
            "Planning, masks, sampling and reports work without."
        )
    most = max(world_sizes, default=1)
    beyond = runner.beyond(most, world_sizes[most]) if world_sizes else ""
    if runner.device.type == "cpu" or (runner.device.type == "auto" and not found.devices):
        if beyond:
            fits = only([size for size in world_sizes if not runner.beyond(size, "")], world_sizes)
            first = [f"{' '.join(fits)}   runs what fits"] if fits else []
            raise EnvironmentMissingError(f"{beyond}\n{instead(world_sizes, found, first=first)}")
        return "cpu"
    several = f", {most} of them for {world_sizes[most]}" if most > 1 else ""
    wrong = "" if found.devices else f"runner {runner.name} expects {runner.expectation()}{several}"
    for device in found.devices:
        wrong = wrong or runner.mismatch(device) or ""
    if not wrong and most > len(found.devices):
        wrong = f"runner {runner.name} needs {most} devices for {world_sizes[most]}"
    wrong = wrong or beyond
    if wrong:
        raise EnvironmentMissingError(f"{wrong}\nFound: {found.describe()}.\n{instead(world_sizes, found)}")
    return "cuda"


def instead(world_sizes: Collection[int], found: Found | None = None, *, first: Sequence[str] = ()) -> str:
    """What else can be done, where a runner's expectations are not met: only what is true. Pure.

    world_sizes: ranks that jobs need. found: what is here; None: nobody looked, so that one rank fits and
    more may not. first: what this runner alone offers, told before the rest.

    >>> print(instead([1, 8]).splitlines()[1])
      --runner local --only cp_size=1   runs these cases on what is here
    """
    most = 1 if found is None else len(found.devices) or max(world_sizes, default=1)
    here = only([size for size in world_sizes if size <= most], world_sizes)
    lines = ["Instead:", *(f"  {line}" for line in first)]
    if here is not None:
        lines.append(f"  {' '.join(('--runner local', *here))}   runs {'these cases ' if here else ''}on what is here")
    lines.append("  --rehearse   runs the whole pipeline, shrunk, on the CPU")
    lines.append("  attnspec plan, mask, sample and report work anywhere")
    return "\n".join(lines)


def only(fits: Collection[int], world_sizes: Collection[int]) -> tuple[str, ...] | None:
    """Options that leave jobs of these ranks: none where all fit, None where no option does. Pure.

    >>> only([2, 4], [2, 4, 8]), only([2], [2]), only([], [2])
    (('--only', "'cp_size=2|4'"), (), None)
    """
    if not fits:
        return None if world_sizes else ()
    if len(fits) == len(world_sizes):
        return ()
    sizes = "|".join(map(str, sorted(fits)))
    return ("--only", f"'cp_size={sizes}'" if len(fits) > 1 else f"cp_size={sizes}")


def interpreter(runner: Runner, in_use: str) -> str:
    """The runner's interpreter; a path with a slash counts from the current folder."""
    python = runner.python or in_use
    return str(Path(python).expanduser()) if "/" in python else python
