"""Varlen calls, ranges and startend_row_indices expand back to exactly the dense picture of the slices.

Each expansion is written from the documentation of the library that takes the arguments, and shares no code with the
lowering.
"""

import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mask_examples import NAMES, cut_in_four, example, one_slice

from attnspec import plugins
from attnspec.errors import UnsupportedError
from attnspec.lower.columns import transposed
from attnspec.lower.ffa import ffa_ranges
from attnspec.lower.startend import startend_rows
from attnspec.lower.varlen import varlen_plan
from attnspec.shape import Shape
from attnspec.slices import AttnSlices, check, dense, merge, take

QUICK = settings(deadline=None, max_examples=60)
DOCUMENTS = st.lists(st.one_of(st.integers(0, 12), st.just(1)), min_size=1, max_size=7).filter(any)
MANY_DOCUMENTS = [5, 0, 1, 9, 9, 1, 0, 14, 3]
ONE_CALL = ("full", "causal", "varlen_full", "varlen_causal", "sliding_window", "sliding_window_causal")
CALLS = {
    **dict.fromkeys(ONE_CALL, 1),
    **dict.fromkeys(["varlen_block_causal", "prefix_lm_causal", "prefix_lm_document", "share_question"], 2),
    "causal_blockwise": 2,
    "global_sliding_window": 3,
}
STARTEND_FORMS = {
    **dict.fromkeys(["causal", "varlen_causal", "sliding_window_causal", "share_question"], (True, 1)),
    "causal_blockwise": (True, 2),
    **dict.fromkeys(["full", "varlen_full", "sliding_window", "varlen_block_causal"], (False, 2)),
    **dict.fromkeys(["prefix_lm_causal", "prefix_lm_document"], (False, 2)),
    "global_sliding_window": (False, 4),
}


def of_rows(rows, seqlen_q, seqlen_k):
    return AttnSlices.from_rows(rows, seqlen_q=seqlen_q, seqlen_k=seqlen_k)


@st.composite
def disjoint_slices(draw, max_slices=5, seqlen=13):
    """Any slices that share no cell; those that would are left out."""
    seqlen_q, seqlen_k = draw(st.integers(1, seqlen)), draw(st.integers(1, seqlen))
    seen, rows = np.zeros((seqlen_q, seqlen_k), dtype=bool), []
    for _ in range(draw(st.integers(0, max_slices))):
        q = sorted(draw(st.tuples(st.integers(0, seqlen_q), st.integers(0, seqlen_q))))
        k = sorted(draw(st.tuples(st.integers(0, seqlen_k), st.integers(0, seqlen_k))))
        row = (*q, *k, draw(st.integers(0, 3)))
        cells = dense(of_rows([row], seqlen_q, seqlen_k))
        if not (seen & cells).any():
            seen |= cells
            rows.append(row)
    return of_rows(rows, seqlen_q, seqlen_k)


@st.composite
def masks(draw):
    return example(draw(st.sampled_from(NAMES)), draw(DOCUMENTS))


@st.composite
def ring_steps(draw):
    """What one rank of a ring sees of another's keys: rows and keys of two pieces each, in order."""
    slices = draw(masks())
    held, lengths = [], []
    for _ in range(2):
        cuts = draw(st.lists(st.integers(0, slices.seqlen_q), min_size=4, max_size=4))
        first, middle, after, last = sorted(cuts)
        held.append(np.array([[first, middle, 0], [after, last, middle - first]]))
        lengths.append(max(middle - first + last - after, 1))
    return take(slices, *held, seqlen_q=lengths[0], seqlen_k=lengths[1])


ANY = st.one_of(masks(), disjoint_slices(), ring_steps())


def refusal(lower, slices):
    """(what it made, None), or (None, its error)."""
    try:
        return lower(slices), None
    except UnsupportedError as error:
        return None, error


def plan_of(slices):
    plan, error = refusal(varlen_plan, slices)
    assert error is None or error.reason_code == "no_lowering"
    return plan


def band(num_rows, num_keys, left, right):
    """flash_attn_varlen_func: query i attends keys [i + seqlen_k - seqlen_q - left, ... + right], None unbounded."""
    q, k = np.arange(num_rows)[:, None], np.arange(num_keys)[None, :]
    middle = q + num_keys - num_rows
    cells = np.ones((num_rows, num_keys), dtype=bool)
    if left is not None:
        assert left >= 0  # a negative bound means none
        cells &= k >= middle - left
    if right is not None:
        assert right >= 0
        cells &= k <= middle + right
    return cells


def painted(sequences, seqlen_q, seqlen_k, left, right):
    picture = np.zeros((seqlen_q, seqlen_k), dtype=int)
    for q_start, q_end, k_start, k_end in sequences:
        assert 0 <= q_start <= q_end <= seqlen_q
        assert 0 <= k_start <= k_end <= seqlen_k
        picture[q_start:q_end, k_start:k_end] += band(q_end - q_start, k_end - k_start, left, right)
    return picture


def of_packed(call, seqlen_q, seqlen_k, batch=1):
    """cu_seqlens: sequence i has tokens [cu[i], cu[i + 1])."""
    made = call.packed(seqlen_q, seqlen_k, batch)
    cu_q, cu_k = made.cu_seqlens_q, made.cu_seqlens_k
    assert cu_q.dtype == cu_k.dtype == np.int32
    assert cu_q[0] == cu_k[0] == 0
    assert (cu_q[-1], cu_k[-1]) == (batch * seqlen_q, batch * seqlen_k)
    assert made.max_seqlen_q == np.diff(cu_q).max(initial=0)
    assert made.max_seqlen_k == np.diff(cu_k).max(initial=0)
    sequences = zip(cu_q[:-1], cu_q[1:], cu_k[:-1], cu_k[1:], strict=True)
    return painted(sequences, batch * seqlen_q, batch * seqlen_k, call.left, call.right)


def of_placed(call, seqlen_q, seqlen_k, batch=1):
    """Padded offsets: sequence i has tokens [start[i], start[i] + length[i])."""
    made = call.placed(seqlen_q, seqlen_k, batch)
    assert (np.diff(made.starts_q) >= made.lengths_q).all()
    assert (np.diff(made.starts_k) >= made.lengths_k).all()
    assert (made.starts_q[-1], made.starts_k[-1]) == (batch * seqlen_q, batch * seqlen_k)
    ends = made.starts_q[:-1] + made.lengths_q, made.starts_k[:-1] + made.lengths_k
    sequences = zip(made.starts_q[:-1], ends[0], made.starts_k[:-1], ends[1], strict=True)
    return painted(sequences, batch * seqlen_q, batch * seqlen_k, call.left, call.right)


def of_boxed(call, seqlen_q, seqlen_k):
    """The call on views of the rows and keys that it needs."""
    inner, rows, keys = call.boxed()
    picture = np.zeros((seqlen_q, seqlen_k), dtype=int)
    picture[rows, keys] = of_packed(inner, rows.stop - rows.start, keys.stop - keys.start)
    return picture


@QUICK
@given(ANY)
def test_varlen_calls_are_exact(slices):
    plan = plan_of(slices)
    if plan is None:
        return
    sizes = slices.seqlen_q, slices.seqlen_k
    wanted = dense(slices).astype(int)
    for expand in (of_packed, of_placed, of_boxed):
        picture = sum((expand(call, *sizes) for call in plan.calls), np.zeros(sizes, dtype=int))
        np.testing.assert_array_equal(picture, wanted)  # no cell twice
    for call in plan.calls:
        assert of_placed(call, *sizes).any(axis=1).sum() == (call.q_end - call.q_start).sum()
        one = np.kron(np.eye(2, dtype=int), of_packed(call, *sizes))
        np.testing.assert_array_equal(of_packed(call, *sizes, 2), one)
        np.testing.assert_array_equal(of_placed(call, *sizes, 2), one)


@QUICK
@given(ANY)
def test_what_a_call_says_of_itself(slices):
    plan = plan_of(slices)
    if plan is None:
        return
    assert plan.num_calls == len(plan.calls)
    for call in plan.calls:
        picture = of_placed(call, slices.seqlen_q, slices.seqlen_k)
        held_q, held_k = np.zeros(slices.seqlen_q, dtype=bool), np.zeros(slices.seqlen_k, dtype=bool)
        for row in zip(call.q_start, call.q_end, call.k_start, call.k_end, strict=True):
            held_q[row[0] : row[1]] = held_k[row[2] : row[3]] = True
        assert call.covers_rows(slices.seqlen_q) == held_q.all()
        assert call.covers_keys(slices.seqlen_k) == held_k.all()
        assert call.square == ((call.q_end - call.q_start) == (call.k_end - call.k_start)).all()
        kinds = {"full": (None, None), "causal": (None, 0)}
        assert kinds.get(call.kind, (call.left, call.right)) == (call.left, call.right)
        if call.is_rectangle(slices.seqlen_q, slices.seqlen_k):
            whole = band(slices.seqlen_q, slices.seqlen_k, call.left, call.right)
            np.testing.assert_array_equal(picture, whole.astype(int))


@pytest.mark.parametrize("name", NAMES)
def test_number_of_calls_of_each_mask(name):
    assert set(CALLS) == set(NAMES)
    plan = varlen_plan(example(name, MANY_DOCUMENTS))
    assert plan.num_calls == CALLS[name]
    rows = [int((call.q_end - call.q_start).sum()) for call in plan.calls]
    assert rows == sorted(rows, reverse=True)


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=25)
@given(docs=DOCUMENTS)
def test_no_mask_needs_more_calls_for_some_documents(name, docs):
    assert varlen_plan(example(name, docs)).num_calls <= CALLS[name]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("full", ("full", None, None)),
        ("causal", ("causal", None, 0)),
        ("varlen_full", ("full", None, None)),
        ("varlen_causal", ("causal", None, 0)),
        ("sliding_window_causal", ("window", 4, 0)),
    ],
)
def test_how_masks_of_one_call_are_said(name, said):
    (call,) = varlen_plan(example(name, MANY_DOCUMENTS)).calls
    assert (call.kind, call.left, call.right) == said
    if name.startswith("varlen"):
        assert len(call.q_start) == sum(length > 0 for length in MANY_DOCUMENTS)
    else:
        assert call.is_rectangle(42, 42)


def test_a_window_over_the_whole_sequence_is_one_sequence():
    (call,) = varlen_plan(example("sliding_window", [40])).calls
    assert call.is_rectangle(40, 40)
    assert (call.left, call.right) == (4, 4)


def test_causal_with_more_queries_than_keys_is_one_rectangle():
    (call,) = varlen_plan(of_rows([(0, 9, 0, 4, 1)], 9, 4)).calls
    assert call.is_rectangle(9, 4)
    assert call.kind == "causal"
    assert call.q_start.tolist() == [5]  # the rows above see nothing


def test_inverse_causal_is_a_window_with_its_own_diagonal():
    (call,) = varlen_plan(of_rows([(0, 4, 0, 4, 2)], 4, 4)).calls
    assert (call.kind, call.left, call.right) == ("window", 0, None)


def test_an_empty_mask_needs_no_call():
    assert varlen_plan(of_rows([], 4, 5)).num_calls == 0
    assert varlen_plan(of_rows([(2, 2, 0, 5, 1), (0, 4, 3, 3, 0)], 4, 5)).num_calls == 0


def test_what_takes_too_many_calls_is_refused():
    # Every row sees every other key: 20 sequences start at each row.
    rows = [(row, row + 1, key, key + 1, 0) for row in range(3) for key in range(row % 2, 40, 2)]
    slices = of_rows(rows, 3, 40)
    check(slices)
    with pytest.raises(UnsupportedError) as raised:
        varlen_plan(slices)
    assert raised.value.reason_code == "no_lowering"
    assert raised.value.reason == (
        "no way found to say these 60 slices in at most 8 varlen calls: sequences of one call follow each other in "
        "queries and keys and share one causal flag or window"
    )
    assert varlen_plan(slices, max_calls=60).num_calls > 8


@QUICK
@given(ANY, st.integers(1, 3))
def test_ffa_ranges_are_exact(slices, batch):
    made = ffa_ranges(slices, batch)
    assert made.q_ranges.dtype == made.k_ranges.dtype == made.types.dtype == np.int32
    picture = np.zeros((batch * slices.seqlen_q, batch * slices.seqlen_k), dtype=int)
    for (q_start, q_end), (k_start, k_end), kind in zip(made.q_ranges, made.k_ranges, made.types, strict=True):
        q, k = np.arange(q_start, q_end)[:, None], np.arange(k_start, k_end)[None, :]
        cells = np.ones((len(q), k.shape[1]), dtype=bool)
        if kind in (1, 3):  # causal: aligned at the bottom right
            cells &= k - k_end <= q - q_end
        if kind in (2, 3):  # inverse causal: aligned at the top left
            cells &= k - k_start >= q - q_start
        picture[q_start:q_end, k_start:k_end] += cells
    np.testing.assert_array_equal(picture, np.kron(np.eye(batch, dtype=int), dense(slices)))
    spans = sorted(map(tuple, made.q_ranges.tolist()))
    meet = any(later[0] < earlier[1] for earlier, later in pairwise(spans))
    assert made.q_disjoint == (not meet)


@QUICK
@given(ANY)
def test_ffa_ranges_change_only_where_that_pays(slices):
    plain, made = merge(slices), ffa_ranges(slices)
    spans = sorted(map(tuple, plain.ranges[:, :2].tolist()))
    meet = any(later[0] < earlier[1] for earlier, later in pairwise(spans))
    pays = meet and (len(made.types) < len(plain) or made.q_disjoint)
    assert len(made.types) <= len(plain)
    same = np.array_equal(np.hstack([made.q_ranges, made.k_ranges]), plain.ranges)
    assert pays or (same and np.array_equal(made.types, plain.types))


@QUICK
@given(one_slice(), st.data())
def test_a_slice_cut_in_rows_and_keys_is_one_ffa_range(slices, data):
    row, key = (data.draw(st.integers(0, length)) for length in (slices.seqlen_q, slices.seqlen_k))
    made = ffa_ranges(cut_in_four(slices, row, key))
    assert len(made.types) == (1 if dense(slices).any() else 0)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", ["full", "causal", "varlen_full", "varlen_causal"])
def test_a_step_of_a_ring_is_one_ffa_range_a_document(name, size):
    docs = [40, 64, 200, 8] if name.startswith("varlen") else [312]
    slices = example(name, docs)
    strategy = plugins.load("strategies", "ring_p2p")
    shape = Shape(batch=1, num_heads_q=2, num_heads_kv=2, head_dim=8, dtype="float32")
    plan = strategy.shard(strategy.Params(), slices, docs, shape, size)
    for rank in range(size):
        for call in plan.calls(rank):
            made = ffa_ranges(call.slices)
            assert (len(made.types), made.q_disjoint) == (len(docs), True)


@pytest.mark.parametrize("name", NAMES)
def test_the_masks_themselves_are_the_same_ffa_ranges_as_ever(name):
    plain, made = merge(example(name, MANY_DOCUMENTS)), ffa_ranges(example(name, MANY_DOCUMENTS))
    np.testing.assert_array_equal(np.hstack([made.q_ranges, made.k_ranges]), plain.ranges)
    np.testing.assert_array_equal(made.types, plain.types)


def test_ffa_ranges_of_very_many_pieces_are_left_as_they_are():
    rows = [(key, 2048, key, key + 1, 0) for key in range(2048)]
    started = time.process_time()
    assert len(ffa_ranges(of_rows(rows, 2048, 2048)).types) == 2048
    assert time.process_time() - started < 2


def of_startend(made, seqlen_q, seqlen_k):
    """flashmask_attention: per key the masked rows [LTS, LTE) and [UTS, UTE), and with `causal` those before the key."""
    values = made.indices
    assert values.dtype == np.int32
    assert values.shape[0] == seqlen_k
    end, start = np.full(seqlen_k, seqlen_q), np.zeros(seqlen_k, dtype=int)
    forms = {
        (True, 1): lambda lts: [(lts, end)],
        (True, 2): lambda lts, lte: [(lts, lte)],
        (False, 2): lambda lts, ute: [(lts, end), (start, ute)],
        (False, 4): lambda lts, lte, uts, ute: [(lts, lte), (uts, ute)],
    }
    q = np.arange(seqlen_q)[:, None]
    picture = np.ones((seqlen_q, seqlen_k), dtype=bool)
    for first, last in forms[made.causal, values.shape[1]](*values.T):
        picture &= (q < first) | (q >= last)
    if made.causal:
        assert seqlen_q == seqlen_k
        picture &= q >= np.arange(seqlen_k)
    return picture


@QUICK
@given(ANY)
def test_startend_rows_are_exact(slices):
    made, error = refusal(startend_rows, slices)
    if error is not None:
        unseen = np.pad(~dense(slices), ((1, 1), (0, 0)))
        most = int((np.diff(unseen.astype(int), axis=0) > 0).sum(axis=0).max())
        assert error.reason_code == "no_lowering"
        assert error.reason == (
            f"a key is not seen by {most} separate runs of queries; startend_row_indices say at most two, or one "
            "besides the rows before the key"
        )
        assert most > 2
        return
    np.testing.assert_array_equal(of_startend(made, slices.seqlen_q, slices.seqlen_k), dense(slices))


@pytest.mark.parametrize("name", NAMES)
def test_startend_form_of_each_mask(name):
    assert set(STARTEND_FORMS) == set(NAMES)
    made = startend_rows(example(name, MANY_DOCUMENTS))
    assert (made.causal, made.indices.shape[1]) == STARTEND_FORMS[name]


@QUICK
@given(ANY)
def test_transposed_is_exact(slices):
    made = transposed(slices)
    check(made)
    np.testing.assert_array_equal(dense(made), dense(slices).T)
    assert len(made) <= 3 * len(slices)


@pytest.mark.parametrize("name", ["varlen_block_causal", "share_question", "sliding_window"])
def test_lowering_of_64k_tokens_is_quick(name):
    docs = [64] * 512 + [32768]
    slices = example(name, docs, **({"block": 128} if name == "varlen_block_causal" else {}))
    started = time.process_time()
    varlen_plan(slices)
    ffa_ranges(slices)
    startend_rows(slices)
    assert time.process_time() - started < 3
