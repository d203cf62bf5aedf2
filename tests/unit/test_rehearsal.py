"""The rehearsal of a spec: small, on the CPU, and as many-sided as the spec."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnspec import plugins
from attnspec.launch.rehearsal import rehearsal
from attnspec.plan import Plan, compile_plan
from attnspec.plan.structure import example_documents
from attnspec.plan.verdicts import example_slices
from attnspec.resources import shipped
from attnspec.spec import Spec, load_spec
from attnspec.support import Device

SPECS = sorted(shipped("specs").glob("*.yaml"))


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_every_shipped_spec_has_a_rehearsal_that_runs_on_the_cpu(path: Path) -> None:
    spec = load_spec(path)
    small = rehearsal(spec)
    plan = compile_plan(small, device=Device(type="cpu"))
    assert {case.level for case in plan.cases} == {sweep.level for sweep in spec.sweeps}
    assert {case.workload.mask_node.mask for case in plan.cases} == {
        mask.name for sweep in spec.sweeps for mask in sweep.masks
    }
    for case in plan.cases:
        assert case.cp_size in (1, 2, 3, 4)
        assert case.workload.mask_node.seqlen_q <= 1024
        shape = case.workload.shape
        assert shape.num_heads_q % shape.num_heads_kv == 0
        assert shape.num_heads_q / shape.num_heads_kv == spec.shape.num_heads_q / spec.shape.num_heads_kv
    assert len(plan.unsupported) < len(plan.cases)
    for case in plan.cases:
        if case.implementation.strategy and case.case_id in plan.unsupported:
            library = getattr(plugins.load("strategies", case.implementation.strategy), "PROVIDERS", ())
            assert library, f"{case.implementation.strategy} of attnspec itself"
            assert plan.unsupported[case.case_id].reason == "runs on cuda, not on cpu"


def test_a_rehearsal_of_a_rehearsal_is_the_same() -> None:
    small = rehearsal(load_spec(shipped("specs") / "h100_distributed.yaml"))
    assert rehearsal(small) == small


def spec_of(masks, strategies, *, heads=(8, 4), cp_size=(8, 64)) -> Spec:
    sweep = {
        "level": "distributed",
        "masks": masks,
        "cp_size": list(cp_size),
        "seqlen_per_rank": "8K",
        "passes": ["fwd"],
        "strategies": strategies,
    }
    shape = {"batch": 1, "num_heads_q": heads[0], "num_heads_kv": heads[1], "head_dim": 64, "dtype": "bfloat16"}
    return Spec.model_validate({"attnspec": 1, "name": "s", "runner": "h100", "shape": shape, "sweeps": [sweep]})


def kernel_spec_of(masks, seqlens) -> Spec:
    content = spec_of(["full"], [{"ring_p2p": {"kernel": "fa3"}}]).canonical()
    sweep = {"level": "kernel", "masks": masks, "seqlen": seqlens, "passes": ["fwd"], "kernels": ["reference"]}
    return Spec.model_validate({**content, "sweeps": [sweep]})


def rehearsed(spec: Spec) -> Plan:
    small = rehearsal(spec)
    assert rehearsal(small) == small
    return compile_plan(small, device=Device(type="cpu"))


@pytest.mark.parametrize(
    ("heads", "cp_size", "name", "expected"),
    [
        ((15, 3), (1, 3, 9), "ulysses", {3}),
        ((15, 3), (1, 3, 9), "ring_p2p", {2, 4}),
        ((30, 6), (2, 3), "ulysses", {2, 3}),
        ((8, 4), (8, 16), "ulysses", {2, 4}),
        ((8, 4), (3,), "ulysses", {2}),
        ((15, 3), (9,), "hybrid_dcp", {2}),
    ],
)
def test_ranks_are_as_many_as_a_strategy_takes_for_the_heads(heads, cp_size, name, expected) -> None:
    plan = rehearsed(spec_of(["causal"], [{name: {"kernel": "fa3"}}], heads=heads, cp_size=cp_size))
    assert {case.cp_size for case in plan.cases} == expected
    assert not plan.unsupported


def test_strategies_that_take_other_ranks_are_all_rehearsed() -> None:
    items = [{"ulysses": {"kernel": "fa3"}}, {"hybrid_dcp": {"kernel": "fa3"}}, {"usp": {"kernel": "fa3"}}]
    plan = rehearsed(spec_of(["causal"], items, heads=(15, 3), cp_size=(3, 9)))
    ranks: dict[str | None, set[int]] = {}
    for case in plan.cases:
        ranks.setdefault(case.implementation.strategy, set()).add(case.cp_size)
    assert ranks == {"ulysses": {3}, "hybrid_dcp": {2, 4}, "usp": {2, 4}}
    assert not plan.unsupported


def test_where_no_small_number_of_ranks_is_taken_the_cases_say_why() -> None:
    plan = rehearsed(spec_of(["causal"], [{"ulysses": {"kernel": "fa3"}}], heads=(7, 7), cp_size=(7,)))
    assert [why.reason_code for why in plan.unsupported.values()] == ["heads"]


def test_a_backend_that_does_not_run_on_the_cpu_becomes_the_reference() -> None:
    items = [
        {"ring_p2p": {"kernel": "sdpa", "backend": "cudnn", "env": {"A": "1"}}},
        {"ulysses": {"kernel": "sdpa", "backend": "math"}},
    ]
    plan = rehearsed(spec_of(["causal"], items))
    kernels = {
        (case.implementation.strategy, case.implementation.kernel, case.implementation.backend, *case.env)
        for case in plan.cases
    }
    assert kernels == {("ring_p2p", "reference", None, "A"), ("ulysses", "sdpa", "math")}
    assert not plan.unsupported


def test_tokens_of_a_rank_shrink_with_the_sequence_so_that_rings_are_rehearsed() -> None:
    item = {"hybrid_dcp": {"kernel": "fa3", "tokens_per_rank": "8K"}}
    plan = rehearsed(spec_of(["varlen_causal"], [item]))
    strategy = plugins.load("strategies", "hybrid_dcp")
    for case in plan.cases:
        node = case.workload.mask_node
        params = plugins.make_params(strategy, case.implementation.strategy_params)
        assert params.tokens_per_rank == 8192 * 4 * 128 // (64 * 8192)
        docs = example_documents(node.seqlen_q, node.sample.max_doc_fraction)
        sharding = strategy.shard(params, example_slices(node, node.seqlen_q), docs, case.workload.shape, case.cp_size)
        assert max(group.size for group in sharding.groups) == case.cp_size


def test_token_counts_of_masks_shrink_with_the_lengths() -> None:
    masks = [
        {"sliding_window_causal": {"window": "1K"}},
        {"sliding_window_causal": {"window": "1001"}},
        {"global_sliding_window": {"window": "1K", "global_tokens": 0}},
        {"causal": {"seqlen_k": "128K"}},
        {"varlen_block_causal": {"block": 1}},
    ]
    plan = rehearsed(kernel_spec_of(masks, ["1K", "64K"]))
    told = {(node.mask, *(value for value in node.params.values())) for node in plan.masks.values()}
    assert told == {
        ("sliding_window_causal", 8),
        ("sliding_window_causal", 7),
        ("global_sliding_window", 8, 0),
        ("causal", 1024),
        ("varlen_block_causal", 1),
    }
    shares = rehearsal(spec_of([masks[0]], [{"ring_p2p": {"kernel": "fa3"}}])).sweeps[0].masks
    assert [mask.params for mask in shares] == [{"window": 16}]


def test_given_slices_are_cut_to_the_first_tokens() -> None:
    rows = [[0, 128, 0, 64, "full"], [128, 1024, 0, 1024, "causal"], [1024, 2048, 0, 2048, "causal"]]
    plan = rehearsed(kernel_spec_of([{"slices": {"slices": rows}}], ["2K", "4K"]))
    assert {node.seqlen_q for node in plan.masks.values()} == {256, 512}
    for node in plan.masks.values():
        assert [list(row) for row in node.params["slices"]] == [[0, 128, 0, 64, "full"], [128, 256, 0, 256, "causal"]]
    (mask,) = rehearsal(spec_of([{"slices": {"slices": rows}}], [{"ring_p2p": {"kernel": "fa3"}}])).sweeps[0].masks
    assert mask.params["slices"][-1][1] == 256
