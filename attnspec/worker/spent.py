"""Where a worker's wall time goes, so that what the harness costs beside the measurement can be told."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

Activity = Literal["start", "compile_ahead", "setup", "oracle", "verify", "inspect", "measure", "anchor", "end"]
"""start: until the first case. setup: lowering, binding, tensors. oracle: what all implementations of a pack are
checked against. verify: one implementation's checks, first calls (compilation) included. inspect: peak memory and names
of device kernels. measure: the timing loop. anchor: one case again and again, in between."""


class Spent:
    """Wall seconds by activity; exactly one goes on at any time. `timed_s`: of `measure`, inside warm-up and rounds."""

    def __init__(self, now_s: Callable[[], float] = time.perf_counter) -> None:
        self._now_s = now_s
        self._activity: Activity = "start"
        self._since_s = now_s()
        self._seconds: dict[Activity, float] = {}
        self.timed_s = 0.0
        self.under_way_s: Callable[[], float] = float
        """Of what is being timed and not in `timed_s` yet."""

    def on(self, activity: Activity) -> None:
        """From now on the worker is at this.

        >>> moments = iter([0.0, 2.0, 5.0, 6.0])
        >>> spent = Spent(lambda: next(moments))
        >>> spent.on("measure")
        >>> spent.on("start")
        >>> spent.facts()
        {'start': 3.0, 'measure': 3.0, 'timed': 0.0}
        """
        now_s = self._now_s()
        self._seconds[self._activity] = self._seconds.get(self._activity, 0.0) + now_s - self._since_s
        self._activity, self._since_s = activity, now_s

    def facts(self) -> dict[str, float]:
        """For the record, until now."""
        self.on(self._activity)
        return {
            **{str(name): seconds for name, seconds in self._seconds.items()},
            "timed": self.timed_s + self.under_way_s(),
        }
