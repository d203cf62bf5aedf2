"""Masks on inputs whose right answers are known from elsewhere; each with the wrong answers seen in the field."""

import numpy as np
import pytest

from attnspec import plugins
from attnspec.errors import InputError
from attnspec.masks import make_slices
from attnspec.slices import AttnSlices, area, clip, dense, row_counts


def mask(name, docs, seqlen=None, **params):
    module = plugins.load("masks", name)
    return make_slices(module, plugins.make_params(module, params), docs, sum(docs) if seqlen is None else seqlen)


def rows(made):
    return [(*row[:4], row[4].name.lower()) for row in made.rows()]


def test_causal_is_aligned_at_the_bottom_right():
    made = mask("causal", [2], seqlen_k=5)
    assert dense(made).astype(int).tolist() == [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    assert area(made) == 9  # 3 where it is aligned at the top left


@pytest.mark.parametrize(("seqlen_q", "seqlen_k", "cells", "num_empty"), [(5, 2, 3, 3), (2048, 1024, 524800, 1024)])
def test_causal_with_fewer_keys_than_queries_has_empty_rows_first(seqlen_q, seqlen_k, cells, num_empty):
    made = mask("causal", [seqlen_q], seqlen_k=seqlen_k)
    assert area(made) == cells
    counts = row_counts(made)
    assert np.flatnonzero(counts == 0).tolist() == list(range(num_empty))


def test_a_window_counts_the_query_s_own_key():
    made = mask("sliding_window_causal", [6], window=3)
    assert row_counts(made).tolist() == [1, 2, 3, 3, 3, 3]
    assert area(made) == 15  # 18 with three keys to the left, 30 without the causal side
    assert rows(made) == [(0, 3, 0, 3, "causal"), (3, 6, 1, 6, "bi_causal")]


@pytest.mark.parametrize(
    ("seqlen", "window", "cells"),
    [(4, 1024, 10), (32768, 1024, 33030656), (2048, 512, 917760), (6, 6, 21), (6, 7, 21)],
)
def test_a_window_ends_with_the_sequence(seqlen, window, cells):
    assert area(mask("sliding_window_causal", [seqlen], window=window)) == cells


@pytest.mark.parametrize("window", [6, 7, 1000])
def test_a_window_as_long_as_the_sequence_is_none(window):
    assert rows(mask("sliding_window_causal", [6], window=window)) == [(0, 6, 0, 6, "causal")]
    assert np.array_equal(dense(mask("sliding_window", [6], window=window)), np.ones((6, 6), dtype=bool))


@pytest.mark.parametrize(
    ("seqlen_q", "seqlen_k", "cells"),
    [
        (4, 6, {"full": 24, "causal": 18, "inv_causal": 18, "bi_causal": 12}),
        (6, 4, {"full": 24, "causal": 10, "inv_causal": 10, "bi_causal": 0}),
        (4, 4, {"full": 16, "causal": 10, "inv_causal": 10, "bi_causal": 4}),
    ],
)
def test_corners_of_the_four_types(seqlen_q, seqlen_k, cells):
    for kind, count in cells.items():
        made = mask("slices", [seqlen_q], slices=[[0, seqlen_q, 0, seqlen_k, kind]], seqlen_k=seqlen_k)
        assert area(made) == row_counts(made).sum() == count
    causal, inverse = (
        dense(mask("slices", [seqlen_q], slices=[[0, seqlen_q, 0, seqlen_k, kind]], seqlen_k=seqlen_k))
        for kind in ("causal", "inv_causal")
    )
    assert causal[-1].all() and inverse[0].all()  # bottom right and top left


def test_slices_make_the_same_window():
    made = mask("slices", [6], slices=[[0, 3, 0, 3, "causal"], [3, 6, 1, 6, "bi_causal"]])
    assert area(made) == 15
    assert np.array_equal(dense(made), dense(mask("sliding_window_causal", [6], window=3)))


@pytest.mark.parametrize(
    ("docs", "block", "cells", "counts"),
    [
        ([3, 4], 2, 19, [2, 2, 3, 2, 2, 4, 4]),  # 18 with one grid over all documents, 20 without the document's end
        ([5, 3], 2, 24, [2, 2, 4, 4, 5, 2, 2, 3]),
        ([3, 4], 1, 16, [1, 2, 3, 1, 2, 3, 4]),
        ([3, 4], 8, 25, [3, 3, 3, 4, 4, 4, 4]),
    ],
)
def test_blocks_are_counted_from_each_document(docs, block, cells, counts):
    made = mask("varlen_block_causal", docs, block=block)
    assert area(made) == cells
    assert row_counts(made).tolist() == counts


def test_the_ends_of_block_sizes_are_the_other_varlen_masks():
    assert rows(mask("varlen_block_causal", [3, 4], block=1)) == rows(mask("varlen_causal", [3, 4]))
    assert rows(mask("varlen_block_causal", [3, 4], block=8)) == rows(mask("varlen_full", [3, 4]))


def test_block_causal_rows_in_the_middle_of_a_document():
    made = clip(mask("varlen_block_causal", [200], block=2), 100, 200, 0, 200)
    assert area(made) == 15100


def test_documents_are_not_one_long_sequence():
    assert area(mask("varlen_full", [4, 12])) == 160  # 256 as one sequence, 288 padded to the longest
    assert area(mask("varlen_causal", [4, 12])) == 88  # 136 as one sequence


@pytest.mark.parametrize(
    ("made", "want"),
    [
        (("prefix_lm_causal", [8], {"prefix": 3}), [(0, 3, 0, 3, "full"), (3, 8, 0, 8, "causal")]),
        (("prefix_lm_causal", [8], {"prefix": 1}), [(0, 8, 0, 8, "causal")]),
        (("prefix_lm_causal", [8], {"prefix": 9}), [(0, 8, 0, 8, "full")]),
        (("share_question", [2, 0, 3, 4], {}), [(0, 5, 0, 5, "causal"), (5, 9, 0, 2, "full"), (5, 9, 5, 9, "causal")]),
        (("share_question", [0, 3, 4], {}), [(0, 3, 0, 3, "causal"), (3, 7, 3, 7, "causal")]),
        (("causal_blockwise", [2, 3], {}), [(0, 5, 0, 5, "causal")]),
        (
            ("causal_blockwise", [2, 3, 4], {}),
            [(0, 2, 0, 2, "causal"), (2, 5, 2, 5, "causal"), (5, 9, 0, 9, "causal")],
        ),
        (("sliding_window_causal", [8], {"window": 1}), [(0, 8, 0, 8, "bi_causal")]),
        (
            ("sliding_window", [8], {"window": 3}),
            [(0, 3, 0, 5, "causal"), (3, 5, 1, 7, "bi_causal"), (5, 8, 3, 8, "inv_causal")],
        ),
        (("global_sliding_window", [8], {"window": 2, "global_tokens": 8}), [(0, 8, 0, 8, "full")]),
    ],
)
def test_masks_need_few_slices(made, want):
    name, docs, params = made
    assert rows(mask(name, docs, **params)) == want


@pytest.mark.parametrize(
    ("name", "params", "most"),
    [
        ("varlen_causal", {}, 641),
        ("share_question", {}, 641),
        ("causal_blockwise", {}, 641),
        ("prefix_lm_document", {"prefix": 100}, 1282),
        ("sliding_window_causal", {"window": 1024}, 2),
        ("sliding_window", {"window": 1024}, 3),
        ("global_sliding_window", {"window": 1024, "global_tokens": 64}, 5),
    ],
)
def test_a_million_tokens_need_as_many_slices_as_documents(name, params, most):
    module = plugins.load("masks", name)
    docs = [2**20] if not module.USES_DOCUMENTS else [1636] * 640 + [2**20 - 1636 * 640]
    assert len(mask(name, docs, **params)) <= most


@pytest.mark.parametrize(
    ("docs", "seqlen", "message"),
    [
        ([4, -1, 5], 8, "document 1 has length -1; allowed: 0 or more"),
        ([4, 5], 8, "document lengths sum to 9, but seqlen is 8"),
        ([0], 0, "seqlen is 0; allowed: 1 or more"),
    ],
)
def test_bad_documents_are_refused(docs, seqlen, message):
    with pytest.raises(InputError) as caught:
        mask("varlen_causal", docs, seqlen)
    assert str(caught.value) == message


def test_a_mask_over_one_sequence_takes_one_document():
    with pytest.raises(InputError, match=r"^this mask knows no documents; got 2, allowed: one of 8 tokens$"):
        mask("causal", [4, 4])


@pytest.mark.parametrize("name", [name for name in plugins.names("masks") if name not in ("full", "causal", "slices")])
def test_a_mask_over_one_sequence_is_square(name):
    module = plugins.load("masks", name)
    sizes = dict.fromkeys(module.Params.__dataclass_fields__, 2)
    with pytest.raises(InputError, match="^this mask is over one sequence: seqlen_k 9 must equal seqlen 8$"):
        module.slices(module.Params(**sizes), np.array([8]), 8, 9)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([0, 3, 0, 3], "slice 0 is [0, 3, 0, 3]; allowed: [q_start, q_end, k_start, k_end, type]"),
        ([0, 3, 0, 3, "diagonal"], "slice 0: type is 'diagonal'; allowed: full, causal, inv_causal, bi_causal"),
        (
            [0, 300, 0, 3, "full"],
            "slice 0 [0, 300, 0, 3, full] is not inside the sequence; allowed: 0 <= q_start <= q_end <= 6 (seqlen_q)",
        ),
    ],
)
def test_slices_that_are_no_mask_are_refused(row, message):
    with pytest.raises(InputError) as caught:
        mask("slices", [6], slices=[row])
    assert str(caught.value) == message


def test_given_slices_may_be_rectangular_and_empty():
    made = mask("slices", [6], slices=[[3, 3, 0, 4, "full"]], seqlen_k=4)
    assert (made.seqlen_q, made.seqlen_k, area(made)) == (6, 4, 0)
    assert isinstance(made, AttnSlices)
