"""Masks by name with small parameters, for tests of lowerings and kernels."""

import numpy as np

from attnspec import plugins
from attnspec.masks import make_slices

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
