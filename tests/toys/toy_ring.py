"""toy_ring: a strategy over any kernel; computes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from attnspec.params import param

PLUGIN_KIND = "strategies"


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    degree: int | None = param(default=None, ge=1, doc="Ranks of a ring.")
    window: int = param(default=1, ge=1, doc="Steps of the inner ring.")
