"""Copies of the all-to-all: whole words where rows are made of them, any other memory as it is."""

import pytest
import torch

from attnspec.exchange.head_exchange import words


@pytest.mark.parametrize(
    ("dtype", "width", "first", "seen"),
    [
        (torch.bfloat16, 8, 0, torch.int64),
        (torch.bfloat16, 8, 4, torch.int64),
        (torch.bfloat16, 8, 1, torch.bfloat16),
        (torch.bfloat16, 6, 0, torch.bfloat16),
        (torch.float32, 6, 2, torch.int64),
        (torch.float32, 1, 0, torch.float32),
        (torch.float64, 8, 0, torch.float64),
    ],
)
def test_rows_of_whole_words_are_seen_as_such(dtype, width, first, seen):
    held = torch.arange(3 * 5 * 16, dtype=dtype).view(3, 5, 16)
    part = held[:, 1:4, first : first + width]
    found = words(part)
    assert found.dtype == seen
    assert torch.equal(found.view(dtype), part)
    assert found.data_ptr() == part.data_ptr()


def test_columns_are_no_rows():
    assert words(torch.rand(4, 4).bfloat16().t()).dtype == torch.bfloat16
