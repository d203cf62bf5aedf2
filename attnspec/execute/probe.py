"""The mask probe: one forward whose exact output is known for every row, without S x S.

With q and k in two halves of head_dim (`attnspec.execute.backward_probe`) all scores are 0, so a row's output is the
mean of V over its allowed keys and its lse the logarithm of their number. V holds codes of +-1: some dimensions spell
the key's position in binary, the rest are random, so that one key too many or too few shows in some dimension. Expected
values are differences of prefix sums over a row's key intervals.
Blind to scale and accumulation; the oracle's rows are for those.

Where partial results over parts of the keys are rounded and merged, a part's mean can be as large as 1 where the whole
row's is small (a position bit is the same for long runs of keys), and its rounding hides a key. There each element is
held to that rounding only, and the random dimensions of a head together to theirs: a part's mean of n codes is about
1 / sqrt(n), so the root mean square of the errors stays under the 1 / n of one key too many up to 38,000 keys a row
(lse shows that up to 80,000), and under that of one key in the place of another up to 79,000.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attnspec.execute.findings import Finding, where
from attnspec.shape import Shape
from attnspec.slices import RowIntervals
from attnspec.slices.edges import IntArray

POSITION_BITS = 16
RELATIVE, PER_KEY = 2.0**-7, 0.1
"""|out - expected| <= RELATIVE |expected| + PER_KEY / n for a row of n keys: rounding, against one key of n."""
MERGED_RMS, MERGED_PER_KEY = 3e-3, 0.25
"""Merged parts: root mean square of |out - expected| times sqrt(n). Values spread over a binade and rounded to 8 bits
twice, in the part and in the sum, give 0.42 / 256 sqrt(2) = 2.3e-3; the rest is for the spread of the codes' sums."""
LSE_ABSOLUTE, LSE_RELATIVE = 4e-6, 6 * 2.0**-23
CHUNK_VALUES = {"cpu": 2**21, "cuda": 2**26}


@dataclass(slots=True, kw_only=True)
class Codes:
    """The probe of one workload: V's codes (S keys, G heads, D), int8, and each row's key intervals on the device.

    spelt: how many dimensions, the first ones, spell positions. signs_T: +-1 per row, for the backward.
    """

    codes_SGD: Tensor
    spelt: int
    lo_IT: Tensor
    hi_IT: Tensor
    counts_T: Tensor
    signs_T: Tensor
    rows: IntArray


def make_codes(shape: Shape, seqlen_k: int, intervals: RowIntervals, *, seed: int, device: torch.device) -> Codes:
    """Codes for all keys, and what the query rows in `intervals` see of them."""
    generator = torch.Generator(device=device).manual_seed(seed % 2**63)
    size = (seqlen_k, shape.num_heads_kv, shape.head_dim)
    codes_SGD = 2 * torch.randint(2, size, generator=generator, dtype=torch.int8, device=device) - 1
    bits = min(POSITION_BITS, shape.head_dim // 2)
    position_S1 = torch.arange(seqlen_k, device=device)[:, None]
    spelt = 1 - 2 * (position_S1 >> torch.arange(bits, device=device) & 1)
    codes_SGD[:, :, :bits] = spelt[:, None].to(torch.int8)
    return Codes(
        codes_SGD=codes_SGD,
        spelt=bits,
        lo_IT=torch.from_numpy(intervals.lo).to(device),
        hi_IT=torch.from_numpy(intervals.hi).to(device),
        counts_T=torch.from_numpy(intervals.counts).to(device),
        signs_T=torch.from_numpy(signs(intervals.rows)).to(device),
        rows=intervals.rows,
    )


def signs(rows: IntArray) -> IntArray:
    """+-1 of each row, as if drawn by chance: a bit of its number as SplitMix64 mixes it (Steele et al. 2014).

    >>> signs(np.arange(12)).tolist()
    [1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1]
    """
    mixed = rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ mixed >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return 1 - 2 * ((mixed ^ mixed >> np.uint64(31)) & np.uint64(1)).astype(np.int64)


def check_probe(
    codes: Codes, out_BTND: Tensor, lse_BNT: Tensor | None, *, lse_tolerance: float = 0.0, partials: int = 1
) -> Finding:
    """Compare a probe's results with what the mask demands; rows without keys must be exactly 0 (lse -inf).

    partials: into how many parts the keys of a row may be split and merged.
    """
    worst = Finding(error=0.0, bound=1.0)
    for head_kv, rows, expected_PD in _expected(codes):
        group = out_BTND.shape[2] // codes.codes_SGD.shape[1]
        heads = slice(head_kv * group, (head_kv + 1) * group)
        error_BPMD = (out_BTND[:, rows, heads].to(torch.float32) - expected_PD[:, None]).abs()
        count_P = codes.counts_T[rows].to(torch.float32)
        if partials == 1:
            ratio_BPMD = _over(error_BPMD, _rounded_once(expected_PD, count_P)[:, None])
        else:
            ratio_BPMD = _merged_ratio(error_BPMD, count_P, codes.spelt)
        found = Finding.worst_of(ratio_BPMD, bound=1.0)
        if found.index is not None and found.exceeds(worst):
            batch, row, head, dim = found.index
            row += rows.start
            worst = found.with_reason(
                "mask_probe",
                f"mask probe: {where(codes.rows[row], heads.start + head)}, dimension {dim}: got "
                f"{float(out_BTND[batch, row, heads.start + head, dim]):.6g}, expected "
                f"{float(expected_PD[row - rows.start, dim]):.6g} over {int(codes.counts_T[row])} keys; "
                "the kernel sees other keys than the mask allows",
            )
    if worst.failed or lse_BNT is None:
        return worst
    return worst.or_worse(_check_lse(codes, lse_BNT, lse_tolerance))


def _over(error: Tensor, tolerance: Tensor) -> Tensor:
    """error / tolerance, 0 where there is no error and none is allowed."""
    return torch.where(error == 0, 0.0, error / tolerance)


def _rounded_once(expected_PD: Tensor, count_P: Tensor) -> Tensor:
    """The tolerance of each element of a row that is rounded once."""
    tolerance_PD = RELATIVE * expected_PD.abs() + PER_KEY / count_P[:, None].clamp_min(1.0)
    return torch.where(count_P[:, None] > 0, tolerance_PD, 0.0)


def _merged_ratio(error_BPMD: Tensor, count_P: Tensor, spelt: int) -> Tensor:
    """How far rows of merged parts are off, by element and by the random dimensions of a head together."""
    some_P, count_P1 = count_P > 0, count_P[:, None].clamp_min(1.0)
    each_P1 = torch.where(some_P[:, None], RELATIVE + PER_KEY / count_P1, 0.0)
    random_BPMD = error_BPMD[..., spelt:]
    num_random = random_BPMD.shape[-1]
    # A mean of squares of so many errors strays by 1 / sqrt(2 of them); six times that is for none to be accused.
    unit_P1 = MERGED_RMS * (1.25 + 6 / (2 * num_random) ** 0.5) / count_P1.sqrt()
    together_P1 = torch.where(some_P[:, None], (unit_P1.square() + (MERGED_PER_KEY / count_P1).square()).sqrt(), 0.0)
    rms_BPM1 = random_BPMD.square().mean(dim=-1, keepdim=True).sqrt()
    by_head_BPM1 = _over(rms_BPM1, together_P1[:, None])
    # In the place of the largest error, which a message names.
    largest_BPMD = error_BPMD == error_BPMD.amax(dim=-1, keepdim=True)
    return torch.maximum(_over(error_BPMD, each_P1[:, None]), torch.where(largest_BPMD, by_head_BPM1, 0.0))


def _expected(codes: Codes) -> Iterator[tuple[int, slice, Tensor]]:
    """Per key/value head and chunk of rows: expected output (rows, D) in float32."""
    num_keys, num_heads, width = codes.codes_SGD.shape
    num_rows = len(codes.counts_T)
    chunk = max(1, CHUNK_VALUES[codes.codes_SGD.device.type] // width)
    for head in range(num_heads):
        prefix_SD = torch.zeros((num_keys + 1, width), dtype=torch.int32, device=codes.codes_SGD.device)
        torch.cumsum(codes.codes_SGD[:, head], dim=0, dtype=torch.int32, out=prefix_SD[1:])
        for start in range(0, num_rows, chunk):
            rows = slice(start, min(start + chunk, num_rows))
            total_PD = torch.zeros((rows.stop - start, width), dtype=torch.int32, device=prefix_SD.device)
            for lo_T, hi_T in zip(codes.lo_IT, codes.hi_IT, strict=True):
                total_PD += prefix_SD[hi_T[rows]] - prefix_SD[lo_T[rows]]
            count_P1 = codes.counts_T[rows, None].to(torch.float32)
            yield head, rows, total_PD.to(torch.float32) / count_P1.clamp_min(1.0)


def _check_lse(codes: Codes, lse_BNT: Tensor, lse_tolerance: float) -> Finding:
    expected_T = codes.counts_T.to(torch.float64).log()
    error_BNT = (lse_BNT.to(torch.float64) - expected_T).abs()
    error_BNT = torch.where(lse_BNT == expected_T, 0.0, error_BNT)  # -inf on rows without keys
    tolerance_T = lse_tolerance + LSE_ABSOLUTE + LSE_RELATIVE * expected_T.abs().nan_to_num(posinf=0.0)
    found = Finding.worst_of(error_BNT / tolerance_T, bound=1.0)
    if found.index is None:
        return found
    _, head, row = found.index
    return found.with_reason(
        "lse",
        f"lse of the mask probe: {where(codes.rows[row], head)}: got {float(lse_BNT[found.index]):.8g}, expected "
        f"log {int(codes.counts_T[row])} = {float(expected_T[row]):.8g}",
    )


def code_values(codes: Codes, like_BSGD: Tensor, rows: IntArray | None) -> Tensor:
    """The probe's V in the dtype and shape of a rank's own v; rows: its positions, None for all."""
    held = codes.codes_SGD if rows is None else codes.codes_SGD[torch.from_numpy(rows).to(like_BSGD.device)]
    return held.to(like_BSGD.dtype).expand_as(like_BSGD).contiguous()
