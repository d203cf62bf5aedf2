"""What planning says cannot run: the reasons of plug-ins, asked seldom, and never another answer than asking each."""

from __future__ import annotations

import dataclasses

import pytest
from planning import planning_toys, small_spec

from attnspec import compile_plan, plugins
from attnspec.errors import InputError, UnsupportedError
from attnspec.masks import make_slices
from attnspec.plan import base_rows
from attnspec.plan.expect import tensor_bytes
from attnspec.plan.structure import example_documents
from attnspec.plan.verdicts import example_slices
from attnspec.record.status import Status, check_outcome
from attnspec.spec import Spec
from attnspec.support import Device, Problem

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
        ("mesh", "degree 2 does not divide 1 ranks"),
        ("no_lowering", "1024 tokens in 10 slices"),
        ("no_lowering", "1024 tokens in 2 slices"),
        ("no_lowering", "512 tokens in 10 slices"),
        ("no_lowering", "512 tokens in 2 slices"),
    ]


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
        asked.append(problem.slices.seqlen_q)
        raise UnsupportedError("no_lowering", "never")

    monkeypatch.setattr(plugins.load("kernels", "any_kernel"), "lower", lower)
    lengths = ["4K", "8K", "16K", "32K", "64K"]
    plan = compiled(kernel_spec(["any_kernel"], ["varlen_causal"], lengths))
    assert asked == [2048, 4096, 2048, 4096, 8192, 8192]  # the short likeness, then two of five: fwd and bwd
    assert len(plan.unsupported) == 10
    assert reasons(plan) == [("no_lowering", "never")]


def test_many_lengths_between_two_refused_in_the_same_words_are_refused_unasked(monkeypatch):
    asked = []

    def lower(problem, params, provider):
        asked.append(problem.slices.seqlen_q)
        if len(problem.slices) > 12:
            raise UnsupportedError("no_lowering", "too many slices")

    monkeypatch.setattr(plugins.load("kernels", "any_kernel"), "lower", lower)
    lengths = [1024 * step for step in range(1, 101)]
    plan = compiled(kernel_spec(["any_kernel"], [{"varlen_block_causal": {"block": 1024}}], lengths))
    refused = {case.workload.mask_node.seqlen_q for case in plan.cases if case.case_id in plan.unsupported}
    exact = {length for length in lengths if len(own_slices(plan, length)) > 12}
    assert refused <= exact  # never a wrong no
    assert len(refused) >= len(exact) - 2 > 50
    assert len(asked) < 30


def own_slices(plan, seqlen):
    return example_slices(next(node for node in plan.masks.values() if node.seqlen_q == seqlen), seqlen)


def test_words_that_differ_are_asked_for_at_every_length():
    lengths = [512 * step for step in range(1, 41)]
    plan = compiled(kernel_spec(["one_slice"], [{"sliding_window_causal": {"window": 4096}}], lengths))
    refused = [plan.unsupported[case.case_id].reason for case in plan.cases if case.case_id in plan.unsupported]
    assert refused == [f"{length} tokens in 2 slices" for length in lengths if length > 4096 for _ in ("fwd", "bwd")]


def test_a_no_speaks_of_the_masks_own_slices():
    plan = compiled(kernel_spec(["one_slice"], ["varlen_causal"], ["64K", "128K"]))
    assert reasons(plan) == [
        ("no_lowering", "131072 tokens in 10 slices"),
        ("no_lowering", "65536 tokens in 10 slices"),
    ]


def test_a_mask_that_changes_its_structure_with_the_length_is_asked_again():
    plan = compiled(kernel_spec(["one_slice"], [{"sliding_window_causal": {"window": 4096}}], ["2K", "4K", "8K"]))
    refused = {case.workload.mask_node.seqlen_q for case in plan.cases if case.case_id in plan.unsupported}
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
        problem = Problem(shape=case.workload.shape, slices=slices, needs_backward=case.pass_ != "fwd", device=device)
        try:
            kernel.SUPPORT.check(problem)
            kernel.lower(problem, kernel.Params(), None)
            expected = None
        except UnsupportedError as error:
            expected = (error.reason_code, error.reason)
        found = plan.unsupported.get(case.case_id)
        assert (found and (found.reason_code, found.reason)) == expected, (node.mask, node.seqlen_q, case.pass_)


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
        ("te_p2p", "sliding_window_causal", "TransformerEngine takes windows by all_gather and a2a only"),
        ("yunchang_usp", "sliding_window_causal", window_of_yunchang),
    }
