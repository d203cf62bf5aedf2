"""A mask as a few lines of characters: queries downwards, keys to the right, darker where more is allowed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from attnspec.slices import AttnSlices, grid_counts
from attnspec.slices.edges import IntArray

MAX_ROWS = 24
_SHADES = {True: "·░▒▓█", False: ".:+*#"}


def mask_text(slices: AttnSlices, *, unicode: bool = True, max_rows: int = MAX_ROWS) -> Iterator[str]:
    """Lines of a picture at most max_rows high and twice as many characters wide; cells of small masks one by one.

    >>> from attnspec.slices import AttnSlices
    >>> window = AttnSlices.from_rows([(0, 3, 0, 3, 1), (3, 6, 1, 6, 3)], seqlen_q=6, seqlen_k=6)
    >>> print("\\n".join(mask_text(window, unicode=False)))
    ##..........
    ####........
    ######......
    ..######....
    ....######..
    ......######
    """
    longest = max(slices.seqlen_q, slices.seqlen_k)
    one_by_one = longest <= max_rows
    # A character is about twice as high as it is wide.
    q_bounds = block_bounds(slices.seqlen_q, longest, longest if one_by_one else max_rows)
    k_bounds = block_bounds(slices.seqlen_k, longest, longest if one_by_one else 2 * max_rows)
    shades = _SHADES[unicode]
    shares = density(slices, q_bounds, k_bounds)
    # The two ends are kept for none and all, so that neither hides a few cells.
    levels = np.where(shares >= 1, len(shades) - 1, np.where(shares > 0, 1 + (shares * 3).astype(int), 0))
    for line in levels:
        yield "".join(shades[level] * (2 if one_by_one else 1) for level in line.tolist())


def block_bounds(seqlen: int, longest: int, most: int) -> IntArray:
    """Bounds of even blocks over a side of a picture whose longest side has at most `most` blocks.

    >>> block_bounds(10, 20, 8).tolist()
    [0, 2, 5, 7, 10]
    """
    count = min(seqlen, max(1, round(seqlen * min(most, longest) / longest)))
    return np.array([seqlen * place // count for place in range(count + 1)], dtype=np.int64)


def density(slices: AttnSlices, q_bounds: IntArray, k_bounds: IntArray) -> NDArray[np.float64]:
    """The share of allowed cells of every block of a picture, exact."""
    sizes = np.diff(q_bounds)[:, None] * np.diff(k_bounds)[None, :]
    return np.asarray(grid_counts(slices, q_bounds, k_bounds) / sizes)
