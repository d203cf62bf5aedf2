"""Copies between strided layouts, eight bytes at a time.

torch copies what is not contiguous element by element, so that two-byte elements move far below the memory's bandwidth
(2.11 to 2.13). Seen as words of eight bytes the same layout has a quarter of the elements.
"""

from __future__ import annotations

import torch
from torch import Tensor

_WORD = torch.int64


def copy(target: Tensor, source: Tensor) -> None:
    """target.copy_(source) for tensors of one shape and element type.

    >>> import torch
    >>> held = torch.zeros(3, 2, 8, dtype=torch.bfloat16)
    >>> copy(held[:, 1], torch.ones(3, 8, dtype=torch.bfloat16))
    >>> held.sum(dim=(0, 2)).tolist()
    [0.0, 24.0]
    """
    if target.dtype == source.dtype and _holds_words(target) and _holds_words(source):
        target, source = target.view(_WORD), source.view(_WORD)
    target.copy_(source)


def _holds_words(tensor: Tensor) -> bool:
    """Whether the innermost axis is contiguous and every run of it is made of whole, aligned words."""
    per_word = _WORD.itemsize // tensor.element_size()
    if not tensor.dim() or tensor.stride(-1) != 1 or per_word < 2:
        return False
    return not any(size % per_word for size in (tensor.shape[-1], tensor.storage_offset(), *tensor.stride()[:-1]))
