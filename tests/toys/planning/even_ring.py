"""even_ring: a strategy over any kernel that wants its degree to divide the ranks; computes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from attnspec.errors import UnsupportedError
from attnspec.params import param

PLUGIN_KIND = "strategies"


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    degree: int = param(default=1, ge=1, doc="Ranks of a ring.")


def check(params, shape, cp_size):
    if cp_size % params.degree:
        raise UnsupportedError("mesh", f"degree {params.degree} does not divide {cp_size} ranks")
