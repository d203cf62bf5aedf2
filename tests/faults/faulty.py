"""faulty: the reference kernel with one fault, for tests of the worker."""

import os
import signal
import time
import weakref
from dataclasses import dataclass

from attnspec.errors import UnsupportedError
from attnspec.kernels import reference
from attnspec.params import param

PLUGIN_KIND = "kernels"
PROVIDERS, SUPPORT = reference.PROVIDERS, reference.SUPPORT
COMPILE_S = 0.2
SPENT = set()
"""Folders of kernels that have run out of memory once."""
HOARDED = []
"""Weak references to tensors of calls that failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    fault: str = param(doc="What goes wrong.")
    folder: str = param(default="", doc="Where it counts its calls.")


def lower(problem, params, provider):
    if params.fault == "no_lowering":
        raise UnsupportedError("no_lowering", "no call expresses these slices")
    return reference.lower(problem, reference.Params(), provider)


def bind(lowered, problem, params, provider, device):
    if params.fault == "bind":
        raise ImportError("libfoo.so: undefined symbol: bar")
    if params.fault == "forward_only" and problem.needs_backward:
        raise UnsupportedError("direction", "the library has a forward of this head_dim, and no backward")
    return Faulty(reference.bind(lowered, problem, reference.Params(), provider, device), params, problem)


class Faulty:
    explicit_backward = False
    expected_kernels = ""
    backend = "broken"

    def __init__(self, inner, params, problem):
        self.inner, self.fault, self.folder = inner, params.fault, params.folder
        self.frees_graph = params.fault == "frees_graph"
        self.forwards = self.backwards = 0

    def load(self, q, k, v):
        return self.inner.load(q, k, v)

    def load_dout(self, dout):
        return self.inner.load_dout(dout)

    def canonical_out(self, forward):
        return self.inner.canonical_out(forward)

    def canonical_grads(self, grads):
        return self.inner.canonical_grads(grads)

    def forward(self, inputs):
        self.forwards += 1
        self._misbehave("forward", self.forwards)
        made = self.inner.forward(inputs)
        if self.fault == "nan":
            made.out[:, 3] = float("nan")
        if self.fault == "wrong":
            made.out *= 1.5
        made.saved = "used" if self.frees_graph else None
        return made

    def backward(self, inputs, forward, dout):
        self.backwards += 1
        if self.frees_graph:
            assert forward.saved == "used", "backward through a freed graph"
            forward.saved = None
        self._misbehave("backward", self.backwards)
        return self.inner.backward(inputs, forward, dout)

    def _misbehave(self, where, calls):
        verified = {"forward": 2, "backward": 3}[where]
        match self.fault.split(":"):
            case ["compiles"] if calls == 1:
                time.sleep(COMPILE_S)
            case ["hoards", place] if where == "forward" and calls > {"verify": 0, "measure": verified + 1}[place]:
                try:
                    _hoard()
                except MemoryError as error:
                    raise MemoryError("no room for the workspace") from error
            case ["witnesses"]:
                held = sum(one() is not None for one in HOARDED)
                assert held == 0, f"{held} of {len(HOARDED)} tensors of failed calls are still there"
            case ["raise", place] if place == where:
                raise RuntimeError(f"the library says no in {where}")
            case ["oom", place] if place == where:
                raise MemoryError(f"no memory in {where}")
            case ["huge", place] if place == where:
                import torch

                torch.empty(2**50, dtype=torch.uint8)
            case ["late", kind] if where == "forward" and calls > verified + 2:
                if kind == "raise":
                    raise RuntimeError("later")
                raise MemoryError("later")
            case ["once"] if where == "forward" and calls > verified + 100 and self.folder not in SPENT:
                SPENT.add(self.folder)
                raise MemoryError("this once")
            case ["die"] if where == "forward" and calls > verified:
                os.kill(os.getpid(), signal.SIGKILL)
            case ["hang"] if where == "forward" and calls > verified:
                time.sleep(600)
            case ["children"] if where == "forward" and calls > verified:
                import subprocess

                subprocess.Popen(["sleep", "600"], start_new_session=True)
                time.sleep(600)


def _hoard():
    """Fail with a tensor in hand."""
    import torch

    kept = torch.ones(2**10)
    HOARDED.append(weakref.ref(kept))
    raise MemoryError("no room")
