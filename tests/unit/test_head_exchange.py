"""Copies of the all-to-all: whole words where rows are made of them, any other memory as it is."""

import pytest
import torch

from attnspec.exchange.head_exchange import copy_rows


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(("width", "first"), [(8, 0), (8, 4), (8, 1), (6, 0), (1, 0)])
def test_rows_of_any_width_and_place_are_copied(dtype, width, first):
    held = torch.arange(3 * 5 * 16, dtype=dtype).view(3, 5, 16)
    source = held[:, 1:4, first : first + width]
    target = torch.zeros(3, 3, 4, width, dtype=dtype)
    copy_rows(source, target[:, :, 2])
    assert torch.equal(target[:, :, 2], source)
    assert target.count_nonzero() == source.count_nonzero()


def test_columns_are_copied():
    source, target = torch.rand(4, 4).bfloat16().t(), torch.zeros(4, 4, dtype=torch.bfloat16)
    copy_rows(source, target)
    assert torch.equal(target, source)


def test_rows_of_whole_words_are_copied_as_such(monkeypatch):
    types = []
    copy_ = torch.Tensor.copy_
    monkeypatch.setattr(torch.Tensor, "copy_", lambda one, other: types.append(one.dtype) or copy_(one, other))
    copy_rows(torch.rand(2, 3, 8).bfloat16()[:, 1], torch.zeros(2, 8, dtype=torch.bfloat16))
    copy_rows(torch.rand(2, 3, 6).bfloat16()[:, 1], torch.zeros(2, 6, dtype=torch.bfloat16))
    assert types == [torch.int64, torch.bfloat16]
