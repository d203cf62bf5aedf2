"""Mask functions for FlashAttention 4, written in its language (CuTe DSL). Imported only where flash-attn-4 is bound.

A mask function gets the head, query and key of one score as values of one element and says whether it stays. The
compiler reads the source of these functions, so their names for modules are global.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import cutlass
from cutlass import cute
from flash_attn.cute import utils


@cache
def interval_mask(num_intervals: int) -> Callable[..., Any]:
    """Key k stays for query q where lo[i][q] <= k < hi[i][q] for some i; aux_tensors: lo[0], hi[0], lo[1], ..."""

    @cute.jit
    def one_interval(batch, head, m_idx, n_idx, seqlen_info, aux_tensors):  # type: ignore[no-untyped-def]
        lo = utils.scalar_to_ssa(aux_tensors[0][m_idx[0]], cutlass.Int32)
        hi = utils.scalar_to_ssa(aux_tensors[1][m_idx[0]], cutlass.Int32)
        return (n_idx >= lo) & (n_idx < hi)

    @cute.jit
    def some_interval(batch, head, m_idx, n_idx, seqlen_info, aux_tensors):  # type: ignore[no-untyped-def]
        lo = utils.scalar_to_ssa(aux_tensors[0][m_idx[0]], cutlass.Int32)
        hi = utils.scalar_to_ssa(aux_tensors[1][m_idx[0]], cutlass.Int32)
        stays = (n_idx >= lo) & (n_idx < hi)
        for place in cutlass.range_constexpr(1, num_intervals):
            lo = utils.scalar_to_ssa(aux_tensors[2 * place][m_idx[0]], cutlass.Int32)
            hi = utils.scalar_to_ssa(aux_tensors[2 * place + 1][m_idx[0]], cutlass.Int32)
            stays = stays | ((n_idx >= lo) & (n_idx < hi))
        return stays

    made: Callable[..., Any] = one_interval if num_intervals == 1 else some_interval
    return made


@cache
def band_mask(lower: int | None, upper: int | None) -> Callable[..., Any]:
    """Key k stays for query q where q + lower <= k <= q + upper; None is no bound."""

    @cute.jit
    def from_lower(batch, head, m_idx, n_idx, seqlen_info, aux_tensors):  # type: ignore[no-untyped-def]
        return n_idx >= m_idx + utils.scalar_to_ssa(lower, cutlass.Int32)

    @cute.jit
    def to_upper(batch, head, m_idx, n_idx, seqlen_info, aux_tensors):  # type: ignore[no-untyped-def]
        return n_idx <= m_idx + utils.scalar_to_ssa(upper, cutlass.Int32)

    @cute.jit
    def between(batch, head, m_idx, n_idx, seqlen_info, aux_tensors):  # type: ignore[no-untyped-def]
        first = m_idx + utils.scalar_to_ssa(lower, cutlass.Int32)
        last = m_idx + utils.scalar_to_ssa(upper, cutlass.Int32)
        return (n_idx >= first) & (n_idx <= last)

    assert lower is not None or upper is not None
    made: Callable[..., Any] = to_upper if lower is None else from_lower if upper is None else between
    base: Any = getattr(made, "__wrapped__", made)
    base.__cute_hash__ = _hash(base, (lower, upper))
    return made


def _hash(function: Callable[..., Any], bounds: tuple[int | None, int | None]) -> str:
    """By which hash_callable of flash_attn.cute.utils knows a mask's compiled kernel.

    Its own joins the bounds without a sign between them: -10 and 10 as -101 and 0.
    """
    return hashlib.sha256(f"{inspect.getsource(function)}{bounds}".encode()).hexdigest()
