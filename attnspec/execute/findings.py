"""What a check of values found: the worst ratio of error to its unit, the bound, and words for people. NaN fails."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attnspec.slices.edges import IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The worst place of one check.

    index: where in the checked tensor; None where nothing was compared, as on a rank that holds no tokens. reason_code:
    one of REASON_CODES[wrong]. against_plain: the error is in units of plain attention's error, which is what a record
    reports.
    """

    error: float
    bound: float
    reason_code: str = ""
    reason: str = ""
    index: tuple[int, ...] | None = None
    against_plain: bool = False

    @classmethod
    def worst_of(cls, ratio: Tensor, *, bound: float, against_plain: bool = False) -> Finding:
        """The largest ratio of a tensor, a NaN before everything; 0 and no index where it has no elements."""
        if ratio.numel() == 0:
            return cls(error=0.0, bound=bound, against_plain=against_plain)
        flat = ratio.argmax()  # of NaN and numbers it gives the NaN
        index = tuple(int(one) for one in torch.unravel_index(flat, ratio.shape))
        return cls(error=float(ratio[index]), bound=bound, index=index, against_plain=against_plain)

    @property
    def failed(self) -> bool:
        """Whether the error is not within the bound. Written so that NaN fails."""
        return not (self.error <= self.bound)

    def exceeds(self, other: Finding) -> bool:
        """Whether this error is larger beside its bound; NaN exceeds every number."""
        return not (self.error / self.bound <= other.error / other.bound) and not math.isnan(other.error)

    def or_worse(self, other: Finding) -> Finding:
        """The worse of two."""
        return other if other.exceeds(self) else self

    def with_reason(self, code: str, text: str) -> Finding:
        """The same with its words."""
        return dataclasses.replace(self, reason_code=code, reason=text)


def where(row: int, head: int) -> str:
    """A place for people.

    >>> where(12, 3)
    'row 12, head 3'
    """
    return f"row {int(row)}, head {int(head)}"


def finite(name: str, value_BRND: Tensor, held: IntArray | None) -> Finding:
    """Whether a tensor (B, R, N, D) has no NaN and no infinity. held: positions of its rows, None for 0, 1, ..."""
    bad_BRN = ~torch.isfinite(value_BRND).all(dim=-1)
    count = int(bad_BRN.sum())
    if count == 0:
        return Finding(error=0.0, bound=1.0)
    _, row, head = (int(one) for one in bad_BRN.nonzero()[0])
    place = where(row if held is None else int(held[row]), head)
    text = f"{name}: {count} vectors of (row, head) hold NaN or infinity, the first at {place}"
    return Finding(error=float("inf"), bound=1.0, reason_code="not_finite", reason=text)
