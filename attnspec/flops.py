"""FLOPs of attention from the exact mask area. Pure; Python integers, since long sequences pass int64."""

from __future__ import annotations

from attnspec.errors import InputError
from attnspec.shape import PASSES, Pass


def attention_flops(area: int, batch: int, num_heads_q: int, head_dim: int, pass_: Pass) -> int:
    """FLOPs of one pass over a mask of `area` allowed cells.

    fwd = 4 area batch num_heads_q head_dim: two matrix products of 2 FLOPs per cell and element. bwd = 2.5 fwd: five
    products, one of them recomputed. fwd_bwd = 3.5 fwd. Query heads count, also where several share a key head.
    Raises InputError for a negative area, sizes below 1, anything that is not an integer, or an unknown pass. Source:
    Dao 2023 (FlashAttention-2), section 4.1, with the exact area in place of its halving for causal masks.

    >>> attention_flops(36, batch=1, num_heads_q=1, head_dim=64, pass_="fwd")
    9216
    >>> attention_flops(36, batch=1, num_heads_q=1, head_dim=64, pass_="bwd")
    23040
    """
    for name, value, least in (
        ("area", area, 0),
        ("batch", batch, 1),
        ("num_heads_q", num_heads_q, 1),
        ("head_dim", head_dim, 1),
    ):
        if type(value) is not int or value < least:
            raise InputError(f"{name} is {value!r}; allowed: an integer of {least} or more")
    if pass_ not in PASSES:
        raise InputError(f"pass is {pass_!r}; allowed: {', '.join(PASSES)}")
    halves = {"fwd": 2, "bwd": 5, "fwd_bwd": 7}[pass_]
    return 2 * area * batch * num_heads_q * head_dim * halves
