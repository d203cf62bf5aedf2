"""Block masks, intervals, bands and rectangles expand back to exactly the dense picture of the slices."""

import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mask_examples import NAMES, cut_in_four, example, one_slice

from attnspec.lower.block_mask import block_mask, num_table_entries
from attnspec.lower.dense import dense_mask, rectangle
from attnspec.lower.intervals import band, interval_mask
from attnspec.slices import area, dense

QUICK = settings(deadline=None, max_examples=60)
DOCUMENTS = st.lists(st.one_of(st.integers(0, 12), st.just(1)), min_size=1, max_size=7).filter(any)
BLOCKS = st.sampled_from([1, 2, 3, 4, 5, 8, 16])


@st.composite
def masks(draw):
    return example(draw(st.sampled_from(NAMES)), draw(DOCUMENTS))


ANY = st.one_of(masks(), one_slice())


def expanded(lists, num_columns):
    """Block lists as a dense picture; asserts that each row ascends."""
    picture = np.zeros((len(lists.num), num_columns), dtype=bool)
    for row, num in enumerate(lists.num):
        held = lists.indices[row, :num]
        assert (np.diff(held) > 0).all()
        assert not lists.indices[row, num:].any()
        picture[row, held] = True
    return picture


def block_counts(slices, block_q, block_k):
    """Allowed cells of every block, by painting."""
    rows, columns = -(-slices.seqlen_q // block_q), -(-slices.seqlen_k // block_k)
    padded = np.zeros((rows * block_q, columns * block_k), dtype=np.int64)
    padded[: slices.seqlen_q, : slices.seqlen_k] = dense(slices)
    return padded.reshape(rows, block_q, columns, block_k).sum(axis=(1, 3))


@QUICK
@given(ANY, BLOCKS, BLOCKS)
def test_block_mask_is_exact_on_both_sides(slices, block_q, block_k):
    made = block_mask(slices, block_q, block_k)
    counts = block_counts(slices, block_q, block_k)
    full = counts == block_q * block_k
    partial = (counts > 0) & ~full
    for lists, wanted in (
        (made.kv, partial),
        (made.full_kv, full),
        (made.q, partial.T),
        (made.full_q, full.T),
    ):
        np.testing.assert_array_equal(expanded(lists, wanted.shape[1]), wanted)
    held = sum(lists.indices.size for lists in (made.kv, made.full_kv, made.q, made.full_q))
    assert num_table_entries(slices, block_q, block_k) >= held


@QUICK
@given(ANY)
def test_interval_mask_is_exact(slices):
    made = interval_mask(slices)
    keys = np.arange(slices.seqlen_k)
    picture = np.zeros((slices.seqlen_q, slices.seqlen_k), dtype=bool)
    for lo, hi in zip(made.lo, made.hi, strict=True):
        assert lo.dtype == hi.dtype == np.int32
        picture |= (keys >= lo[:, None]) & (keys < hi[:, None])
    np.testing.assert_array_equal(picture, dense(slices))
    empty = dense_mask(slices).empty_rows
    wanted = ~picture.any(axis=1)
    np.testing.assert_array_equal(wanted if empty is None else empty, wanted)


@QUICK
@given(ANY)
def test_a_band_is_exact(slices):
    made = band(slices)
    if made is None:
        return
    q, k = np.arange(slices.seqlen_q)[:, None], np.arange(slices.seqlen_k)[None, :]
    picture = np.ones((slices.seqlen_q, slices.seqlen_k), dtype=bool)
    picture &= k >= (0 if made.k_start is None else made.k_start)
    picture &= k < (slices.seqlen_k if made.k_end is None else made.k_end)
    if made.lower is not None:
        picture &= k - q >= made.lower
    if made.upper is not None:
        picture &= k - q <= made.upper
    np.testing.assert_array_equal(picture, dense(slices))


@QUICK
@given(ANY)
def test_a_rectangle_is_exact_and_has_no_empty_row(slices):
    made = rectangle(slices)
    if made is None:
        return
    picture = np.zeros((slices.seqlen_q, slices.seqlen_k), dtype=bool)
    q = np.arange(made.q_start, made.q_end)[:, None]
    k = np.arange(made.k_start, made.k_end)[None, :]
    cells = (k - made.k_end <= q - made.q_end) if made.causal else np.ones((len(q), k.shape[1]), dtype=bool)
    picture[made.q_start : made.q_end, made.k_start : made.k_end] = cells
    np.testing.assert_array_equal(picture, dense(slices))
    assert cells.any(axis=1).all()


@QUICK
@given(ANY, st.data())
def test_slices_that_were_cut_in_rows_and_keys_are_the_same_band_and_rectangle(slices, data):
    row, key = (data.draw(st.integers(0, length)) for length in (slices.seqlen_q, slices.seqlen_k))
    cut = cut_in_four(slices, row, key)
    assert rectangle(cut) == rectangle(slices)
    whole = band(slices)
    if whole is None or whole.lower is None or whole.lower != whole.upper:  # rows that share no key are not joined
        assert band(cut) == whole


@pytest.mark.parametrize("name", ["full", "causal", "sliding_window", "sliding_window_causal"])
def test_masks_that_are_one_band(name):
    assert band(example(name, [40])) is not None


def test_the_block_mask_of_256k_tokens_takes_memory_by_blocks():
    seqlen = 256 * 1024
    docs = [65536, 1, 0, 40000, 60000, seqlen - 165537]
    slices = example("varlen_block_causal", docs, block=2048)
    tracemalloc.start()
    started = time.process_time()
    made = block_mask(slices, 128, 128)
    seconds = time.process_time() - started
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # A dense picture of the blocks alone has 2048 x 2048 entries on each side; of the cells, 64 GiB.
    assert made.num_bytes < 24 * 2**20
    assert peak < 100 * 2**20
    assert seconds < 3
    num_blocks = int(made.kv.num.sum() + made.full_kv.num.sum())
    assert num_blocks == int(made.q.num.sum() + made.full_q.num.sum())
    assert 128**2 * int(made.full_kv.num.sum()) <= area(slices) <= 128**2 * num_blocks


@pytest.mark.slow
def test_the_block_mask_of_a_million_causal_tokens():
    seqlen = 2**20
    slices = example("causal", [seqlen])
    made = block_mask(slices, 128, 128)
    blocks = seqlen // 128
    assert int(made.full_kv.num.sum()) == blocks * (blocks - 1) // 2
    assert made.kv.num.tolist() == [1] * blocks
    assert made.num_bytes < 600 * 2**20
