"""The tensors of a workload: normal values that depend on the workload, the tensor and the token alone.

Values are drawn in blocks of 1,024 tokens, each with its own generator on the device, so that a rank makes only the
rows that it holds and every implementation gets the same values on one class of device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnspec.shape import Shape
from attnspec.stats import seed_of

BLOCK_TOKENS = 1024
TORCH_DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
}


@dataclass(slots=True, kw_only=True)
class Tensors:
    """What every implementation of a workload gets. `dout_BTND` is None where no pass has a backward."""

    q_BTND: Tensor
    k_BSGD: Tensor
    v_BSGD: Tensor
    dout_BTND: Tensor | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        return self.num_bytes_forward + (0 if self.dout_BTND is None else self.dout_BTND.nbytes)

    @property
    def num_bytes_forward(self) -> int:
        """Bytes of what a forward gets."""
        return self.q_BTND.nbytes + self.k_BSGD.nbytes + self.v_BSGD.nbytes


def make(
    workload_id: str,
    name: str,
    *,
    seqlen: int,
    batch: int,
    num_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device,
    rows: NDArray[np.int64] | None = None,
) -> Tensor:
    """One tensor (batch, tokens, num_heads, head_dim) of standard normal values.

    name: `q`, `k`, `v` or `dout`. rows: positions that the caller holds, in its order; None for all of them.
    """
    seed = seed_of(f"{workload_id}:{name}")
    num_rows = seqlen if rows is None else len(rows)
    made = torch.empty((batch, num_rows, num_heads, head_dim), dtype=dtype, device=device)
    generator = torch.Generator(device=device)
    blocks = np.arange(-(-seqlen // BLOCK_TOKENS)) if rows is None else np.unique(rows // BLOCK_TOKENS)
    for block in blocks.tolist():
        start = block * BLOCK_TOKENS
        end = min(start + BLOCK_TOKENS, seqlen)
        generator.manual_seed((seed + block) % 2**63)
        values = torch.empty((batch, end - start, num_heads, head_dim), dtype=torch.float32, device=device)
        values.normal_(generator=generator)
        if rows is None:
            made[:, start:end] = values
        else:
            held = np.flatnonzero((rows >= start) & (rows < end))
            made[:, torch.from_numpy(held).to(device)] = values[:, torch.from_numpy(rows[held] - start).to(device)].to(
                dtype
            )
    return made


def make_tensors(
    workload_id: str,
    shape: Shape,
    *,
    seqlen_q: int,
    seqlen_k: int,
    needs_backward: bool,
    device: torch.device,
    q_rows: NDArray[np.int64] | None = None,
    k_rows: NDArray[np.int64] | None = None,
) -> Tensors:
    """q, k, v and, for a backward, dout of one workload; all its packs share them."""

    def one(name: str, seqlen: int, num_heads: int, rows: NDArray[np.int64] | None) -> Tensor:
        return make(
            workload_id,
            name,
            seqlen=seqlen,
            batch=shape.batch,
            num_heads=num_heads,
            head_dim=shape.head_dim,
            dtype=TORCH_DTYPES[shape.dtype],
            device=device,
            rows=rows,
        )

    return Tensors(
        q_BTND=one("q", seqlen_q, shape.num_heads_q, q_rows),
        k_BSGD=one("k", seqlen_k, shape.num_heads_kv, k_rows),
        v_BSGD=one("v", seqlen_k, shape.num_heads_kv, k_rows),
        dout_BTND=one("dout", seqlen_q, shape.num_heads_q, q_rows) if needs_backward else None,
    )
