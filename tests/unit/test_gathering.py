"""Gradients of gathered keys, put together from calls over some of them."""

import pytest
import torch

from attnspec.exchange.gathering import _sum_into


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    "keys", [[(0, 12)], [(0, 12), (0, 12)], [(0, 12), (3, 7)], [(0, 12), (0, 5), (4, 12)], [(2, 9), (0, 4)], []]
)
def test_parts_over_some_keys_add_up(keys, dtype):
    torch.manual_seed(0)
    target = torch.zeros(2, 2, 12, 3, 4, dtype=dtype)[1]
    parts = [(slice(*one), torch.randint(-8, 8, (2, one[1] - one[0], 3, 4)).to(torch.bfloat16)) for one in keys]
    expected = torch.zeros(2, 12, 3, 4, dtype=torch.float64)
    for where, part in parts:
        expected[:, where] += part
    _sum_into(target, parts)
    assert torch.equal(target.double(), expected)
