"""Which heads each rank of a head group has: equally many query heads, with the key/value heads that they share."""

import math

import pytest

from attnspec.shape import Shape
from attnspec.sharding.heads import flops_per_byte, split_heads
from tests.mask_examples import example


def shape_of(num_heads_q, num_heads_kv):
    return Shape(batch=1, num_heads_q=num_heads_q, num_heads_kv=num_heads_kv, head_dim=64, dtype="bfloat16")


@pytest.mark.parametrize(
    ("heads", "degree", "num_q", "num_kv", "copies"),
    [
        ((40, 8), 8, 5, 1, 1),
        ((40, 8), 40, 1, 1, 5),
        ((12, 12), 4, 3, 3, 1),
        ((12, 3), 3, 4, 1, 1),
        ((12, 3), 12, 1, 1, 4),
        ((64, 8), 4, 16, 2, 1),
        ((8, 1), 8, 1, 1, 8),
        ((8, 8), 1, 8, 8, 1),
    ],
)
def test_every_rank_has_as_many_heads(heads, degree, num_q, num_kv, copies):
    shape = shape_of(*heads)
    split = split_heads(shape, degree, example("causal", [64]))
    of_ranks = [[split.heads_q(rank, stage) for stage in range(split.stages)] for rank in range(degree)]
    assert [sum(map(len, stages)) for stages in of_ranks] == [num_q] * degree
    assert [head for stages in of_ranks for part in stages for head in part] == list(range(heads[0]))
    held = [[head for stage in range(split.stages) for head in split.heads_kv(rank, stage)] for rank in range(degree)]
    assert [len(own) for own in held] == [num_kv] * degree
    assert split.copies == copies
    assert sorted(head for own in held for head in own) == sorted(list(range(heads[1])) * copies)
    for rank in range(degree):
        for stage in range(split.stages):
            wanted = {head // shape.group_size for head in split.heads_q(rank, stage)}
            assert set(split.heads_kv(rank, stage)) == wanted
    local = split.local_shape
    assert (local.num_heads_q * split.stages, local.num_heads_kv * split.stages) == (num_q, num_kv)


def test_a_split_knows_nothing_of_the_one_before():
    before = split_heads(shape_of(12, 3), 3)
    assert [len(split_heads(shape_of(12, 12), 4).heads_q(rank, 0)) for rank in range(4)] == [3, 3, 3, 3]
    assert split_heads(shape_of(12, 3), 3) == before


@pytest.mark.parametrize(
    ("heads", "degree", "stages"),
    [((64, 8), 2, 2), ((64, 8), 4, 2), ((64, 8), 8, 1), ((64, 8), 16, 1), ((24, 6), 2, 3), ((10, 10), 2, 1)],
)
def test_stages_divide_the_key_value_heads_of_a_rank(heads, degree, stages):
    assert split_heads(shape_of(*heads), degree, example("causal", [64])).stages == stages
    assert split_heads(shape_of(*heads), degree).stages == 1


def test_flops_per_byte_are_those_of_a_rank():
    shape, tokens = shape_of(64, 8), 1024
    sent = (tokens // 2) * 64 * 2 * (2 * 32 + 2 * 4)
    assert flops_per_byte(shape, 2, example("full", [tokens])) == 4 * tokens**2 * 32 * 64 / sent
    assert flops_per_byte(shape, 1, example("full", [tokens])) == math.inf


@pytest.mark.parametrize(
    ("mask", "tokens", "stages"), [("full", 2**15, 2), ("full", 2**16, 1), ("causal", 2**16, 2), ("causal", 2**17, 1)]
)
def test_one_stage_where_messages_are_little_beside_computation(mask, tokens, stages):
    assert split_heads(shape_of(64, 8), 2, example(mask, [tokens])).stages == stages
