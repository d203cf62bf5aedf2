"""The dense picture of a mask, for tests and small masks: painted cell by cell from the definition. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attnspec.errors import InputError
from attnspec.slices.table import AttnSlices

MAX_CELLS = 2**28


def dense(slices: AttnSlices) -> NDArray[np.bool_]:
    """The mask as bool (seqlen_q, seqlen_k). Raises InputError for more than 2**28 cells.

    >>> dense(AttnSlices.from_rows([(0, 2, 0, 3, 1)], seqlen_q=2, seqlen_k=3)).astype(int).tolist()
    [[1, 1, 0], [1, 1, 1]]
    """
    if slices.seqlen_q * slices.seqlen_k > MAX_CELLS:
        raise InputError(
            f"a dense picture of {slices.seqlen_q} x {slices.seqlen_k} cells is too large; at most 2**28 cells"
        )
    picture = np.zeros((slices.seqlen_q, slices.seqlen_k), dtype=np.bool_)
    for q0, q1, k0, k1, kind in slices.rows():
        q = np.arange(q0, q1)[:, None]
        k = np.arange(k0, k1)[None, :]
        cells = np.ones((len(q), k.shape[1]), dtype=np.bool_)
        if kind & 1:
            cells &= k - k1 <= q - q1
        if kind & 2:
            cells &= k - k0 >= q - q0
        picture[q0:q1, k0:k1] |= cells
    return picture
