"""Adding up what the steps of a ring give: outputs by their log-sum-exp, gradients by plain sums.

Up to two partial results are added in their own element type, with one rounding; more are summed in float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnspec.exchange.lanes import use
from attnspec.support.merging import merge_partials

HALF = (torch.bfloat16, torch.float16)


def wide(dtype: torch.dtype) -> torch.dtype:
    """The element type of sums of many parts."""
    return torch.float32 if dtype in HALF else dtype


def lse_type(dtype: torch.dtype) -> torch.dtype:
    """The element type of a log-sum-exp beside outputs of `dtype`."""
    return torch.float64 if dtype == torch.float64 else torch.float32


class Outputs:
    """Merged output and lse over all query slots. many: more than two partial results are expected."""

    def __init__(self, q_BTND: Tensor, *, many: bool) -> None:
        self._like, self._many = q_BTND, many
        self._out: Tensor | None = None
        self._lse: Tensor | None = None

    def add(self, out_BTND: Tensor, lse_BTN: Tensor, rows: slice, *, whole: bool) -> None:
        """A partial result over `rows`; the first one that covers all slots is taken over and changed in place."""
        if self._out is None and whole:
            self._out, self._lse = out_BTND, lse_BTN.to(lse_type(out_BTND.dtype))
            return
        held, lse = self._started()
        merge_partials(held[:, rows], lse[:, rows], out_BTND, lse_BTN)

    def result(self) -> tuple[Tensor, Tensor]:
        """(out_BTND in the inputs' type, lse_BNT)."""
        if self._out is None or self._lse is None:
            self._out, self._lse = self._nothing()
        return self._out.to(self._like.dtype), self._lse.transpose(1, 2)

    def _started(self) -> tuple[Tensor, Tensor]:
        if self._out is None or self._lse is None:
            self._out, self._lse = self._nothing()
        elif self._many and self._out.dtype in HALF:
            use(self._out)
            self._out = self._out.to(torch.float32)
        return self._out, self._lse

    def _nothing(self) -> tuple[Tensor, Tensor]:
        batch, num_rows, num_heads, _ = self._like.shape
        dtype = wide(self._like.dtype) if self._many else self._like.dtype
        out = torch.zeros_like(self._like, dtype=dtype)
        lse = self._like.new_full((batch, num_heads, num_rows), -torch.inf, dtype=lse_type(self._like.dtype))
        return out, lse.transpose(1, 2)


class Sum:
    """The sum of gradients over slots of one tensor. many: as in Outputs. Parts stay as they are until the result."""

    def __init__(self, like_BTND: Tensor, *, many: bool) -> None:
        self._like, self._many = like_BTND, many
        self._sum: Tensor | None = None
        self._early: tuple[Tensor, slice] | None = None

    def add(self, part_BTND: Tensor, rows: slice, *, whole: bool) -> None:
        """A part over `rows`; the first one that covers all slots is taken over and changed in place.

        A first part that does not waits for the next, so that nothing is filled with zeros where that one does.
        """
        early, self._early = self._early, None
        if self._sum is None and whole:
            self._sum = part_BTND
            if early is None:
                return
            part_BTND, rows = early
        elif self._sum is None:
            if early is None:
                self._early = part_BTND, rows
                return
            self._sum = self._placed(*early)
        if self._many and self._sum.dtype in HALF:
            self._sum = self._sum.to(torch.float32)
        self._sum[:, rows].add_(part_BTND)

    def result(self) -> Tensor:
        """In the inputs' type; zeros when nothing was added."""
        if self._sum is None:
            self._sum = torch.zeros_like(self._like) if self._early is None else self._placed(*self._early)
        return self._sum.to(self._like.dtype)

    def _placed(self, part_BTND: Tensor, rows: slice) -> Tensor:
        """The part in zeros over all slots."""
        made = torch.zeros_like(self._like, dtype=wide(self._like.dtype) if self._many else self._like.dtype)
        made[:, rows] = part_BTND
        return made
