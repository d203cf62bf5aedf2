"""faulty_rank: the reference kernel, with a fault on one rank only; for tests of jobs over several ranks."""

import os
import signal
import time
from dataclasses import dataclass

import torch.distributed as dist

from attnspec.errors import UnsupportedError
from attnspec.kernels import reference
from attnspec.params import param

PLUGIN_KIND = "kernels"
SPENT = set()
"""Faults of kind `once` that have happened."""
PROVIDERS, SUPPORT = reference.PROVIDERS, reference.SUPPORT


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    fault: str = param(doc="What goes wrong, and in which call: oom:forward:1.")
    rank: int = param(default=1, doc="Where.")


def lower(problem, params, provider):
    if params.fault == "no_lowering" and dist.get_rank() == params.rank:
        raise UnsupportedError("no_lowering", "no call expresses these slices")
    return reference.lower(problem, reference.Params(), provider)


def bind(lowered, problem, params, provider, device):
    inner = reference.bind(lowered, problem, reference.Params(), provider, device)
    if dist.get_rank() != params.rank:
        return inner
    return Faulty(inner, params.fault)


class Faulty:
    explicit_backward = True
    frees_graph = False
    expected_kernels = ""
    backend = None

    def __init__(self, inner, fault):
        self._inner, self._fault = inner, fault
        self._calls = {"forward": 0, "backward": 0}

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def forward(self, inputs):
        made = self._misbehaving("forward") or self._inner.forward(inputs)
        if self._fault == "wrong":
            made.out *= 1.5
        return made

    def backward(self, inputs, forward, dout):
        self._misbehaving("backward")
        return self._inner.backward(inputs, forward, dout)

    def _misbehaving(self, where):
        self._calls[where] += 1
        what, _, rest = self._fault.partition(":")
        place, _, first = rest.partition(":")
        if place != where or self._calls[where] < int(first or 1):
            return
        if what == "raise":
            raise RuntimeError("the library says no")
        if what == "once" and self._fault not in SPENT:
            SPENT.add(self._fault)
            raise MemoryError("this once")
        if what == "oom":
            raise MemoryError("no memory here")
        if what == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "hang":
            time.sleep(600)
