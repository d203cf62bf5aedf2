"""The algebra of slices against the dense picture, which `dense` paints cell by cell from the definition."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from attnspec.errors import InputError
from attnspec.slices import (
    AttnSlices,
    area,
    check,
    clip,
    column_counts,
    dense,
    edges,
    from_arrow,
    grid_counts,
    merge,
    row_counts,
    row_intervals,
    take,
    to_arrow,
)
from attnspec.slices import grid as grid_module
from attnspec.slices.bands import cut
from attnspec.slices.checks import _band_overlap
from attnspec.slices.overlap import common_cell

QUICK = settings(deadline=None, max_examples=50)
MOST_PIECES = {0: 1, 1: 2, 2: 2, 3: 3}


@st.composite
def tables(draw, max_slices=4, seqlen=12):
    """Any slices, also empty and overlapping ones."""
    seqlen_q, seqlen_k = draw(st.integers(1, seqlen)), draw(st.integers(1, seqlen))
    rows = []
    for _ in range(draw(st.integers(0, max_slices))):
        q = sorted(draw(st.tuples(st.integers(0, seqlen_q), st.integers(0, seqlen_q))))
        k = sorted(draw(st.tuples(st.integers(0, seqlen_k), st.integers(0, seqlen_k))))
        rows.append((*q, *k, draw(st.integers(0, 3))))
    return AttnSlices.from_rows(rows, seqlen_q=seqlen_q, seqlen_k=seqlen_k)


def single(slices, number):
    return AttnSlices(
        ranges=slices.ranges[number : number + 1],
        types=slices.types[number : number + 1],
        seqlen_q=slices.seqlen_q,
        seqlen_k=slices.seqlen_k,
    )


def counted(slices):
    """How many slices allow each cell."""
    total = np.zeros((slices.seqlen_q, slices.seqlen_k), dtype=int)
    for number in range(len(slices)):
        total += dense(single(slices, number))
    return total


@st.composite
def masks(draw):
    """Disjoint slices: of any table, those that keep it disjoint; often several that touch."""
    table = draw(tables(max_slices=6))
    held, rows = np.zeros((table.seqlen_q, table.seqlen_k), dtype=bool), []
    for number, row in enumerate(table.rows()):
        cells = dense(single(table, number))
        if not (held & cells).any():
            held |= cells
            rows.append(row)
    return AttnSlices.from_rows(rows, seqlen_q=table.seqlen_q, seqlen_k=table.seqlen_k)


@QUICK
@given(tables())
def test_dense_is_the_definition_cell_by_cell(slices):
    for number, (q0, q1, k0, k1, kind) in enumerate(slices.rows()):
        picture = dense(single(slices, number))
        for q in range(slices.seqlen_q):
            for k in range(slices.seqlen_k):
                inside = q0 <= q < q1 and k0 <= k < k1
                bottom_right = kind not in (1, 3) or k - k1 <= q - q1
                top_left = kind not in (2, 3) or k - k0 >= q - q0
                assert picture[q, k] == (inside and bottom_right and top_left)


@QUICK
@given(tables())
def test_area_and_counts_are_those_of_the_picture(slices):
    cells = counted(slices)
    assert area(slices) == cells.sum()
    assert row_counts(slices).tolist() == cells.sum(axis=1).tolist()
    assert column_counts(slices).tolist() == cells.sum(axis=0).tolist()


@QUICK
@given(tables())
def test_edges_hold_every_allowed_cell(slices):
    made = edges(slices)
    for place, number in enumerate(made.index):
        picture = dense(single(slices, number))
        rows = np.arange(made.q_start[place], made.q_end[place])
        which = np.full(len(rows), place)
        lo, hi = made.lo_at(which, rows), made.hi_at(which, rows)
        assert (lo < hi).all()
        for row, start, end in zip(rows, lo, hi, strict=True):
            assert np.flatnonzero(picture[row]).tolist() == list(range(start, end))
        assert picture.sum() == (hi - lo).sum()
    empty = np.setdiff1d(np.arange(len(slices)), made.index)
    assert not any(dense(single(slices, number)).any() for number in empty)


@pytest.mark.parametrize("find", [lambda made: _band_overlap(made, cut(made)), common_cell], ids=["bands", "sweep"])
@QUICK
@given(slices=tables())
def test_overlap_is_found_exactly(find, slices):
    made = edges(slices)
    found = find(made)
    assert (found is not None) == (counted(slices) > 1).any()
    if found is not None:
        one, other, q, k = found
        assert one != other
        assert all(dense(single(slices, int(made.index[item])))[q, k] for item in (one, other))


@QUICK
@given(tables(max_slices=3, seqlen=7))
def test_check_refuses_exactly_overlapping_tables(slices):
    if (counted(slices) > 1).any():
        with pytest.raises(InputError, match=r"slices \d+ \[.*\] and \d+ \[.*\] overlap: both allow q=\d+, k=\d+$"):
            check(slices)
    else:
        check(slices)


@QUICK
@given(tables(), st.data())
def test_clip_is_the_part_of_the_picture_in_the_rectangle(slices, data):
    q_start, q_end = sorted(data.draw(st.tuples(*[st.integers(-2, slices.seqlen_q + 2)] * 2)))
    k_start, k_end = sorted(data.draw(st.tuples(*[st.integers(-2, slices.seqlen_k + 2)] * 2)))
    inside = np.zeros((slices.seqlen_q, slices.seqlen_k), dtype=int)
    inside[max(q_start, 0) : max(q_end, 0), max(k_start, 0) : max(k_end, 0)] = 1
    want = counted(slices) * inside
    made = clip(slices, q_start, q_end, k_start, k_end)
    assert np.array_equal(counted(made), want)
    assert (made.ranges[:, [1, 3]] > made.ranges[:, [0, 2]]).all()
    for number, row in enumerate(slices.rows()):
        assert len(clip(single(slices, number), q_start, q_end, k_start, k_end)) <= MOST_PIECES[row[4]]
    moved = clip(slices, q_start, q_end, k_start, k_end, shift=True)
    assert (moved.seqlen_q, moved.seqlen_k) == (q_end - q_start, k_end - k_start)
    around = np.pad(want, 4)[q_start + 4 : q_end + 4, k_start + 4 : k_end + 4]
    assert np.array_equal(counted(moved), around)


@QUICK
@given(tables())
def test_clipping_to_everything_keeps_slices_as_they_are_but_for_empty_cells(slices):
    made = clip(slices, 0, slices.seqlen_q, 0, slices.seqlen_k)
    kept = [slices.rows()[number] for number in edges(slices).index]
    assert len(made) == len(kept)
    assert [row[4] for row in made.rows()] == [row[4] for row in kept]


@st.composite
def held_pieces(draw, seqlen):
    """Some disjoint pieces of a sequence in any order, with or without padding between, and how many places there are."""
    cuts = sorted(draw(st.sets(st.integers(0, seqlen), min_size=1)))
    spans = [span for span in pairwise(cuts) if draw(st.booleans())]
    place, rows = 0, []
    for start, end in draw(st.permutations(spans)):
        place += draw(st.sampled_from([0, 0, 0, 2]))
        rows.append((start, end, place))
        place += end - start
    return np.array(rows, dtype=np.int64).reshape(-1, 3), place + draw(st.integers(0, 1))


@QUICK
@given(tables(), st.data())
def test_take_is_the_picture_between_the_pieces(slices, data):
    q_pieces, num_queries = data.draw(held_pieces(slices.seqlen_q))
    k_pieces, num_keys = data.draw(held_pieces(slices.seqlen_k))
    cells = counted(slices)
    want = np.zeros((num_queries, num_keys), dtype=int)
    for q_start, q_end, q_place in q_pieces:
        for k_start, k_end, k_place in k_pieces:
            part = cells[q_start:q_end, k_start:k_end]
            want[q_place : q_place + q_end - q_start, k_place : k_place + k_end - k_start] = part
    made = take(slices, q_pieces, k_pieces, seqlen_q=num_queries, seqlen_k=num_keys)
    assert np.array_equal(counted(made), want)


@QUICK
@given(tables())
def test_merge_changes_no_cell_and_leaves_nothing_to_merge(slices):
    made = merge(slices)
    assert np.array_equal(counted(made), counted(slices))
    assert len(made) <= len(slices)
    assert merge(made).rows() == made.rows()


@QUICK
@given(tables(max_slices=1), st.data())
def test_merge_puts_a_cut_slice_together_again(slices, data):
    whole = clip(slices, 0, slices.seqlen_q, 0, slices.seqlen_k)
    assume(len(whole))
    row = data.draw(st.integers(0, slices.seqlen_q))
    upper, lower = clip(whole, 0, row, 0, slices.seqlen_k), clip(whole, row, slices.seqlen_q, 0, slices.seqlen_k)
    both = AttnSlices.from_rows(lower.rows() + upper.rows(), seqlen_q=slices.seqlen_q, seqlen_k=slices.seqlen_k)
    assert merge(both).rows() == whole.rows()


@QUICK
@given(masks(), st.data())
def test_row_intervals_are_maximal_and_hold_exactly_the_allowed_keys(slices, data):
    picture = dense(slices)
    made = row_intervals(slices)
    assert made.lo.shape == made.hi.shape == (made.num_intervals, slices.seqlen_q)
    for row in range(slices.seqlen_q):
        steps = np.flatnonzero(np.diff(np.concatenate([[0], picture[row].astype(int), [0]])))
        runs = list(zip(steps[0::2].tolist(), steps[1::2].tolist(), strict=True))
        padded = runs + [(0, 0)] * (made.num_intervals - len(runs))
        assert list(zip(made.lo[:, row].tolist(), made.hi[:, row].tolist(), strict=True)) == padded
    assert made.counts.tolist() == row_counts(slices).tolist()
    rows = np.array(data.draw(st.lists(st.integers(0, slices.seqlen_q - 1), max_size=5)), dtype=np.int64)
    some = row_intervals(slices, rows)
    assert some.lo.tolist() == made.lo[: some.num_intervals, rows].tolist()
    assert some.hi.tolist() == made.hi[: some.num_intervals, rows].tolist()
    assert made.counts[rows].tolist() == some.counts.tolist()


@QUICK
@given(tables(), st.data())
def test_grid_counts_are_sums_over_blocks(slices, data):
    q_bounds = np.array(sorted(data.draw(st.lists(st.integers(0, slices.seqlen_q), min_size=1, max_size=5))))
    k_bounds = np.array(sorted(data.draw(st.lists(st.integers(0, slices.seqlen_k), min_size=1, max_size=5))))
    cells = counted(slices)
    want = [[cells[q0:q1, k0:k1].sum() for k0, k1 in pairwise(k_bounds)] for q0, q1 in pairwise(q_bounds)]
    made = grid_counts(slices, q_bounds, k_bounds)
    assert made.shape == (len(q_bounds) - 1, len(k_bounds) - 1)
    assert made.ravel().tolist() == np.ravel(want).tolist()


@QUICK
@given(slices=tables(), chunk=st.integers(1, 5))
def test_grid_counts_do_not_depend_on_how_much_is_done_at_once(slices, chunk):
    q_bounds, k_bounds = np.arange(slices.seqlen_q + 1), np.arange(slices.seqlen_k + 1)
    kept = grid_module._CHUNK
    grid_module._CHUNK = chunk
    try:
        made = grid_counts(slices, q_bounds, k_bounds)
    finally:
        grid_module._CHUNK = kept
    assert np.array_equal(made, counted(slices))


@QUICK
@given(st.lists(tables(), min_size=1, max_size=4))
def test_arrow_gives_back_the_packs(packs):
    seqlen_q, seqlen_k = max(pack.seqlen_q for pack in packs), max(pack.seqlen_k for pack in packs)
    packs = [AttnSlices.from_rows(pack.rows(), seqlen_q=seqlen_q, seqlen_k=seqlen_k) for pack in packs]
    held = from_arrow(to_arrow(packs))
    assert [pack.rows() for pack in held] == [pack.rows() for pack in packs]
    assert {(pack.seqlen_q, pack.seqlen_k) for pack in held} == {(seqlen_q, seqlen_k)}
    assert all(pack.ranges.dtype == np.int64 and pack.types.dtype == np.int8 for pack in held)
