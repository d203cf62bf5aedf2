"""Between the tokens that a rank holds, in order, and its slots, some of which are padding. Untimed."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from attnspec.slices.edges import IntArray


class Slots:
    """`slots`: where a rank's tokens lie among its num_slots, in the order of the tokens."""

    def __init__(self, slots: IntArray, num_slots: int, device: str) -> None:
        self.num_slots = num_slots
        self._order: Tensor | None = None
        if len(slots) != num_slots or bool((slots != np.arange(num_slots)).any()):
            self._order = torch.from_numpy(slots).to(device)

    def fill(self, part_BTND: Tensor) -> Tensor:
        """Tokens in their slots, padding zero; as it is where there is none."""
        if self._order is None:
            return part_BTND.contiguous()
        made = part_BTND.new_zeros((part_BTND.shape[0], self.num_slots, *part_BTND.shape[2:]))
        made[:, self._order] = part_BTND
        return made

    def read(self, part: Tensor, dim: int = 1) -> Tensor:
        """The tokens of slots along `dim`, without padding."""
        return part if self._order is None else part.index_select(dim, self._order)
