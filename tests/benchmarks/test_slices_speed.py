"""How long slices and masks take: a million slices, 64M tokens, a million tokens in 641 documents."""

import numpy as np
import pytest

from attnspec import plugins
from attnspec.masks import make_slices
from attnspec.slices import AttnSlices, area, check, clip, grid_counts, row_intervals, take

pytestmark = pytest.mark.slow


def documents(count, seqlen):
    """`count` uneven lengths that sum to seqlen; the same each time."""
    cuts = np.unique(np.random.default_rng(0).integers(1, seqlen, size=2 * count))
    kept = np.sort(np.random.default_rng(1).permutation(cuts)[: count - 1])
    return np.diff(np.concatenate([[0], kept, [seqlen]]))


@pytest.fixture(scope="module")
def million():
    """A million causal slices over 64M tokens."""
    seqlen = 64 * 2**20
    module = plugins.load("masks", "varlen_causal")
    return make_slices(module, module.Params(), documents(10**6, seqlen), seqlen)


def test_area_of_a_million_slices_of_all_types(benchmark, million):
    types = np.arange(len(million), dtype=np.int64) % 4
    mixed = AttnSlices(
        ranges=million.ranges, types=types.astype(np.int8), seqlen_q=million.seqlen_q, seqlen_k=million.seqlen_k
    )
    assert benchmark(area, mixed) > 0


def test_check_of_a_million_slices(benchmark, million):
    benchmark.pedantic(check, args=(million,), rounds=3)


def test_clip_of_a_million_slices(benchmark, million):
    made = benchmark.pedantic(clip, args=(million, 0, 2**25, 2**20, 2**26), rounds=3)
    assert len(made) > 0


def test_a_picture_of_a_million_slices(benchmark, million):
    bounds = np.linspace(0, million.seqlen_q, 513).astype(np.int64)
    made = benchmark.pedantic(grid_counts, args=(million, bounds, bounds), rounds=3)
    assert int(made.sum()) == area(million)


@pytest.mark.parametrize("name", ["varlen_causal", "varlen_block_causal", "share_question"])
def test_slices_of_a_million_tokens_in_641_documents(benchmark, name):
    module = plugins.load("masks", name)
    params = module.Params(block=2048) if name == "varlen_block_causal" else module.Params()
    assert len(benchmark(make_slices, module, params, documents(641, 2**20), 2**20)) >= 641


def test_row_intervals_of_a_million_tokens(benchmark):
    module = plugins.load("masks", "varlen_block_causal")
    made = make_slices(module, module.Params(block=16), documents(641, 2**20), 2**20)
    assert benchmark.pedantic(row_intervals, args=(made,), rounds=3).num_intervals == 1


def test_what_one_of_64_ranks_holds_of_a_million_tokens(benchmark):
    """Zigzag per document: each rank holds two pieces of every document."""
    lengths = documents(641, 2**20)
    module = plugins.load("masks", "varlen_causal")
    made = make_slices(module, module.Params(), lengths, 2**20)
    starts = np.cumsum(lengths) - lengths
    part, rank = -(-lengths // 128), 5
    fronts, backs = starts + np.minimum(rank * part, lengths), starts + np.minimum((127 - rank) * part, lengths)
    ends = starts + lengths
    pieces = np.concatenate([np.stack([begin, np.minimum(begin + part, ends)], axis=1) for begin in (fronts, backs)])
    sizes = pieces[:, 1] - pieces[:, 0]
    placed = np.column_stack([pieces, np.cumsum(sizes) - sizes])
    held = int(sizes.sum())
    benchmark(take, made, placed, placed, seqlen_q=held, seqlen_k=held)
