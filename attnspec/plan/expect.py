"""What a plan can expect without sampling: documents, areas, FLOPs, memory and time. Estimates, labelled so. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from attnspec import plugins
from attnspec.flops import attention_flops
from attnspec.masks import make_slices
from attnspec.plan.model import Case, MaskNode, Plan
from attnspec.sample.lengths import Lengths
from attnspec.sample.packs import max_piece
from attnspec.shape import DTYPE_BYTES
from attnspec.slices import area

_POINTS_PER_BIN = 64
_MOST_PACKS = 100
"""Packs looked at; more of these typical ones tell no more."""
_GOLDEN = (5**0.5 - 1) / 2


def expected_documents(
    lengths: Lengths, *, seqlen: int, num_packs: int, max_doc_fraction: Fraction
) -> list[NDArray[np.int64]]:
    """`num_packs` packs of typical documents: evenly spaced quantiles of the pieces' lengths, evenly mixed, then cut.

    Each array sums to seqlen. No chance is involved. A heavy tail is thinner here than in real packs.
    """
    longest = max_piece(seqlen, max_doc_fraction)
    points = (np.arange(_POINTS_PER_BIN) + 0.5) / _POINTS_PER_BIN
    documents = np.floor(lengths.lo[:, None] + points * (lengths.hi - lengths.lo)[:, None]).astype(np.int64).ravel()
    amounts = np.repeat(lengths.counts / _POINTS_PER_BIN, _POINTS_PER_BIN)
    whole, rest = np.divmod(documents, longest)
    pieces = np.append(rest, longest)
    weights = np.append(np.where(rest > 0, amounts, 0.0), np.dot(whole, amounts))
    order = np.argsort(pieces, kind="stable")
    pieces, cumulated = pieces[order], np.cumsum(weights[order])
    mean = float(np.dot(pieces, weights[order]) / cumulated[-1])
    num_pieces = int(np.ceil(seqlen * num_packs / mean * 1.05)) + 1
    ends = np.empty(0, dtype=np.int64)
    while len(ends) == 0 or ends[-1] < seqlen * num_packs:
        # Weyl's sequence visits the quantiles evenly however far it is followed.
        spread = (np.arange(num_pieces) + 0.5) * _GOLDEN % 1.0
        ends = np.cumsum(pieces[np.searchsorted(cumulated, spread * cumulated[-1])])
        num_pieces *= 2
    cuts = np.unique(np.append(ends, np.arange(1, num_packs + 1) * seqlen))
    cuts = cuts[cuts <= seqlen * num_packs]
    made = np.diff(cuts, prepend=0)
    begins = np.searchsorted((cuts - 1) // seqlen, np.arange(1, num_packs))
    return np.split(made, begins)


def expected_area(plan: Plan, node: MaskNode) -> int:
    """Allowed pairs of a mask node, summed over its packs; exact for masks without documents."""
    module = plugins.load("masks", node.mask)
    params = plugins.make_params(module, node.params)
    packs: Iterable[NDArray[np.int64]] = [np.array([node.seqlen_q], dtype=np.int64)]
    looked_at = node.sample.num_packs
    if node.sample.data_sha256 is not None:
        assert plan.lengths is not None and node.sample.max_doc_fraction is not None
        looked_at = min(looked_at, _MOST_PACKS)
        packs = expected_documents(
            plan.lengths,
            seqlen=node.seqlen_q,
            num_packs=looked_at,
            max_doc_fraction=node.sample.max_doc_fraction,
        )
    seen = sum(area(make_slices(module, params, docs, node.seqlen_q)) for docs in packs)
    return seen * node.sample.num_packs // looked_at


def tensor_bytes(case: Case, *, dense: bool = False) -> int:
    """Bytes of q, k, v and out on one rank, with lse, and of dO, dq, dk and dv where the pass has a backward.

    dense: a mask of seqlen_q x seqlen_k elements of the inputs' type beside them.
    """
    shape, node = case.workload.shape, case.workload.mask_node
    queries = shape.batch * node.seqlen_q * shape.num_heads_q
    keys = shape.batch * node.seqlen_k * shape.num_heads_kv
    directions = 1 if case.pass_ == "fwd" else 2
    elements = (2 * queries + 2 * keys) * shape.head_dim * directions
    if dense:
        elements += node.seqlen_q * node.seqlen_k
    return -(-(elements * DTYPE_BYTES[shape.dtype] + queries * 4) // case.cp_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """Sums over the cases that can run. areas: mask_id -> expected area, summed over packs.

    flops_once: FLOPs of one iteration of every pack of every case. largest: the case with most tensor bytes a rank.
    device_s_least: min_iters iterations of everything at the nominal throughput, None where none is known.
    device_s_most: the budget (max_seconds per pack and case), or min_iters iterations where they take longer.
    """

    areas: Mapping[str, int]
    flops_once: int
    largest: Case | None
    largest_bytes: int
    device_s_least: float | None
    device_s_most: float


def expect(plan: Plan, *, tflops: float | None) -> Expectation:
    """What running `plan` will take. tflops: nominal throughput of one device; None where nobody knows the device."""
    areas = {mask_id: expected_area(plan, node) for mask_id, node in plan.masks.items()}
    flops_once, least, most = 0, 0.0, 0.0
    largest: Case | None = None
    largest_bytes = 0
    for case in plan.cases:
        if case.case_id in plan.unsupported:
            continue
        shape, node = case.workload.shape, case.workload.mask_node
        flops = attention_flops(areas[node.mask_id], shape.batch, shape.num_heads_q, shape.head_dim, case.pass_)
        flops_once += flops
        needed = 0.0 if tflops is None else plan.measure.min_iters * flops / (tflops * 1e12 * case.cp_size)
        least += needed
        most += max(needed, plan.measure.max_seconds * node.sample.num_packs)
        size = tensor_bytes(case, dense=case.case_id in plan.dense)
        if size > largest_bytes:
            largest, largest_bytes = case, size
    return Expectation(
        areas=areas,
        flops_once=flops_once,
        largest=largest,
        largest_bytes=largest_bytes,
        device_s_least=None if tflops is None else least,
        device_s_most=most,
    )
