"""Merging two partial attention results over disjoint keys by their log-sum-exp. Needs torch; Triton on CUDA.

With lse = log(exp(lse_a) + exp(lse_b)): out = exp(lse_a - lse) out_a + exp(lse_b - lse) out_b (Dao et al. 2022,
section 3.1; Milakov and Gimelshein 2018). A partial without keys has lse -inf (older FlashAttention versions write
+inf) and weight 0, whatever its out holds.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_ROWS_PER_PROGRAM = 16


def merge_partials(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> None:
    """Merge b into a, in place, in float32 (float64 for float64), with one rounding to the type of out_a.

    out_a, out_b: (B, T, N, D), last axis contiguous. lse_a, lse_b: (B, T, N), any strides, natural log. Rows that
    neither partial has keys for get out 0 and lse -inf. On CUDA one fused kernel that reads and writes each element
    once, and those of rows without keys in b not at all.
    """
    assert out_a.shape == out_b.shape and lse_a.shape == lse_b.shape == out_a.shape[:3], (out_a.shape, lse_a.shape)
    if out_a.is_cuda:
        _merge_on_cuda(out_a, lse_a, out_b, lse_b)
    else:
        _merge_plainly(out_a, lse_a, out_b, lse_b)


def _merge_plainly(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> None:
    import torch

    wide = torch.float64 if out_a.dtype == torch.float64 else torch.float32
    kept_a, kept_b = (lse.masked_fill(lse == torch.inf, -torch.inf).to(wide) for lse in (lse_a, lse_b))
    top = torch.maximum(kept_a, kept_b)
    base = top.masked_fill(top == -torch.inf, 0)
    weight_a, weight_b = torch.exp(kept_a - base), torch.exp(kept_b - base)
    total = weight_a + weight_b
    part_a, part_b = (
        torch.where((weight > 0)[..., None], out.to(wide) * (weight / total)[..., None], 0)
        for weight, out in ((weight_a, out_a), (weight_b, out_b))
    )
    out_a.copy_(part_a + part_b)
    lse_a.copy_(base + torch.log(total))


def _merge_on_cuda(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> None:
    import triton

    batch, num_rows, num_heads, head_dim = out_a.shape
    num_items = batch * num_rows * num_heads
    grid = (triton.cdiv(num_items, _ROWS_PER_PROGRAM),)
    _kernel()[grid](
        out_a,
        lse_a,
        out_b,
        lse_b,
        num_items,
        num_rows,
        num_heads,
        head_dim,
        *out_a.stride()[:3],
        *lse_a.stride(),
        *out_b.stride()[:3],
        *lse_b.stride(),
        ITEMS=_ROWS_PER_PROGRAM,
        WIDTH=triton.next_power_of_2(head_dim),
    )


@cache
def _kernel() -> Any:
    """The fused kernel; Triton comes with torch for CUDA and is imported only there."""
    import triton
    import triton.language as tl

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def merge_partials_kernel(  # type: ignore[no-untyped-def]
        out_a,
        lse_a,
        out_b,
        lse_b,
        num_items,
        num_rows,
        num_heads,
        head_dim,
        out_a_batch,
        out_a_row,
        out_a_head,
        lse_a_batch,
        lse_a_row,
        lse_a_head,
        out_b_batch,
        out_b_row,
        out_b_head,
        lse_b_batch,
        lse_b_row,
        lse_b_head,
        ITEMS: tl.constexpr,
        WIDTH: tl.constexpr,
    ):
        item = tl.program_id(0) * ITEMS + tl.arange(0, ITEMS)
        here = item < num_items
        head = item % num_heads
        row = (item // num_heads % num_rows).to(tl.int64)
        batch = (item // num_heads // num_rows).to(tl.int64)
        at_a = lse_a + batch * lse_a_batch + row * lse_a_row + head * lse_a_head
        at_b = lse_b + batch * lse_b_batch + row * lse_b_row + head * lse_b_head
        minus_inf = float("-inf")
        kept_a = tl.load(at_a, mask=here, other=minus_inf)
        kept_b = tl.load(at_b, mask=here, other=minus_inf)
        kept_a = tl.where(kept_a == float("inf"), minus_inf, kept_a)
        kept_b = tl.where(kept_b == float("inf"), minus_inf, kept_b)
        top = tl.maximum(kept_a, kept_b)
        base = tl.where(top == minus_inf, 0.0, top)
        weight_a = tl.exp(kept_a - base)
        weight_b = tl.exp(kept_b - base)
        total = weight_a + weight_b
        share = tl.where(total > 0, 1.0 / total, 0.0)
        weight_a = weight_a * share
        weight_b = weight_b * share
        dim = tl.arange(0, WIDTH)
        # Rows for which b has no keys stay as they are: in a ring half of them, and moving memory is all this costs.
        touched = (weight_b > 0) | (total == 0)
        inside = (here & touched)[:, None] & (dim < head_dim)[None, :]
        to_a = out_a + (batch * out_a_batch + row * out_a_row + head * out_a_head)[:, None] + dim[None, :]
        to_b = out_b + (batch * out_b_batch + row * out_b_row + head * out_b_head)[:, None] + dim[None, :]
        part_a = tl.load(to_a, mask=inside & (weight_a > 0)[:, None], other=0.0).to(tl.float32)
        part_b = tl.load(to_b, mask=inside & (weight_b > 0)[:, None], other=0.0).to(tl.float32)
        merged = part_a * weight_a[:, None] + part_b * weight_b[:, None]
        # Several warps load the same few items, and the results replace what they load: all must have loaded first.
        tl.debug_barrier()
        tl.store(at_a, tl.where(total > 0, base + tl.log(total), minus_inf), mask=here)
        tl.store(to_a, merged.to(out_a.dtype.element_ty), mask=inside)

    return merge_partials_kernel
