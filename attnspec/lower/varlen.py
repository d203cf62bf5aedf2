"""Slices to the fewest varlen attention calls. Pure.

What one call expresses: sequences (queries [q_start, q_end), keys [k_start, k_end)) one after another in both
tensors, all full, all causal from the bottom right corner, or all with one window (left, right) around that diagonal.
Sequences of a call therefore share no key, and cannot cross. Queries and keys that no sequence wants are sequences
without keys or without queries. A mask is a chain of sequences for each call, and the calls' outputs are merged by
log-sum-exp.

How slices become sequences, in four ways of which the one with the fewest calls is taken:
- the slices' trapezoids joined over neighbouring rows (`attnspec.lower.segments`): a sliding window is one sequence
  with window (w - 1, 0), a document one causal sequence;
- the same from maximal row intervals, where neighbouring slices of one row are one interval already;
- both again with every rectangle cut along a diagonal. Rectangles that share keys (block-causal: block i sees blocks
  0 to i) would need a call each; cut along the diagonal they are one causal sequence per document, and one triangle
  per block on and above the diagonal, which is a sequence with window (0, no bound): two calls in all.

A window whose left bound is -1 ("every key after the own one") does not exist: FlashAttention reads negative bounds
as no bound. Triangles start one key later and end one query earlier instead, which makes the bound 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from attnspec.errors import UnsupportedError
from attnspec.lower.segments import Piece, Segment, join, pieces_of_edges, pieces_of_rows, split_stairs
from attnspec.slices import AttnSlices, edges, merge, row_intervals
from attnspec.support.varlen import VarlenCall, VarlenPlan

MAX_CALLS = 8
"""More calls than this are a loop over parts of the mask, which a user of a varlen library would not write."""
_NO_BOUND = 2**62
_MAX_INTERVAL_CELLS = 2**26


def varlen_plan(slices: AttnSlices, *, max_calls: int = MAX_CALLS) -> VarlenPlan:
    """The fewest calls found that together allow exactly the cells of disjoint slices.

    Raises UnsupportedError("no_lowering") when that takes more than `max_calls`.

    >>> rows = [(0, 3, 0, 3, 0), (3, 6, 0, 6, 0), (6, 9, 0, 9, 0)]
    >>> plan = varlen_plan(AttnSlices.from_rows(rows, seqlen_q=9, seqlen_k=9))
    >>> [(call.kind, call.left, call.right, len(call.q_start)) for call in plan.calls]
    [('causal', None, 0, 1), ('window', 0, None, 3)]
    """
    best: list[VarlenCall] | None = None
    for segments in _ways(slices):
        for prefer in (_Chain.tightness, _Chain.likeness):
            limit = max_calls if best is None else len(best) - 1
            found = _calls(segments, limit, prefer)
            best = best if found is None else found
        if best is not None and len(best) <= 1:
            break
    if best is None:
        raise UnsupportedError(
            "no_lowering",
            f"no way found to say these {len(slices)} slices in at most {max_calls} varlen calls: sequences of one "
            "call follow each other in queries and keys and share one causal flag or window",
        )
    # The call with the most queries comes first: the others are merged into its output.
    calls = sorted(best, key=lambda call: int((call.q_start - call.q_end).sum()))
    return VarlenPlan(calls=tuple(calls), seqlen_q=slices.seqlen_q, seqlen_k=slices.seqlen_k)


def _ways(slices: AttnSlices) -> Iterator[list[Segment]]:
    """The mask as segments, in each way; cheap ones first."""
    pieces = pieces_of_edges(edges(merge(slices)))
    yield join(pieces)
    by_rows: list[Piece] = []
    if pieces:
        rows = row_intervals(slices)
        if rows.lo.size <= _MAX_INTERVAL_CELLS:
            by_rows = pieces_of_rows(rows)
            yield join(by_rows)
    for way in (pieces, by_rows):
        if way:
            yield _sorted(segment for part in split_stairs(way) for segment in join(part))


def _sorted(segments: Iterable[Segment]) -> list[Segment]:
    return sorted(segments, key=lambda one: (one.q_start, one.k_start))


class _Chain:
    """Segments of one call so far, and which bounds they leave to choose: left in [left_min, left_max], right alike."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.left = (0, _NO_BOUND)
        self.right = (0, _NO_BOUND)
        self.k_end = -1
        self._q_end = -1

    def takes(self, segment: Segment) -> bool:
        """Whether `segment` can follow."""
        if self._q_end > segment.q_start or self.k_end > segment.k_start:
            return False
        left, right = _common(self.left, _left(segment)), _common(self.right, _right(segment))
        return left[0] <= left[1] and right[0] <= right[1]

    def tightness(self, segment: Segment) -> tuple[int, ...]:
        """Larger where fewer keys lie between: this needs the fewest chains for segments of one kind."""
        return (self.k_end,)

    def likeness(self, segment: Segment) -> tuple[int, ...]:
        """Larger where `segment` leaves the bounds as free as they are: short ones, which fit all kinds, stay so."""
        left, right = _common(self.left, _left(segment)), _common(self.right, _right(segment))
        return int(left == self.left) + int(right == self.right), self.k_end

    def append(self, segment: Segment) -> None:
        """Let `segment` follow."""
        self.segments.append(segment)
        self.left, self.right = _common(self.left, _left(segment)), _common(self.right, _right(segment))
        self._q_end, self.k_end = segment.q_end, segment.k_end

    def call(self) -> VarlenCall:
        """The finished call; a bound that may be anything is none."""
        names = ("q_start", "q_end", "k_start", "k_end")
        columns = {name: np.array([getattr(one, name) for one in self.segments], dtype=np.int64) for name in names}
        left, right = (None if bound[1] == _NO_BOUND else bound[0] for bound in (self.left, self.right))
        return VarlenCall(left=left, right=right, **columns)


def _calls(
    segments: list[Segment], limit: int, prefer: Callable[[_Chain, Segment], tuple[int, ...]]
) -> list[VarlenCall] | None:
    """Segments, sorted, dealt out to at most `limit` chains; None when that many do not do.

    Each segment goes to the chain that it fits and that `prefer` puts first.
    """
    chains: list[_Chain] = []
    for segment in segments:
        fitting = [chain for chain in chains if chain.takes(segment)]
        if fitting:
            chain = max(fitting, key=lambda one: prefer(one, segment))
        elif len(chains) < limit:
            chain = _Chain()
            chains.append(chain)
        else:
            return None
        chain.append(segment)
    return [chain.call() for chain in chains]


def _left(segment: Segment) -> tuple[int, int]:
    """Left bounds that say the segment: one value for a diagonal, else any that reaches the first key."""
    if segment.lower is None:
        return segment.num_keys - 1, _NO_BOUND
    exact = segment.k_end - segment.q_end - segment.lower
    return exact, exact


def _right(segment: Segment) -> tuple[int, int]:
    """Right bounds that say the segment: one value for a diagonal, else any that reaches the last key."""
    if segment.upper is None:
        return segment.num_rows - 1, _NO_BOUND
    exact = segment.upper - segment.k_end + segment.q_end
    return exact, exact


def _common(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return max(one[0], other[0]), min(one[1], other[1])
