"""What is refused about slices, with the texts that users read; and sizes where integers could wrap."""

import numpy as np
import pyarrow as pa
import pytest

from attnspec.errors import InputError
from attnspec.slices import (
    AttnSlices,
    SliceType,
    area,
    check,
    clip,
    dense,
    from_arrow,
    from_ranges,
    merge,
    read_areas,
    row_counts,
    row_intervals,
    take,
    to_arrow,
)
from attnspec.slices import checks as checks_module
from attnspec.slices import intervals as intervals_module

FULL, CAUSAL, INV_CAUSAL, BI_CAUSAL = SliceType


def table(*rows, seqlen_q=8, seqlen_k=8):
    return AttnSlices.from_rows(rows, seqlen_q=seqlen_q, seqlen_k=seqlen_k)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [(0, 4, 0, 4, FULL), (0, 4, 2, 6, FULL)],
            "slices 0 [0, 4, 0, 4, full] and 1 [0, 4, 2, 6, full] overlap: both allow q=0, k=2",
        ),
        (
            [(0, 4, 0, 4, FULL), (0, 4, 0, 4, CAUSAL)],
            "slices 0 [0, 4, 0, 4, full] and 1 [0, 4, 0, 4, causal] overlap: both allow q=0, k=0",
        ),
        (
            [(0, 4, 0, 4, CAUSAL), (0, 4, 4, 6, FULL), (0, 4, 0, 4, INV_CAUSAL)],
            "slices 0 [0, 4, 0, 4, causal] and 2 [0, 4, 0, 4, inv_causal] overlap: both allow q=0, k=0",
        ),
        # The two triangles are apart on their first rows and meet as one grows towards the other.
        (
            [(0, 8, 0, 8, CAUSAL), (0, 8, 4, 8, FULL)],
            "slices 0 [0, 8, 0, 8, causal] and 1 [0, 8, 4, 8, full] overlap: both allow q=4, k=4",
        ),
        (
            [(0, 9, 0, 8, FULL)],
            "slice 0 [0, 9, 0, 8, full] is not inside the sequence; allowed: 0 <= q_start <= q_end <= 8 (seqlen_q)",
        ),
        (
            [(0, 2, 0, 2, FULL), (5, 3, 0, 8, FULL)],
            "slice 1 [5, 3, 0, 8, full] is not inside the sequence; allowed: 0 <= q_start <= q_end <= 8 (seqlen_q)",
        ),
        (
            [(-1, 4, 0, 8, FULL)],
            "slice 0 [-1, 4, 0, 8, full] is not inside the sequence; allowed: 0 <= q_start <= q_end <= 8 (seqlen_q)",
        ),
        (
            [(0, 4, 0, 300, CAUSAL)],
            "slice 0 [0, 4, 0, 300, causal] is not inside the sequence; allowed: 0 <= k_start <= k_end <= 8 (seqlen_k)",
        ),
        (
            [(0, 4, 0, 4, 4)],
            "slice 0 has type 4; allowed: 0 (full), 1 (causal), 2 (inv_causal), 3 (bi_causal)",
        ),
        ([(0, 4, 0, 4, -1)], "slice 0 has type -1; allowed: 0 (full), 1 (causal), 2 (inv_causal), 3 (bi_causal)"),
    ],
)
def test_refused(rows, message):
    with pytest.raises(InputError) as caught:
        check(table(*rows))
    assert str(caught.value) == message


def test_meeting_rectangles_whose_cells_are_disjoint_are_legal():
    """A causal slice beside a full one, and two triangles of one square, leave no cell allowed twice."""
    beside = table((0, 4, 0, 2, FULL), (0, 4, 2, 6, CAUSAL), seqlen_q=4, seqlen_k=6)
    check(beside)
    assert area(beside) == 18
    assert np.array_equal(dense(beside), dense(table((0, 4, 0, 6, CAUSAL), seqlen_q=4, seqlen_k=6)))
    triangles = table((0, 7, 0, 7, CAUSAL), (0, 7, 1, 8, INV_CAUSAL))
    check(triangles)
    assert area(triangles) == 56


def test_empty_slices_and_empty_tables_are_legal():
    for made in (table(), table((3, 3, 0, 8, FULL), (0, 8, 2, 2, CAUSAL), (0, 8, 0, 4, BI_CAUSAL))):
        check(made)
        assert area(made) == 0
        assert not dense(made).any()
        assert row_intervals(made).num_intervals == 0
        assert row_counts(made).tolist() == [0] * 8
        assert len(clip(made, 0, 8, 0, 8)) == 0
    assert len(merge(table((3, 3, 0, 8, FULL)))) == 0


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (
            AttnSlices(ranges=np.zeros((2, 4), dtype=np.int64), types=np.zeros(3, np.int8), seqlen_q=1, seqlen_k=1),
            "ranges have shape (2, 4) for 3 types; allowed: (3, 4)",
        ),
        (
            AttnSlices(ranges=np.zeros((1, 4), dtype=np.int32), types=np.zeros(1, np.int8), seqlen_q=1, seqlen_k=1),
            "ranges are int32; allowed: int64",
        ),
        (AttnSlices.from_rows([], seqlen_q=-1, seqlen_k=1), "seqlen_q is -1; allowed: 0 or more"),
    ],
)
def test_damaged_tables_are_refused(made, message):
    with pytest.raises(InputError) as caught:
        check(made)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        (
            ([[0, 1], [1, 2], [2, 3]], [[0, 1], [1, 2]], ["full"] * 3),
            "3 q_ranges, 2 k_ranges and 3 types; allowed: equally many",
        ),
        (([[0, 1]], [[0, 1]], ["full", "full"]), "1 q_ranges, 1 k_ranges and 2 types; allowed: equally many"),
        (([[0, 1, 2]], [[0, 1]], ["full"]), "slice 0 is [0, 1, 2] x [0, 1]; allowed: [start, end] of integers"),
        (([[0, 1.5]], [[0, 1]], ["full"]), "slice 0 is [0, 1.5] x [0, 1]; allowed: [start, end] of integers"),
        (([[0, True]], [[0, 1]], ["full"]), "slice 0 is [0, True] x [0, 1]; allowed: [start, end] of integers"),
        (([[0, 2**63]], [[0, 1]], ["full"]), f"slice 0 is [0, {2**63}] x [0, 1], more than int64 holds"),
        (
            ([[0, 1]], [[0, 1]], ["causl"]),
            "slice 0: type is 'causl' (did you mean 'causal'?); allowed: full, causal, inv_causal, bi_causal",
        ),
        (
            ([[0, 1]], [[0, 1]], [4]),
            "slice 0: type is 4; allowed: full, causal, inv_causal, bi_causal",
        ),
    ],
)
def test_bad_lists_are_refused(lists, message):
    with pytest.raises(InputError) as caught:
        from_ranges(*lists, seqlen_q=8, seqlen_k=8)
    assert str(caught.value) == message


def test_lists_are_checked_like_tables():
    with pytest.raises(InputError, match="overlap: both allow q=0, k=2$"):
        from_ranges([[0, 4], [0, 4]], [[0, 4], [2, 6]], ["full", "full"], seqlen_q=8, seqlen_k=8)


def test_many_tall_slices_are_swept_and_the_sweep_finds_the_one_overlap(monkeypatch):
    monkeypatch.setattr(checks_module, "_BAND_ITEMS", 0)
    count = 200
    stairs = [(row, row + 150, 3 * row, 3 * row + 3, FULL) for row in range(count)]
    made = table(*stairs, seqlen_q=400, seqlen_k=700)
    check(made)
    made.ranges[120, 2] -= 1
    with pytest.raises(InputError, match=r"slices 119 \[.*\] and 120 \[.*\] overlap: both allow q=120, k=359$"):
        check(made)


def test_areas_beyond_int64_are_refused_and_those_below_are_exact():
    side = 2**32
    one = table((0, side - 1, 0, side - 1, CAUSAL), seqlen_q=side, seqlen_k=side)
    assert area(one) == (side - 1) * side // 2
    whole = table((0, side, 0, side, FULL), seqlen_q=side, seqlen_k=side)
    with pytest.raises(InputError) as caught:
        area(whole)
    assert str(caught.value) == (
        f"the mask allows {2**64} cells, more than int64 holds ({2**63 - 1}); use a smaller seqlen"
    )
    # Two that fit alone and wrap together.
    half = 2**31
    rows = [(0, half, 0, side, FULL), (half, side, 0, side - 1, FULL)]
    with pytest.raises(InputError, match=f"allows {half * side + half * (side - 1)} cells"):
        area(table(*rows, seqlen_q=side, seqlen_k=side))


def test_area_of_a_sequence_of_64m_tokens():
    seqlen = 64 * 2**20
    assert area(table((0, seqlen, 0, seqlen, CAUSAL), seqlen_q=seqlen, seqlen_k=seqlen)) == 2251799847239680


@pytest.mark.parametrize(
    ("rectangle", "want"),
    [
        (((0, 4), (0, 6)), {FULL: 24, CAUSAL: 18, INV_CAUSAL: 18, BI_CAUSAL: 12}),
        (((0, 6), (0, 4)), {FULL: 24, CAUSAL: 10, INV_CAUSAL: 10, BI_CAUSAL: 0}),
        (((0, 4), (0, 4)), {FULL: 16, CAUSAL: 10, INV_CAUSAL: 10, BI_CAUSAL: 4}),
    ],
)
def test_corners_of_the_types(rectangle, want):
    for kind, cells in want.items():
        made = table((*rectangle[0], *rectangle[1], kind))
        assert area(made) == dense(made).sum() == cells


def test_dense_pictures_of_long_sequences_are_refused():
    with pytest.raises(
        InputError, match=r"^a dense picture of 65536 x 65536 cells is too large; at most 2\*\*28 cells$"
    ):
        dense(table(seqlen_q=65536, seqlen_k=65536))


def test_row_intervals_refuse_what_would_not_fit_in_memory(monkeypatch):
    monkeypatch.setattr(intervals_module, "MAX_INTERVALS", 10)
    columns = table(*[(0, 8, key, key + 1, FULL) for key in range(0, 8, 2)])
    with pytest.raises(
        InputError, match="^too many slices side by side: 32 intervals, up to 4 in each of 8 rows; at most"
    ):
        row_intervals(columns)


def test_clip_refuses_a_rectangle_that_ends_before_it_starts():
    with pytest.raises(InputError, match=r"^rectangle \[4, 2\) x \[0, 8\) ends before it starts$"):
        clip(table((0, 8, 0, 8, CAUSAL)), 4, 2, 0, 8)


def test_take_wants_disjoint_pieces():
    pieces = np.array([[0, 4, 0], [3, 8, 4]])
    with pytest.raises(AssertionError, match="pieces overlap"):
        take(table((0, 8, 0, 8, CAUSAL)), pieces, pieces, seqlen_q=9, seqlen_k=9)


def test_arrow_tables_have_the_documented_columns_and_metadata():
    packs = [table((0, 4, 0, 4, CAUSAL)), table(), table((0, 8, 0, 8, FULL), (0, 0, 0, 0, BI_CAUSAL))]
    made = to_arrow(packs)
    assert made.schema.names == ["pack", "q_start", "q_end", "k_start", "k_end", "type"]
    assert [str(field.type) for field in made.schema] == ["int32", "int64", "int64", "int64", "int64", "int8"]
    assert made.schema.metadata == {b"seqlen_q": b"8", b"seqlen_k": b"8", b"areas": b"[10, 0, 64]"}
    assert read_areas(made) == [10, 0, 64]
    assert made["pack"].to_pylist() == [0, 2, 2]


def test_other_arrow_tables_are_refused():
    with pytest.raises(InputError, match=r"^not a table of slices: columns \['pack'\], metadata \[\]$"):
        from_arrow(pa.table({"pack": [1]}))
    with pytest.raises(
        InputError, match=r"^packs of one mask have one \(seqlen_q, seqlen_k\), got \[\(8, 8\), \(9, 8\)\]$"
    ):
        to_arrow([table(), table(seqlen_q=9)])


def test_ranges_may_be_numpy_integers():
    ranges = np.array([[0, 4], [4, 8]])
    made = from_ranges(ranges, ranges.tolist(), ["full", "causal"], seqlen_q=8, seqlen_k=8)
    assert list(made.rows()) == [(0, 4, 0, 4, FULL), (4, 8, 4, 8, CAUSAL)]
