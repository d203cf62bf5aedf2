"""Masks by name with small parameters, for tests of lowerings and kernels."""

import numpy as np
from hypothesis import strategies as st

from attnspec import plugins
from attnspec.masks import make_slices
from attnspec.slices import AttnSlices, clip

PARAMS = {
    "sliding_window": {"window": 5},
    "sliding_window_causal": {"window": 5},
    "varlen_block_causal": {"block": 3},
    "prefix_lm_causal": {"prefix": 4},
    "prefix_lm_document": {"prefix": 4},
    "global_sliding_window": {"window": 4, "global_tokens": 3},
}
NAMES = tuple(name for name in plugins.names("masks") if name != "slices")


def example(name, docs, **params):
    """The mask's slices over documents, or over one document of their total where it uses none."""
    mask = plugins.load("masks", name)
    seqlen = int(np.sum(docs))
    held = plugins.make_params(mask, {**PARAMS.get(name, {}), **params})
    return make_slices(mask, held, docs if mask.USES_DOCUMENTS else [seqlen], seqlen)


@st.composite
def one_slice(draw):
    """A slice of any type, somewhere in a small grid."""
    seqlen_q, seqlen_k = draw(st.integers(1, 24)), draw(st.integers(1, 24))
    q = sorted(draw(st.tuples(st.integers(0, seqlen_q), st.integers(0, seqlen_q))))
    k = sorted(draw(st.tuples(st.integers(0, seqlen_k), st.integers(0, seqlen_k))))
    return AttnSlices.from_rows([(*q, *k, draw(st.integers(0, 3)))], seqlen_q=seqlen_q, seqlen_k=seqlen_k)


def cut_in_four(slices, row, key):
    """The same mask, its slices cut at a row and at a key, the lower rows first."""
    rows = [
        part
        for q_start, q_end in ((row, slices.seqlen_q), (0, row))
        for k_start, k_end in ((0, key), (key, slices.seqlen_k))
        for part in clip(slices, q_start, q_end, k_start, k_end).rows()
    ]
    return AttnSlices.from_rows(rows, seqlen_q=slices.seqlen_q, seqlen_k=slices.seqlen_k)
