"""Plans of TransformerEngine's context parallelism. Pure.

Read: attn_forward_func_with_cp and its autograd functions in context_parallel.py of TransformerEngine 2.20.2. Whatever
way of communication follows, every sequence is padded to a multiple of 2 x ranks and split in zigzag (DualChunkSwap),
as `attnspec.sharding.layout.zigzag` does it. A ring of P passes keys on P-1 times in the forward, keys and gradients
of them P-1 times each in the backward, all in the inputs' type and whatever the mask is; gathering sends as much.
"""

from __future__ import annotations

from attnspec.errors import UnsupportedError
from attnspec.shape import Shape
from attnspec.sharding.adapted import Adapted, Traffic, sequences_of
from attnspec.sharding.layout import zigzag
from attnspec.sharding.mesh import Mesh
from attnspec.slices import AttnSlices


def dual_chunk(slices: AttnSlices, shape: Shape, degrees: Mesh, *, windows: bool, gathers: bool = False) -> Adapted:
    """The plan for a mask. Raises UnsupportedError for masks that the library cannot express.

    windows: whether this way of communication takes a sliding window.
    """
    sequences = sequences_of(slices, "TransformerEngine")
    if sequences.left is not None and not windows:
        raise UnsupportedError("no_lowering", "TransformerEngine takes windows by te_all_gather and te_a2a only")
    layout = zigzag(sequences.bounds, degrees.size)
    if shape.batch > 1 and (len(sequences) > 1 or layout.padding_tokens):
        raise UnsupportedError("backend", f"packed sequences are batch 1, not {shape.batch}")
    times = degrees.ring_degree - 1
    return Adapted(
        slices=slices,
        shape=shape,
        sequences=sequences,
        layout=layout,
        degrees=degrees,
        traffic=Traffic(keys_forward=times, keys_backward=times, grads_backward=times),
        gathers=gathers,
    )
