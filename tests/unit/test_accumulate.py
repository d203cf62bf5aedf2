"""Sums of gradients over the slots of a tensor."""

from itertools import permutations

import pytest
import torch

from attnspec.exchange.accumulate import Sum

SLOTS = 6


def part(rows, dtype=torch.bfloat16):
    return torch.full((1, rows.stop - rows.start, 2, 4), 1.0 + rows.start, dtype=dtype)


def expected(chosen):
    total = torch.zeros(1, SLOTS, 2, 4)
    for rows in chosen:
        total[:, rows] += part(rows, torch.float32)
    return total


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("number", range(4))
def test_parts_add_up_in_any_order(number, many):
    for chosen in permutations((slice(0, SLOTS), slice(3, SLOTS), slice(0, SLOTS - 1)), number):
        held = Sum(part(slice(0, SLOTS)), many=many)
        for rows in chosen:
            held.add(part(rows), rows, whole=rows == slice(0, SLOTS))
        made = held.result()
        assert made.dtype == torch.bfloat16
        assert torch.equal(made.float(), expected(chosen))


def test_the_part_that_covers_all_slots_is_the_sum_whether_it_comes_first_or_second():
    for chosen in permutations((slice(0, SLOTS), slice(3, SLOTS))):
        parts = {rows.start: part(rows) for rows in chosen}
        held = Sum(parts[0], many=False)
        for rows in chosen:
            held.add(parts[rows.start], rows, whole=rows.start == 0)
        assert held.result().data_ptr() == parts[0].data_ptr()
