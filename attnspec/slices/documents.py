"""Documents of a pack as lengths or cu_seqlens, and what is refused about them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from attnspec.errors import InputError
from attnspec.slices.edges import IntArray


def document_lengths(docs: ArrayLike, seqlen: int) -> IntArray:
    """Document lengths as int64, zero lengths allowed. Raises InputError unless they are integers that sum to seqlen.

    >>> document_lengths([3, 0, 4], 7).tolist()
    [3, 0, 4]
    """
    lengths = _integers(docs, "document lengths")
    if len(lengths) and int(lengths.min()) < 0:
        place = int(np.argmin(lengths >= 0))
        raise InputError(f"document {place} has length {int(lengths[place])}; allowed: 0 or more")
    total = sum(lengths.tolist())
    if total != seqlen:
        raise InputError(f"document lengths sum to {total}, but seqlen is {seqlen}")
    return lengths


def document_bounds(docs: ArrayLike, seqlen: int) -> tuple[IntArray, IntArray]:
    """Starts and ends of all documents, int64, zero-length ones included; checked like `document_lengths`.

    >>> [bounds.tolist() for bounds in document_bounds([3, 4], 7)]
    [[0, 3], [3, 7]]
    """
    lengths = document_lengths(docs, seqlen)
    ends = np.cumsum(lengths, dtype=np.int64)
    return ends - lengths, ends


def lengths_from_cu_seqlens(
    cu_seqlens: ArrayLike, seqlen: int, *, max_seqlen: int | None = None, name: str = "cu_seqlens"
) -> IntArray:
    """Document lengths from cumulative lengths [0, ..., seqlen], as varlen kernels take them.

    Raises InputError when they do not start at 0, descend, do not end at seqlen, hold no document, are not integers,
    or when a document is longer than max_seqlen.

    >>> lengths_from_cu_seqlens([0, 3, 7], 7).tolist()
    [3, 4]
    """
    bounds = _integers(cu_seqlens, name)
    if len(bounds) < 2:
        raise InputError(f"{name} has {len(bounds)} entries; allowed: at least 2, 0 and the end of each document")
    if bounds[0] != 0:
        raise InputError(f"{name} starts at {int(bounds[0])}; allowed: 0")
    descends = bounds[1:] < bounds[:-1]  # not by their differences, which int64 may not hold
    if descends.any():
        place = int(np.argmax(descends))
        raise InputError(f"{name} descends from {int(bounds[place])} to {int(bounds[place + 1])} at entry {place + 1}")
    if bounds[-1] != seqlen:
        raise InputError(f"{name} ends at {int(bounds[-1])}, but there are {seqlen} rows")
    lengths = np.diff(bounds)
    if max_seqlen is not None and int(lengths.max()) > max_seqlen:
        place = int(np.argmax(lengths))
        raise InputError(f"{name}: document {place} has {int(lengths[place])} rows, more than max_seqlen {max_seqlen}")
    return lengths


def paired_lengths(
    cu_seqlens_q: ArrayLike, cu_seqlens_k: ArrayLike, seqlen_q: int, seqlen_k: int
) -> tuple[IntArray, IntArray]:
    """Query and key lengths of the same documents. Raises InputError also when the two differ in documents."""
    lengths_q = lengths_from_cu_seqlens(cu_seqlens_q, seqlen_q, name="cu_seqlens_q")
    lengths_k = lengths_from_cu_seqlens(cu_seqlens_k, seqlen_k, name="cu_seqlens_k")
    if len(lengths_q) != len(lengths_k):
        raise InputError(f"cu_seqlens_q has {len(lengths_q)} documents, cu_seqlens_k {len(lengths_k)}")
    return lengths_q, lengths_k


def check_square(seqlen_q: int, seqlen_k: int) -> None:
    """Raise InputError when a mask over one sequence is asked for a rectangle."""
    if seqlen_q != seqlen_k:
        raise InputError(f"this mask is over one sequence: seqlen_k {seqlen_k} must equal seqlen {seqlen_q}")


def _integers(values: ArrayLike | Sequence[int], name: str) -> IntArray:
    try:
        held = np.asarray(values)
    except ValueError:
        raise InputError(f"{name} must be one list of integers, got lists of several lengths") from None
    if held.size == 0:
        return np.zeros(0, dtype=np.int64)
    if held.ndim != 1 or held.dtype.kind not in "iu":
        raise InputError(f"{name} must be one list of integers, got {held.dtype} of shape {held.shape}")
    # numpy makes a 1 of a True among integers.
    if isinstance(values, Sequence) and any(isinstance(one, bool | np.bool_) for one in values):
        raise InputError(f"{name} must be one list of integers, got booleans among them")
    if held.dtype == np.uint64 and int(held.max()) > np.iinfo(np.int64).max:
        raise InputError(f"{name} hold {int(held.max())}, more than int64 holds")
    return held.astype(np.int64)
