"""toy_kernel: a kernel with parameters of every kind; computes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from attnspec.params import param
from attnspec.support import Provider

PLUGIN_KIND = "kernels"
PROVIDERS = (
    Provider(name="here", distribution="toy", module="toy"),
    Provider(name="there", distribution="toy", module="toy"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    backend: Literal["FAST", "SLOW"] | None = param(default=None, doc="Variant.")
    block: int = param(default=128, ge=1, tokens=True, doc="Tokens of a block.")
    stages: int = param(default=2, choices=(1, 2, 4), doc="Stages of the pipeline.")
    ratio: float = param(default=0.5, ge=0, le=1, doc="Some share.")
    tiles: tuple[int, ...] = param(default=(64, 64), ge=8, doc="Tile sizes.")
    copy: bool = param(default=False, doc="Named like an attribute of pydantic's models.")
    label: str | None = param(default=None, doc="Some text.")
