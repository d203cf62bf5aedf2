"""An implementation as plug-ins are asked about it while planning."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from attnspec import plugins
from attnspec.ids import canonical_json
from attnspec.plan.identity import implementation_content
from attnspec.wire import Implementation


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """An implementation as it is asked: its modules and parameters, loaded once. `key` tells implementations apart."""

    key: str
    implementation: Implementation
    kernel: ModuleType
    kernel_params: Any
    strategy: ModuleType | None
    strategy_params: Any

    @classmethod
    def load(cls, implementation: Implementation) -> Asked:
        """Find the plug-ins. Raises InputError for unknown names."""
        kernel = plugins.load("kernels", implementation.kernel)
        settings = dict(implementation.kernel_params)
        if any(field.name == "backend" for field in dataclasses.fields(kernel.Params)):
            settings["backend"] = implementation.backend
        name = implementation.strategy
        strategy = None if name is None else plugins.load("strategies", name)
        return cls(
            key=canonical_json(implementation_content(implementation)),
            implementation=implementation,
            kernel=kernel,
            kernel_params=plugins.make_params(kernel, settings),
            strategy=strategy,
            strategy_params=strategy and plugins.make_params(strategy, implementation.strategy_params),
        )
