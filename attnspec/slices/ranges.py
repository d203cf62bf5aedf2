"""Slices from separate lists of query ranges, key ranges and types, as flex-flash-attention takes them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnspec.errors import InputError, nearest
from attnspec.slices.checks import check
from attnspec.slices.table import AttnSlices, SliceType

TYPES = {kind.name.lower(): kind for kind in SliceType}


def parse_type(name: object) -> SliceType:
    """A slice type by its name. Raises InputError with the nearest name.

    >>> parse_type("inv_causal").value
    2
    """
    if not isinstance(name, str) or name not in TYPES:
        raise InputError(f"type is {name!r}{nearest(str(name), TYPES)}; allowed: {', '.join(TYPES)}")
    return TYPES[name]


def from_ranges(
    q_ranges: Sequence[Sequence[int]],
    k_ranges: Sequence[Sequence[int]],
    types: Sequence[str],
    *,
    seqlen_q: int,
    seqlen_k: int,
) -> AttnSlices:
    """A checked mask from lists of equal length. Raises InputError for anything that is not a mask.

    >>> made = from_ranges([[0, 3], [3, 6]], [[0, 3], [1, 6]], ["causal", "bi_causal"], seqlen_q=6, seqlen_k=6)
    >>> [tuple(map(int, row)) for row in made.rows()]
    [(0, 3, 0, 3, 1), (3, 6, 1, 6, 3)]
    """
    if not len(q_ranges) == len(k_ranges) == len(types):
        raise InputError(
            f"{len(q_ranges)} q_ranges, {len(k_ranges)} k_ranges and {len(types)} types; allowed: equally many"
        )
    rows: list[tuple[int, int, int, int, SliceType]] = []
    for number, (q_range, k_range, kind) in enumerate(zip(q_ranges, k_ranges, types, strict=True)):
        bounds = (*q_range, *k_range)
        if len(q_range) != 2 or len(k_range) != 2 or not all(_is_integer(bound) for bound in bounds):
            raise InputError(f"slice {number} is {list(q_range)} x {list(k_range)}; allowed: [start, end] of integers")
        if max(abs(int(bound)) for bound in bounds) >= 2**63:
            raise InputError(f"slice {number} is {list(q_range)} x {list(k_range)}, more than int64 holds")
        try:
            q_start, q_end, k_start, k_end = map(int, bounds)
            rows.append((q_start, q_end, k_start, k_end, parse_type(kind)))
        except InputError as error:
            raise InputError(f"slice {number}: {error}") from None
    made = AttnSlices.from_rows(rows, seqlen_q=seqlen_q, seqlen_k=seqlen_k)
    check(made)
    return made


def _is_integer(bound: object) -> bool:
    return isinstance(bound, int | np.integer) and not isinstance(bound, bool)
