"""Gradients of gathered keys, put together from calls over some of them."""

import pytest
import torch

from attnspec.exchange.gathering import summed


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    "keys", [[(0, 12)], [(0, 12), (0, 12)], [(0, 12), (3, 7)], [(0, 12), (0, 5), (4, 12)], [(2, 9), (0, 4)], []]
)
def test_parts_over_some_keys_add_up(keys, dtype):
    torch.manual_seed(0)
    like = torch.zeros(2, 2, 12, 3, 4, dtype=torch.bfloat16)
    parts = []
    expected = torch.zeros(2, 2, 12, 3, 4, dtype=torch.float64)
    for start, stop in keys:
        grads = torch.randint(-8, 8, (2, 2, stop - start, 3, 4)).to(torch.bfloat16)
        expected[:, :, start:stop] += grads
        parts.append((slice(start, stop), *grads))
    total = summed(iter(parts), like, dtype)
    assert total.dtype == dtype
    assert torch.equal(total.double(), expected)


def test_two_parts_are_not_kept_where_sums_are_wider_than_they():
    """Each part is added before the next is made."""
    like, alive = torch.zeros(2, 1, 4, 1, 2, dtype=torch.bfloat16), []

    def parts():
        for _ in range(3):
            made = torch.ones_like(like)
            alive.append(made)
            yield slice(0, 4), *made
            assert torch.equal(seen["total"][0], torch.full_like(seen["total"][0], float(len(alive))))

    seen = {}
    empty_like = torch.empty_like

    def watched(*args, **kwargs):
        seen["total"] = empty_like(*args, **kwargs)
        return seen["total"]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty_like", watched)
        summed(parts(), like, torch.float32)
    assert len(alive) == 3
