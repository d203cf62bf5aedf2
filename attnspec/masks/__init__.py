"""Masks, one file each: parameters and documents in, AttnSlices out. Pure.

A mask module has a dataclass `Params`, `USES_DOCUMENTS`, and `slices(params, docs, seqlen_q, seqlen_k)`. Its slices
are disjoint and few, and all its work is vectorised over documents.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnspec.errors import InputError
from attnspec.slices import AttnSlices, check
from attnspec.slices.documents import document_lengths


def seqlen_k_of(params: Any, seqlen_q: int) -> int:
    """The number of keys: the parameter `seqlen_k` where a mask has one and it is given, else seqlen_q."""
    given = getattr(params, "seqlen_k", None)
    return seqlen_q if given is None else int(given)


def make_slices(mask: ModuleType, params: Any, docs: ArrayLike, seqlen_q: int) -> AttnSlices:
    """A mask's slices for one pack of documents. The one entry that planner, worker and command line use.

    docs: integer lengths that sum to seqlen_q; a mask that uses no documents takes exactly one. Raises InputError.

    >>> from attnspec.masks import varlen_causal
    >>> [tuple(map(int, row)) for row in make_slices(varlen_causal, varlen_causal.Params(), [3, 4], 7).rows()]
    [(0, 3, 0, 3, 1), (3, 7, 3, 7, 1)]
    """
    if seqlen_q < 1:
        raise InputError(f"seqlen is {seqlen_q}; allowed: 1 or more")
    lengths = document_lengths(docs, seqlen_q)
    if not mask.USES_DOCUMENTS and np.count_nonzero(lengths) > 1:
        raise InputError(f"this mask knows no documents; got {len(lengths)}, allowed: one of {seqlen_q} tokens")
    seqlen_k = seqlen_k_of(params, seqlen_q)
    if mask.__name__.startswith(f"{__name__}."):
        made: AttnSlices = mask.slices(params, lengths, seqlen_q, seqlen_k)
        return made
    return _from_outside(mask, params, lengths, seqlen_q, seqlen_k)


def _from_outside(mask: ModuleType, params: Any, docs: NDArray[np.int64], seqlen_q: int, seqlen_k: int) -> AttnSlices:
    """The slices of a mask that nobody tested here, checked."""
    where = f"mask plug-in {mask.__file__}"
    try:
        made = mask.slices(params, docs, seqlen_q, seqlen_k)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{where} failed: {type(error).__name__}: {error}") from error
    if not isinstance(made, AttnSlices):
        raise InputError(f"{where}: slices() returned {type(made).__name__}; allowed: AttnSlices")
    if (made.seqlen_q, made.seqlen_k) != (seqlen_q, seqlen_k):
        got = f"{made.seqlen_q} x {made.seqlen_k}"
        raise InputError(f"{where}: slices() returned a mask of {got}; asked: {seqlen_q} x {seqlen_k}")
    try:
        check(made)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    return made
