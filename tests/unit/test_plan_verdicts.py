"""What planning says cannot run: the reasons of plug-ins, asked seldom, and never another answer than asking each."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning import planning_toys, small_spec

from attnspec import compile_plan, plugins
from attnspec.catalog import param_fields
from attnspec.errors import InputError, UnsupportedError
from attnspec.masks import make_slices
from attnspec.plan import base_rows
from attnspec.plan.asked import Asked
from attnspec.plan.compile import compile_spec
from attnspec.plan.expect import tensor_bytes
from attnspec.plan.structure import example_documents
from attnspec.plan.verdicts import Verdicts, example_slices
from attnspec.record.status import Status, check_outcome
from attnspec.sample.lengths import from_tally
from attnspec.sample.packs import draw_packs
from attnspec.spec import Spec
from attnspec.support import DTYPES, Device, Problem

H100 = Device(type="cuda", capability=(9, 0))


@pytest.fixture(autouse=True, scope="module")
def toys():
    with planning_toys():
        yield


def compiled(content, **given):
    return compile_plan(Spec.model_validate(content), **given)


def kernel_spec(kernels, masks, seqlens, **more):
    content = small_spec()
    sweep = {"level": "kernel", "masks": masks, "seqlen": seqlens, "passes": ["fwd", "bwd"], "kernels": kernels}
    return content | {"sweeps": [sweep]} | more


def reasons(plan):
    return sorted({(why.reason_code, why.reason) for why in plan.unsupported.values()})


def test_without_a_device_only_what_holds_everywhere_is_unsupported():
    assert reasons(compiled(small_spec())) == [
        ("direction", "with CUDA: one_slice has no backward; without: runs on cuda, not on cpu"),
        ("mesh", "degree 2 does not divide 1 ranks"),
        ("no_lowering", "with CUDA: 1024 tokens in 10 slices; without: runs on cuda, not on cpu"),
        ("no_lowering", "with CUDA: 1024 tokens in 2 slices; without: runs on cuda, not on cpu"),
        ("no_lowering", "with CUDA: 512 tokens in 10 slices; without: runs on cuda, not on cpu"),
        ("no_lowering", "with CUDA: 512 tokens in 2 slices; without: runs on cuda, not on cpu"),
    ]


CPU = Device(type="cpu")
HEAD_DIM_OF_FLEX = "FlexAttention wants an embedding dimension of at least 16"
DEVICES = [CPU, *(Device(type="cuda", capability=one) for one in ((8, 0), (9, 0), (10, 0), (12, 0)))]


def ways(name):
    """A kernel with each value of its parameters that have few, one parameter at a time."""
    choices = param_fields(plugins.load("kernels", name))
    several = [{key: one} for key, field in choices.items() for one in field.choices or () if one != field.default]
    several += [{key: True} for key, field in choices.items() if field.bare is bool]
    several += [{**one, "kv_repeat": True} for one in several if "kv_repeat" in choices and "backend" in one]
    return [{name: one} if one else name for one in ({}, *several)]


def in_a_strategy(way):
    """ulysses over a kernel as `ways` has it."""
    name, params = (way, {}) if isinstance(way, str) else next(iter(way.items()))
    backend = {key: value for key, value in params.items() if key == "backend"}
    rest = {key: value for key, value in params.items() if key != "backend"}
    return {"ulysses": {"kernel": {name: rest} if rest else name, **backend}}


def shape_of(plan):
    (shape,) = {workload.shape for workload in plan.workloads.values()}
    return shape


@pytest.mark.parametrize("name", sorted(plugins.names("kernels")))
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_refused_without_a_device_is_refused_on_every_one(name, dtype):
    content = kernel_spec(ways(name), ["full", "causal", "varlen_causal", "share_question"], [700])
    content["sweeps"] += strategies_spec(list(map(in_a_strategy, ways(name))), passes=("fwd", "bwd"))["sweeps"]
    for num_heads_kv, head_dim in ((4, 8), (2, 20), (2, 64), (4, 192), (2, 256), (4, 520)):
        shape = {"num_heads_q": 4, "num_heads_kv": num_heads_kv, "head_dim": head_dim, "dtype": dtype}
        content["shape"] |= shape
        plan = compiled(content)
        refused = [case for case in plan.cases if case.case_id in plan.unsupported]
        for device in DEVICES if refused else ():
            verdicts = Verdicts(plan.masks.values(), shape=shape_of(plan), device=device, lengths=plan.lengths)
            for case in refused:
                asked, node = Asked.load(case.implementation), case.workload.mask_node
                said = verdicts.ask(asked, node, needs_backward=case.pass_ != "fwd", cp_size=case.cp_size)
                assert said.refused is not None, (shape, device, case, plan.unsupported[case.case_id])


def test_what_one_kind_of_device_runs_is_not_refused_without_a_device():
    shape = {"batch": 1, "num_heads_q": 8, "num_heads_kv": 2, "head_dim": 8, "dtype": "float32"}
    flash = {"sdpa": {"backend": "flash"}}
    plan = compiled(kernel_spec([flash, "flex", "fa2"], ["full", "share_question"], ["1K"], shape=shape))
    refused = {(case.implementation.kernel, case.pass_) for case in plan.cases if case.case_id in plan.unsupported}
    assert refused == {("flex", "bwd"), ("fa2", "fwd"), ("fa2", "bwd")}
    flex_on_cpu = plugins.load("kernels", "flex").SUPPORT.backward_reason["cpu"]
    assert reasons(plan) == [
        (
            "dtype",
            "with CUDA: float32 is not supported; allowed: bfloat16, float16; without: runs on cuda, not on cpu",
        ),
        ("head_dim", f"with CUDA: {HEAD_DIM_OF_FLEX}, got 8; without: {flex_on_cpu}"),
    ]


def test_blocks_that_are_larger_on_blackwell_decide_where_the_capability_is_unknown(monkeypatch):
    monkeypatch.setattr(plugins.load("kernels", "flex"), "_MAX_ENTRIES", 1000)
    shape = {"batch": 1, "num_heads_q": 8, "num_heads_kv": 2, "head_dim": 64, "dtype": "bfloat16"}
    content = kernel_spec([{"flex": {"backend": "FLASH"}}], ["causal"], ["2K"], shape=shape)
    blackwell = Device(type="cuda", capability=(10, 0))
    refused = [len(compiled(content, device=one).unsupported) for one in (None, Device(type="cuda"), blackwell, H100)]
    assert refused == [0, 0, 0, 2]


def test_with_the_runners_device_its_limits_count_too():
    on_cpu = compiled(small_spec(), device=Device(type="cpu"))
    assert ("device", "runs on cuda, not on cpu") in reasons(on_cpu)
    on_cuda = compiled(small_spec(), device=H100)
    backward = [
        on_cuda.unsupported[case.case_id].reason_code
        for case in on_cuda.cases
        if case.pass_ == "bwd" and case.implementation.kernel == "one_slice"
    ]
    assert backward == ["direction"] * 6
    assert [case.case_id for case in on_cpu.cases] == [case.case_id for case in on_cuda.cases]


def test_unsupported_cases_keep_their_nodes_rows_and_places_in_jobs():
    plan = compiled(small_spec(), device=Device(type="cpu"))
    rows = list(base_rows(plan))
    assert [row.case_id for row in rows] == [case.case_id for case in plan.cases]
    assert sum(row.status == "unsupported" for row in rows) == len(plan.unsupported) > 0
    for row in rows:
        check_outcome(Status(row.status), row.reason_code)
        assert f"run:{row.case_id}" in plan.graph
    assert sum(len(job.cases) for job in plan.jobs) == len(rows)


def test_a_kernel_is_asked_once_per_pattern_and_on_a_short_sequence():
    kernel = plugins.load("kernels", "any_kernel")
    kernel.LOWERED.clear()
    lengths = ["4K", "8K", "64K", "1M", "64M"]
    plan = compiled(kernel_spec(["any_kernel"], ["causal", "varlen_causal"], lengths))
    assert len(plan.cases) == 20
    assert plan.unsupported == {}
    assert kernel.LOWERED == [2048] * 4  # two masks, with and without backward


def test_blocks_and_windows_have_few_patterns_over_many_lengths():
    kernel = plugins.load("kernels", "any_kernel")
    kernel.LOWERED.clear()
    masks = [{"varlen_block_causal": {"block": 256 << step}} for step in range(4)]
    masks += [{"sliding_window_causal": {"window": 64 << step}} for step in range(8)]
    plan = compiled(kernel_spec(["any_kernel"], masks, [1024 + 1280 * step for step in range(60)]))
    assert len(plan.cases) == 1440
    assert len(kernel.LOWERED) < 60
    assert max(kernel.LOWERED) < 32768


def test_equal_words_for_one_structure_are_not_asked_a_third_time(monkeypatch):
    asked = []

    def lower(problem, params, provider):
        asked.append((len(problem.slices), problem.slices.seqlen_q))
        raise UnsupportedError("no_lowering", "never")

    monkeypatch.setattr(plugins.load("kernels", "any_kernel"), "lower", lower)
    lengths = ["4K", "8K", "16K", "32K", "64K"]
    plan = compiled(kernel_spec(["any_kernel"], ["varlen_causal"], lengths), device=H100)
    assert asked.count((2048, 2048)) == 2  # the shortest documents, once: fwd and bwd
    by_documents = {few: [seqlen for held, seqlen in asked if held == few] for few in (10, 4)}
    assert by_documents[10] == [2048, 4096, 2048, 4096, 8192, 8192]  # the short likeness, then two of five
    assert by_documents[4] == [4096, 4096, 8192, 8192]  # the longest documents: two of five
    assert len(plan.unsupported) == 10
    assert reasons(plan) == [("no_lowering", "never")]


def test_many_lengths_between_two_refused_in_the_same_words_are_refused_unasked(monkeypatch):
    asked = []

    def lower(problem, params, provider):
        asked.append(problem.slices.seqlen_q)
        if len(problem.slices) > 6:
            raise UnsupportedError("no_lowering", "too many slices")

    monkeypatch.setattr(plugins.load("kernels", "any_kernel"), "lower", lower)
    lengths = [1024 * step for step in range(1, 101)]
    plan = compiled(kernel_spec(["any_kernel"], [{"varlen_block_causal": {"block": 1024}}], lengths), device=H100)
    refused = {case.workload.mask_node.seqlen_q for case in plan.cases if case.case_id in plan.unsupported}
    exact = {length for length in lengths if len(own_slices(plan, length)) > 6 and length > 4096}
    assert refused <= exact  # never a wrong no: up to 4K the longest documents are four slices
    assert len(refused) >= len(exact) - 2 > 50
    assert len(asked) < 60


def own_slices(plan, seqlen):
    return example_slices(next(node for node in plan.masks.values() if node.seqlen_q == seqlen), seqlen)


def test_words_that_differ_are_asked_for_at_every_length():
    lengths = [512 * step for step in range(1, 41)]
    window = {"sliding_window_causal": {"window": 4096}}
    plan = compiled(kernel_spec(["one_slice"], [window], lengths), device=H100)
    forward = [case.case_id for case in plan.cases if case.pass_ == "fwd"]
    refused = [plan.unsupported[case_id].reason for case_id in forward if case_id in plan.unsupported]
    assert refused == [f"{length} tokens in 2 slices" for length in lengths if length > 4096]


def test_a_no_speaks_of_the_masks_own_slices():
    plan = compiled(kernel_spec(["one_slice"], ["varlen_causal"], ["64K", "128K"]), device=H100)
    assert reasons(plan) == [
        ("direction", "one_slice has no backward"),
        ("no_lowering", "131072 tokens in 10 slices"),
        ("no_lowering", "65536 tokens in 10 slices"),
    ]


def test_a_mask_that_changes_its_structure_with_the_length_is_asked_again():
    plan = compiled(kernel_spec(["one_slice"], [{"sliding_window_causal": {"window": 4096}}], ["2K", "4K", "8K"]))
    forward = [case for case in plan.cases if case.pass_ == "fwd"]
    refused = {case.workload.mask_node.seqlen_q for case in forward if case.case_id in plan.unsupported}
    assert refused == {8192}


def test_a_mask_that_refuses_its_parameters_is_an_error_with_its_name_and_length():
    rows = [[0, 4, 0, 4, "full"], [0, 4, 2, 6, "full"]]
    with pytest.raises(InputError, match=r"mask slices at seqlen 8: slices 0 .* and 1 .* overlap: both allow q=0, k=2"):
        compiled(kernel_spec(["any_kernel"], [{"slices": {"slices": rows}}], [8]))


def test_a_share_of_less_than_a_token_is_an_error():
    with pytest.raises(InputError, match="max_doc_fraction: 1/4 of a seqlen of 3 is less than one token"):
        compiled(kernel_spec(["any_kernel"], ["varlen_causal"], [3]))


def test_dense_masks_are_known_and_counted():
    plan = compiled(kernel_spec(["sdpa", "any_kernel"], ["full", "varlen_full"], ["1K"]), device=H100)
    dense = {
        (case.implementation.kernel, case.workload.mask_node.mask): tensor_bytes(case, dense=True) - tensor_bytes(case)
        for case in plan.cases
        if case.case_id in plan.dense
    }
    assert dense == {("sdpa", "varlen_full"): 1024 * 1024 * 4}


@pytest.mark.parametrize(
    ("kernel", "shape", "code"),
    [
        ("fa2", {"head_dim": 80}, None),
        ("fa2", {"head_dim": 100}, "head_dim"),
        ("fa2", {"head_dim": 264}, "head_dim"),
        ({"sdpa": {"backend": "flash"}}, {"dtype": "float32"}, "dtype"),
        ({"sdpa": {"backend": "flash"}}, {"head_dim": 264}, "head_dim"),
        ({"sdpa": {"backend": "efficient"}}, {}, "heads"),
        ({"sdpa": {"backend": "efficient", "kv_repeat": True}}, {}, None),
    ],
)
def test_limits_of_libraries_are_told_while_planning(kernel, shape, code):
    held = {"batch": 1, "num_heads_q": 8, "num_heads_kv": 2, "head_dim": 64, "dtype": "bfloat16"} | shape
    plan = compiled(kernel_spec([kernel], ["full"], ["1K"], shape=held), device=H100)
    assert {why.reason_code for why in plan.unsupported.values()} == ({code} if code else set())
    assert len(plan.unsupported) == (2 if code else 0)


def test_heads_alone_are_no_reason_to_refuse_a_kernel_inside_a_strategy(monkeypatch):
    kernel = plugins.load("kernels", "any_kernel")
    monkeypatch.setattr(kernel, "SUPPORT", dataclasses.replace(kernel.SUPPORT, gqa=False))
    plan = compiled(small_spec())
    refused = {
        plan.case_by_id[key].level: why.reason_code
        for key, why in plan.unsupported.items()
        if plan.case_by_id[key].implementation.kernel == "any_kernel"
    }
    assert refused == {"kernel": "heads", "distributed": "mesh"}


def test_rectangular_masks_keep_their_shape_in_the_short_likeness():
    kernel = plugins.load("kernels", "any_kernel")
    kernel.LOWERED.clear()
    plan = compiled(kernel_spec(["any_kernel"], [{"causal": {"seqlen_k": "128K"}}], ["64K"]))
    assert kernel.LOWERED == [2048] * 2
    assert {node.seqlen_k for node in plan.masks.values()} == {131072}


MASKS = {
    "full": {},
    "causal": {},
    "varlen_full": {},
    "varlen_causal": {},
    "sliding_window": {"window": 100},
    "sliding_window_causal": {"window": 1024},
    "varlen_block_causal": {"block": 512},
    "prefix_lm_causal": {"prefix": 300},
    "prefix_lm_document": {"prefix": 64},
    "share_question": {},
    "causal_blockwise": {},
    "global_sliding_window": {"window": 100, "global_tokens": 7},
}


@pytest.mark.parametrize("name", plugins.names("kernels"))
@pytest.mark.parametrize("device", [None, H100], ids=["nowhere", "h100"])
def test_sharing_answers_changes_none(name, device):
    """Every shipped kernel gives the same answer when it is asked about each mask's own slices."""
    shape = {"batch": 1, "num_heads_q": 4, "num_heads_kv": 2, "head_dim": 64, "dtype": "bfloat16"}
    masks = [{mask: params} if params else mask for mask, params in MASKS.items()]
    plan = compiled(kernel_spec([name], masks, [700, 5000], shape=shape), device=device)
    kernel = plugins.load("kernels", name)
    for case in plan.cases:
        node = case.workload.mask_node
        module = plugins.load("masks", node.mask)
        docs = (
            example_documents(node.seqlen_q, node.sample.max_doc_fraction) if module.USES_DOCUMENTS else [node.seqlen_q]
        )
        slices = make_slices(module, plugins.make_params(module, node.params), docs, node.seqlen_q)
        told = []
        for where in (Device(type="cuda"), CPU) if device is None else (device,):
            backward = case.pass_ != "fwd"
            problem = Problem(shape=case.workload.shape, slices=slices, needs_backward=backward, device=where)
            try:
                kernel.SUPPORT.check(problem)
                kernel.lower(problem, kernel.Params(), None)
                told.append(None)
            except UnsupportedError as error:
                told.append((error.reason_code, error.reason))
        found = plan.unsupported.get(case.case_id)
        case_told = (node.mask, node.seqlen_q, case.pass_)
        assert (found is None) == (None in told), case_told
        if found is not None:
            assert found.reason_code == told[0][0], case_told
            assert all(reason in found.reason for _, reason in told), case_told


def test_masks_without_documents_that_a_librarys_strategy_does_not_take_are_told_while_planning():
    window = {"sliding_window_causal": {"window": 64}}
    sweep = {
        "level": "distributed",
        "masks": ["causal", "varlen_full", window],
        "cp_size": [2],
        "seqlen_per_rank": [256, 257],
        "passes": ["fwd"],
        "strategies": ["te_p2p", "te_a2a", "yunchang_usp", {"ring_p2p": {"kernel": "cudnn"}}],
    }
    plan = compiled(small_spec() | {"sweeps": [sweep], "shape": {**small_spec()["shape"], "dtype": "bfloat16"}})
    told = {
        (case.implementation.strategy, case.workload.mask_node.mask, plan.unsupported[case.case_id].reason)
        for case in plan.cases
        if case.case_id in plan.unsupported
    }
    window_of_yunchang = "yunchang takes one sequence, full or causal, by its attention layer"
    assert told == {
        ("te_p2p", "sliding_window_causal", "TransformerEngine takes windows by te_all_gather and te_a2a only"),
        ("yunchang_usp", "sliding_window_causal", window_of_yunchang),
    }


FLASH = {"sdpa": {"backend": "flash"}}


def planned_over(documents, masks, seqlens, *, fraction="1/4", kernels=(FLASH,)):
    """The plan over a population of documents of these lengths, as many of each."""
    told = np.unique(np.asarray(documents, dtype=np.int64))
    lengths = from_tally("told", told, np.full(len(told), 400_000))
    shape = {"batch": 1, "num_heads_q": 8, "num_heads_kv": 2, "head_dim": 64, "dtype": "bfloat16"}
    data = {"lengths": "page", "max_doc_fraction": fraction, "num_packs": 2}
    content = kernel_spec(list(kernels), masks, seqlens, shape=shape, data=data)
    return compile_spec(Spec.model_validate(content), lengths, device=H100)


def refused_masks(plan):
    return {case.workload.mask_node.mask for case in plan.cases if case.case_id in plan.unsupported}


def flash_takes(plan, node, seed):
    """Whether sdpa's flash backend takes every pack that is really drawn."""
    sdpa, module = plugins.load("kernels", "sdpa"), plugins.load("masks", node.mask)
    fraction = node.sample.max_doc_fraction
    packs = draw_packs(plan.lengths, seqlen=node.seqlen_q, num_packs=2, max_doc_fraction=fraction, seed=seed)
    shape = next(iter(plan.workloads.values())).shape
    for docs in packs:
        slices = make_slices(module, plugins.make_params(module, node.params), docs, node.seqlen_q)
        try:
            sdpa.lower(
                Problem(shape=shape, slices=slices, needs_backward=True, device=H100),
                sdpa.Params(backend="flash"),
                None,
            )
        except UnsupportedError:
            return False
    return True


def test_documents_that_decide_are_left_to_the_worker():
    masks = [{"varlen_block_causal": {"block": 2048}}, {"prefix_lm_document": {"prefix": 2048}}]
    plan = planned_over(range(1, 201), masks, ["64K"])
    assert all(flash_takes(plan, node, seed=42) for node in plan.masks.values())
    assert plan.unsupported == {}


def test_what_no_documents_make_possible_is_still_refused_while_planning():
    by_documents = [{"varlen_block_causal": {"block": 2048}}, {"prefix_lm_document": {"prefix": 2048}}]
    never = ["share_question", "causal_blockwise"]
    assert refused_masks(planned_over(range(1, 201), [*by_documents, *never], ["64K"])) == set(never)
    long = planned_over([4096, 9000, 16384], [*by_documents, *never], ["64K"])
    assert refused_masks(long) == {"varlen_block_causal", "prefix_lm_document", *never}
    assert reasons(long) == [
        (
            "no_lowering",
            "torch's flash backend takes no mask: only full, causal, and documents that are all full or causal",
        )
    ]
    # 20000 is split at 16384 and leaves 3616; 16385 leaves one token, and many of those might fill a pack
    assert "prefix_lm_document" in refused_masks(planned_over([20000], by_documents, ["64K"]))
    assert refused_masks(planned_over([16385], by_documents, ["64K"])) == set()


def test_two_documents_in_a_pack_may_be_what_a_kernel_takes():
    """Of two documents the last one sees the first: that is plain causal."""
    for fraction, refused in (("1/4", {"causal_blockwise"}), ("1/2", set()), ("1", set())):
        plan = planned_over([1 << 17], ["causal_blockwise"], ["64K"], fraction=fraction)
        assert refused_masks(plan) == refused


@settings(max_examples=60, deadline=None)
@given(
    documents=st.lists(st.integers(1, 300), min_size=1, max_size=4),
    seqlen=st.integers(40, 400),
    fraction=st.sampled_from(["1/8", "1/4", "1/3", "1/2", "2/3", "1"]),
    parameter=st.integers(2, 100),
    seed=st.integers(0, 9),
)
def test_no_documents_that_are_drawn_would_have_been_taken_after_a_no(documents, seqlen, fraction, parameter, seed):
    masks = ["varlen_full", "share_question", "causal_blockwise"]
    masks += [{"varlen_block_causal": {"block": parameter}}, {"prefix_lm_document": {"prefix": parameter}}]
    with planning_toys():
        plan = planned_over(documents, masks, [seqlen], fraction=fraction)
        refused = {case.workload.mask_node.mask_id for case in plan.cases if case.case_id in plan.unsupported}
        for mask_id in refused:
            assert not flash_takes(plan, plan.masks[mask_id], seed), plan.masks[mask_id]


@pytest.mark.parametrize(
    ("takes", "refused"),
    [
        (lambda slices: len(slices) <= 4, False),  # the longest documents, a quarter of the sequence each
        (lambda slices: bool((np.diff(slices.ranges[:, :2]) == 1).all()), False),  # the shortest ones
        (lambda slices: False, True),
    ],
)
def test_the_longest_and_shortest_documents_are_asked_about(monkeypatch, takes, refused):
    def lower(problem, params, provider):
        if not takes(problem.slices):
            raise UnsupportedError("no_lowering", f"{problem.slices.seqlen_q} tokens")

    monkeypatch.setattr(plugins.load("kernels", "any_kernel"), "lower", lower)
    plan = planned_over(range(1, 40_000, 999), ["varlen_causal"], ["16K", "64K"], kernels=["any_kernel"])
    assert len(plan.unsupported) == (4 if refused else 0)


def test_another_ground_for_other_documents_is_no_answer(monkeypatch):
    def lower(problem, params, provider):
        if problem.slices.seqlen_q < 4096:
            raise UnsupportedError("seqlen", "too short")
        raise UnsupportedError("no_lowering", "not these documents")

    monkeypatch.setattr(plugins.load("kernels", "any_kernel"), "lower", lower)
    assert planned_over([1, 500], ["varlen_causal"], ["64K"], kernels=["any_kernel"]).unsupported == {}
    assert len(planned_over([50, 500], ["varlen_causal"], ["64K"], kernels=["any_kernel"]).unsupported) == 2


def strategies_spec(items, *, masks=("full", "varlen_causal"), cp_size=(2,), passes=("fwd",), **shape):
    sweep = {
        "level": "distributed",
        "masks": list(masks),
        "cp_size": list(cp_size),
        "seqlen_per_rank": 512,
        "passes": list(passes),
        "strategies": items,
    }
    held = {"batch": 1, "num_heads_q": 8, "num_heads_kv": 2, "head_dim": 64, "dtype": "bfloat16"} | shape
    return small_spec() | {"sweeps": [sweep], "shape": held}


OWN = ("ulysses", "ring_p2p", "ring_allgather", "usp", "loongtrain", "hybrid_dcp")


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize(
    ("kernel", "shape", "device", "code"),
    [
        ({"kernel": "sdpa", "backend": "efficient"}, {}, H100, "heads"),
        ({"kernel": "sdpa", "backend": "efficient"}, {}, None, "heads"),
        ({"kernel": {"sdpa": {"kv_repeat": True}}, "backend": "efficient"}, {}, H100, None),
        ({"kernel": "sdpa", "backend": "efficient"}, {"num_heads_kv": 8}, H100, None),
        ({"kernel": "sdpa", "backend": "flash"}, {"dtype": "float32"}, H100, "dtype"),
        ({"kernel": "sdpa", "backend": "flash"}, {"dtype": "float32"}, None, None),
        ({"kernel": "sdpa", "backend": "cudnn"}, {"dtype": "float32"}, Device(type="cpu"), "backend"),
        ({"kernel": "sdpa", "backend": "flash"}, {"head_dim": 264}, H100, "head_dim"),
        ({"kernel": "flex", "backend": "FLASH"}, {}, Device(type="cuda", capability=(8, 0)), "device"),
        ({"kernel": "sdpa", "backend": "flash"}, {}, H100, None),
    ],
)
def test_limits_of_a_kernel_inside_a_strategy_are_told_while_planning(name, kernel, shape, device, code):
    plan = compiled(strategies_spec([{name: kernel}], **shape), device=device)
    assert len(plan.cases) == 2
    assert [why.reason_code for why in plan.unsupported.values()] == [code] * 2 * (code is not None)


def test_heads_that_a_strategy_repeats_are_not_grouped():
    """Of 8:2 heads over 2 ranks each has 4:1, over 8 ranks 1:1, which the backend takes."""
    asked = [{"ulysses": {"kernel": "sdpa", "backend": "efficient"}}]
    plan = compiled(strategies_spec(asked, cp_size=(2, 4, 8)), device=H100)
    refused = {plan.case_by_id[key].cp_size: why.reason for key, why in plan.unsupported.items()}
    assert set(refused) == {2, 4}
    assert "(4:1)" in refused[2] and "(2:1)" in refused[4]


def test_what_a_kernel_says_of_slices_is_no_ground_inside_a_strategy(monkeypatch):
    kernel = plugins.load("kernels", "any_kernel")

    def lower(problem, params, provider):
        kinds = {row[4].name for row in problem.slices.rows()}
        if kinds != {"INV_CAUSAL"}:
            raise UnsupportedError("backend", "takes one type of slices only")

    monkeypatch.setattr(kernel, "lower", lower)
    assert not compiled(strategies_spec([{"ring_p2p": {"kernel": "any_kernel"}}]), device=H100).unsupported

    def never(problem, params, provider):
        raise UnsupportedError("no_lowering", "takes none of these")

    monkeypatch.setattr(kernel, "lower", never)
    assert not compiled(strategies_spec([{"ring_p2p": {"kernel": "any_kernel"}}]), device=H100).unsupported


def test_a_mask_of_which_no_kernel_computes_a_part_is_left_to_the_worker():
    asked = [{"ring_p2p": {"kernel": "sdpa", "backend": "efficient"}}]
    plan = compiled(strategies_spec(asked, masks=[{"slices": {"slices": []}}, "full"]), device=H100)
    assert [plan.case_by_id[key].workload.mask_node.mask for key in plan.unsupported] == ["full"]


@pytest.mark.parametrize("name", ["ring_flash_attn_llama3", "magi_attn_a2av"])
def test_a_batch_that_a_library_does_not_take_is_told_while_planning(name):
    items = [{name: {"kernel": plugins.load("strategies", name).KERNELS[0]}}]
    plan = compiled(strategies_spec(items, masks=["varlen_causal"], batch=2), device=H100)
    assert [why.reason_code for why in plan.unsupported.values()] == ["backend"]
    assert all("batch 1, not 2" in why.reason for why in plan.unsupported.values())
