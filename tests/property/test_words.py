"""Copies by words are the copies that torch makes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnspec.exchange import words

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int32)


@given(
    shape=st.lists(st.integers(0, 5), min_size=0, max_size=3),
    width=st.integers(0, 17),
    dtypes=st.tuples(st.sampled_from(DTYPES), st.sampled_from(DTYPES))
    | st.sampled_from(DTYPES).map(lambda one: (one, one)),
    order=st.permutations(range(3)),
    start=st.integers(0, 9),
    step=st.integers(1, 2),
)
def test_any_layout_is_copied_as_torch_does(shape, width, dtypes, order, start, step):
    shape = [*shape, width]
    source = torch.arange(start + torch.Size(shape).numel() * step)[start::step].to(dtypes[0]).reshape(shape)
    whole = torch.zeros([size + 2 for size in shape], dtype=dtypes[1])
    axes = [axis for axis in order if axis < len(shape) - 1]
    target = whole[tuple(slice(start % 3, start % 3 + size) for size in shape)].permute(*axes, len(shape) - 1)
    source = source.permute(*axes, len(shape) - 1)
    words.copy(target, source)
    assert torch.equal(target, source.to(dtypes[1]))
    target.zero_()
    assert not whole.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_not_a_number_keeps_its_bits(dtype):
    source = torch.full((2, 4, 8), float("nan"), dtype=dtype).transpose(0, 1)
    target = torch.zeros(4, 2, 8, dtype=dtype)
    words.copy(target, source)
    assert target.isnan().all()
