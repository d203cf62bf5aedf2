"""compiled: the reference kernel as one that compiles for every shape; it notes its calls, and may fail."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from attnspec.kernels import reference
from attnspec.params import param

PLUGIN_KIND = "kernels"
PROVIDERS, SUPPORT = reference.PROVIDERS, reference.SUPPORT
COMPILES_AHEAD = "each_length"


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    folder: str = param(doc="Where it notes its calls.")
    fault: str = param(default="", doc="What goes wrong.")


def lower(problem, params, provider):
    return reference.lower(problem, reference.Params(), provider)


def bind(lowered, problem, params, provider, device):
    if params.fault == "raise":
        raise RuntimeError("nvcc is not there")
    if params.fault == "die":
        os._exit(7)
    if params.fault == "hang":
        time.sleep(600)
    bound = reference.bind(lowered, problem, reference.Params(), provider, device)
    direction = "both" if problem.needs_backward else "forward"
    for method in ("forward", "backward"):
        _noting(bound, method, Path(params.folder), f"{problem.slices.seqlen_q} {direction}")
    return bound


def _noting(bound, method, folder, what):
    call = getattr(bound, method)

    def noted(*arguments):
        with (folder / "calls").open("a") as file:
            file.write(f"{os.getpid()} {what} {method}\n")
        return call(*arguments)

    setattr(bound, method, noted)
