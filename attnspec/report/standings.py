"""Who is fastest on each workload, by how much, and which cases are shaky: what verdicts are worded from. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from attnspec.drawing.look import Row

WIDE_SHARE = 0.05
"""An interval wider than this share of its median is called unstable."""

WIDE_CLOCK = 0.05
"""A clock whose samples spread over more than this share of their median has moved."""

_WORKLOAD = (
    *("level", "device", "mask", "mask_params", "pass", "seqlen", "cp_size"),
    *("batch", "num_heads_q", "num_heads_kv", "head_dim", "dtype", "num_packs"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One workload. rows: all that were run. ranked: the ok ones, fastest first."""

    rows: Sequence[Row]
    ranked: Sequence[Row]

    @property
    def winner(self) -> Row | None:
        """The fastest ok row."""
        return self.ranked[0] if self.ranked else None

    @property
    def lead(self) -> float | None:
        """How many times as fast the first is as the second."""
        if len(self.ranked) < 2 or not self.ranked[1]["tflops"]:
            return None
        return float(self.ranked[0]["tflops"] / self.ranked[1]["tflops"])

    @property
    def peers(self) -> Sequence[Row]:
        """Those that cannot be told apart from the first, the faster first: intervals meet, or one has none."""
        return [row for row in self.ranked[1:] if meets(row, self.ranked[0])]

    @property
    def rival(self) -> Row | None:
        """The fastest of the peers."""
        return next(iter(self.peers), None)

    @property
    def tied(self) -> bool:
        """Whether another cannot be told apart from the first."""
        return self.rival is not None


def standings(rows: Iterable[Row]) -> list[Standing]:
    """One per workload of which anything was run, in the order of the rows."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        if row["status"] != "skipped":
            groups.setdefault(tuple(row[name] for name in _WORKLOAD), []).append(row)
    return [
        Standing(
            rows=held,
            ranked=sorted(
                (row for row in held if row["status"] == "ok" and row["tflops"] is not None),
                key=lambda row: -row["tflops"],
            ),
        )
        for held in groups.values()
    ]


def meets(row: Row, best: Row) -> bool:
    """Whether a row cannot be told apart from one of higher throughput; without an interval nothing can.

    >>> best, row = {"tflops_ci_low": 1.9, "tflops_ci_high": 2.1}, {"tflops_ci_low": 1.0, "tflops_ci_high": 1.1}
    >>> meets(row, best), meets({**row, "tflops_ci_high": 1.9}, best), meets({**row, "tflops_ci_high": None}, best)
    (False, True, True)
    """
    low, high = best["tflops_ci_low"], row["tflops_ci_high"]
    return low is None or high is None or bool(low <= high)


def width_share(row: Row) -> float | None:
    """Width of a row's interval as a share of its median time.

    >>> round(width_share({"time_ms_median": 2.0, "time_ms_ci_low": 1.9, "time_ms_ci_high": 2.1}), 3)
    0.1
    """
    if not row["time_ms_median"] or row["time_ms_ci_low"] is None or row["time_ms_ci_high"] is None:
        return None
    return float((row["time_ms_ci_high"] - row["time_ms_ci_low"]) / row["time_ms_median"])


def clock_moved(row: Row) -> bool:
    """Whether the SM clock was not one clock while an ok row was measured. A low one at a power limit is no doubt."""
    return row["status"] == "ok" and row["clock_spread"] is not None and bool(row["clock_spread"] > WIDE_CLOCK)


def doubts(row: Row) -> list[str]:
    """Why an ok row is to be read with care, in words; empty where nothing speaks against it."""
    if row["status"] != "ok":
        return []
    width = width_share(row)
    told = []
    if width is None and row["time_ms_median"] is not None:
        told.append("no interval, for a pack has one round")
    if width is not None and width > WIDE_SHARE:
        told.append(f"interval is {width:.0%} of the median wide")
    if clock_moved(row):
        told.append(f"SM clock moved by {row['clock_spread']:.0%}")
    if row["kernel_names"] is not None and not row["kernel_names"]:
        told.append("no profile shows which kernels ran")
    return told
