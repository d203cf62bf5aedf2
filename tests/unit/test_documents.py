"""Document lengths and cu_seqlens: what is taken, and what is refused with which text."""

import numpy as np
import pytest

from attnspec.errors import InputError
from attnspec.slices.documents import document_bounds, document_lengths, lengths_from_cu_seqlens, paired_lengths


@pytest.mark.parametrize(
    ("cu_seqlens", "seqlen", "max_seqlen", "message"),
    [
        ([0, 144, 432, 944], 946, None, "cu_seqlens ends at 944, but there are 946 rows"),
        ([1, 4, 8], 8, None, "cu_seqlens starts at 1; allowed: 0"),
        ([0, 4, 3, 8], 8, None, "cu_seqlens descends from 4 to 3 at entry 2"),
        ([0, 4, 8], 9, None, "cu_seqlens ends at 8, but there are 9 rows"),
        ([0, 4, 8], 7, None, "cu_seqlens ends at 8, but there are 7 rows"),
        ([0, 8], 8, 7, "cu_seqlens: document 0 has 8 rows, more than max_seqlen 7"),
        ([0], 8, None, "cu_seqlens has 1 entries; allowed: at least 2, 0 and the end of each document"),
        ([], 8, None, "cu_seqlens has 0 entries; allowed: at least 2, 0 and the end of each document"),
        ([0.0, 4.5], 8, None, "cu_seqlens must be one list of integers, got float64 of shape (2,)"),
        ([0.0, 8.0], 8, None, "cu_seqlens must be one list of integers, got float64 of shape (2,)"),
        ([0, 2**63 - 1, -5, 8], 8, None, f"cu_seqlens descends from {2**63 - 1} to -5 at entry 2"),
        ([0, True], 1, None, "cu_seqlens must be one list of integers, got booleans among them"),
        ([np.False_, 8], 8, None, "cu_seqlens must be one list of integers, got booleans among them"),
        ([False, True], 1, None, "cu_seqlens must be one list of integers, got bool of shape (2,)"),
        ([[0, 8]], 8, None, "cu_seqlens must be one list of integers, got int64 of shape (1, 2)"),
        (["0", "8"], 8, None, "cu_seqlens must be one list of integers, got <U1 of shape (2,)"),
        ([[0], [1, 2]], 8, None, "cu_seqlens must be one list of integers, got lists of several lengths"),
    ],
)
def test_malformed_cu_seqlens_are_refused(cu_seqlens, seqlen, max_seqlen, message):
    with pytest.raises(InputError) as caught:
        lengths_from_cu_seqlens(cu_seqlens, seqlen, max_seqlen=max_seqlen)
    assert str(caught.value) == message


def test_cu_seqlens_of_any_integer_type_are_taken():
    for kind in (np.int32, np.int64, np.uint8):
        lengths = lengths_from_cu_seqlens(np.array([0, 3, 3, 7], dtype=kind), 7, max_seqlen=4)
        assert lengths.tolist() == [3, 0, 4]
        assert lengths.dtype == np.int64


def test_queries_and_keys_have_the_same_documents():
    lengths = paired_lengths([0, 4, 8], [0, 2, 9], 8, 9)
    assert [part.tolist() for part in lengths] == [[4, 4], [2, 7]]
    with pytest.raises(InputError, match="^cu_seqlens_q has 2 documents, cu_seqlens_k 1$"):
        paired_lengths([0, 4, 8], [0, 8], 8, 8)
    with pytest.raises(InputError, match="^cu_seqlens_k starts at 1; allowed: 0$"):
        paired_lengths([0, 8], [1, 8], 8, 8)


@pytest.mark.parametrize(
    ("docs", "message"),
    [
        ([4, -1, 5], "document 1 has length -1; allowed: 0 or more"),
        ([4, 5], "document lengths sum to 9, but seqlen is 8"),
        ([], "document lengths sum to 0, but seqlen is 8"),
        ([7, True], "document lengths must be one list of integers, got booleans among them"),
        ([4.0, 4.0], "document lengths must be one list of integers, got float64 of shape (2,)"),
        (8, "document lengths must be one list of integers, got int64 of shape ()"),
        ([2**63], f"document lengths hold {2**63}, more than int64 holds"),
        ([2**70], "document lengths must be one list of integers, got object of shape (1,)"),
        ([2**62, 2**62, 8 - 2**63], f"document 2 has length {8 - 2**63}; allowed: 0 or more"),
        # A sum in int64 would wrap to 8.
        ([2**62] * 4 + [8], f"document lengths sum to {2**64 + 8}, but seqlen is 8"),
    ],
)
def test_bad_documents_are_refused(docs, message):
    with pytest.raises(InputError) as caught:
        document_lengths(docs, 8)
    assert str(caught.value) == message


def test_bounds_keep_documents_without_tokens():
    starts, ends = document_bounds([3, 0, 4], 7)
    assert (starts.tolist(), ends.tolist()) == ([0, 3, 3], [3, 3, 7])
