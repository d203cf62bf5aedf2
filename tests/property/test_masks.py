"""Every mask's slices equal an independent predicate over (q, k), written here from the mask's definition."""

import inspect

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnspec import plugins
from attnspec.masks import make_slices
from attnspec.slices import area, check, dense, row_intervals

QUICK = settings(deadline=None, max_examples=40)
PREDICATES = {
    "full": lambda q, k, **_: np.ones(np.broadcast_shapes(q.shape, k.shape), dtype=bool),
    "causal": lambda q, k, seqlen_q, seqlen_k, **_: k <= q + (seqlen_k - seqlen_q),
    "varlen_full": lambda q, k, d, **_: d[q] == d[k],
    "varlen_causal": lambda q, k, d, **_: (d[q] == d[k]) & (k <= q),
    "sliding_window_causal": lambda q, k, window, **_: (q - window < k) & (k <= q),
    "sliding_window": lambda q, k, window, **_: abs(q - k) < window,
    "varlen_block_causal": lambda q, k, d, s, block, **_: (
        (d[q] == d[k]) & (k - s[q] < ((q - s[q]) // block + 1) * block)
    ),
    "prefix_lm_causal": lambda q, k, prefix, **_: (k < prefix) | (k <= q),
    "prefix_lm_document": lambda q, k, d, s, prefix, **_: (d[q] == d[k]) & ((k - s[q] < prefix) | (k <= q)),
    "share_question": lambda q, k, d, **_: ((d[q] == d[k]) & (k <= q)) | ((d[k] == 0) & (d[q] != 0)),
    "causal_blockwise": lambda q, k, d, num_docs, **_: ((d[q] == d[k]) | (d[q] == num_docs - 1)) & (k <= q),
    "global_sliding_window": lambda q, k, window, global_tokens, **_: (
        (abs(q - k) < window) | (q < global_tokens) | (k < global_tokens)
    ),
}
DOCUMENTS = st.one_of(
    st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any),
    st.integers(1, 24).map(lambda length: [length]),
    st.lists(st.just(1), min_size=1, max_size=12),
)
SIZES = {"window": st.integers(1, 30), "block": st.integers(1, 30), "prefix": st.integers(0, 30)}
SIZES |= {"global_tokens": st.integers(0, 30), "seqlen_k": st.one_of(st.none(), st.integers(1, 24))}


def expected(name, docs, params):
    seqlen_q = sum(docs)
    seqlen_k = params.get("seqlen_k") or seqlen_q
    q, k = np.arange(seqlen_q)[:, None], np.arange(seqlen_k)[None, :]
    starts = np.cumsum(docs) - docs
    values = {name: value for name, value in params.items() if name != "seqlen_k"}
    return PREDICATES[name](
        q,
        k,
        d=np.repeat(np.arange(len(docs)), docs),
        s=np.repeat(starts, docs),
        num_docs=len(docs),
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_k,
        **values,
    )


@pytest.mark.parametrize("name", PREDICATES)
@QUICK
@given(data=st.data())
def test_slices_are_the_predicate(name, data):
    mask = plugins.load("masks", name)
    docs = data.draw(DOCUMENTS)
    if not mask.USES_DOCUMENTS:
        docs = [sum(docs)]
    params = {field: data.draw(SIZES[field], label=field) for field in inspect.signature(mask.Params).parameters}
    made = make_slices(mask, mask.Params(**params), docs, sum(docs))
    check(made)
    want = expected(name, docs, params)
    assert np.array_equal(dense(made), want)
    assert area(made) == want.sum()
    assert len(made) == 0 or (made.ranges[:, [1, 3]] > made.ranges[:, [0, 2]]).all()
    held = row_intervals(made)
    assert held.counts.tolist() == want.sum(axis=1).tolist()
