"""Document lengths: what is taken, and what is refused with which text."""

import numpy as np
import pytest

from attnspec.errors import InputError
from attnspec.slices.documents import document_bounds, document_lengths


def test_lengths_of_any_integer_type_are_taken():
    for kind in (np.int32, np.int64, np.uint8):
        lengths = document_lengths(np.array([3, 0, 4], dtype=kind), 7)
        assert lengths.tolist() == [3, 0, 4]
        assert lengths.dtype == np.int64


@pytest.mark.parametrize(
    ("docs", "message"),
    [
        ([4, -1, 5], "document 1 has length -1; allowed: 0 or more"),
        ([4, 5], "document lengths sum to 9, but seqlen is 8"),
        ([], "document lengths sum to 0, but seqlen is 8"),
        ([7, True], "document lengths must be one list of integers, got booleans among them"),
        ([np.False_, 8], "document lengths must be one list of integers, got booleans among them"),
        ([False, True], "document lengths must be one list of integers, got bool of shape (2,)"),
        ([[0, 8]], "document lengths must be one list of integers, got int64 of shape (1, 2)"),
        (["0", "8"], "document lengths must be one list of integers, got <U1 of shape (2,)"),
        ([[0], [1, 2]], "document lengths must be one list of integers, got lists of several lengths"),
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
