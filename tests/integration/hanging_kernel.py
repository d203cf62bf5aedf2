"""hanging_kernel: the reference kernel, which hangs when it is set up, by default so that no thread of it runs."""

import ctypes
import sys
import time
from dataclasses import dataclass

from attnspec.kernels import reference

PLUGIN_KIND = "kernels"
PROVIDERS, SUPPORT = reference.PROVIDERS, reference.SUPPORT


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """softly: other threads go on."""

    softly: bool = False


def lower(problem, params, provider):
    return reference.lower(problem, reference.Params(), provider)


def bind(lowered, problem, params, provider, device):
    """`PyDLL` keeps the interpreter's lock while it sleeps."""
    print("hanging", file=sys.stderr, flush=True)
    if params.softly:
        time.sleep(1000)
    ctypes.PyDLL(None).sleep(1000)
