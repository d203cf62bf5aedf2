"""Ids of a plan: the same content gives the same ids, any other content other ones; nodes are shared."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning import planning_toys, small_spec

from attnspec import compile_plan, plugins
from attnspec.ids import content_id
from attnspec.masks import make_slices
from attnspec.plan import count_nodes
from attnspec.plan.identity import case_id, collect_id, implementation_content, shape_content
from attnspec.plan.structure import example_documents, structure
from attnspec.slices import AttnSlices
from attnspec.spec import Spec


@pytest.fixture(autouse=True, scope="module")
def toys():
    with planning_toys():
        yield


def compiled(content, **given):
    return compile_plan(Spec.model_validate(content), **given)


def all_ids(plan):
    return sorted(plan.graph.nodes), [job.job_id for job in plan.jobs], [case.case_id for case in plan.cases]


def shuffled(value, order):
    """The same JSON with the keys of every mapping in another order."""
    if isinstance(value, dict):
        keys = list(value)
        order.shuffle(keys)
        return {key: shuffled(value[key], order) for key in keys}
    return [shuffled(one, order) for one in value] if isinstance(value, list) else value


@settings(max_examples=25, deadline=None)
@given(st.randoms(use_true_random=False))
def test_ids_do_not_depend_on_the_order_of_keys(order):
    assert all_ids(compiled(shuffled(small_spec(), order))) == all_ids(compiled(small_spec()))


def test_ids_do_not_depend_on_the_spelling_of_sizes_nor_on_defaults():
    other = small_spec()
    other["sweeps"][0]["seqlen"] = [1024, "0.5K"]
    other["data"]["max_doc_fraction"] = "25%"
    other["sweeps"][0]["kernels"][0]["any_kernel"]["block"] = 128
    assert all_ids(compiled(other)) == all_ids(compiled(small_spec()))


SPEC = "quickstart"
PRINT_IDS = f"""
from attnspec import compile_plan, load_spec
from attnspec.resources import shipped
plan = compile_plan(load_spec(shipped("specs") / "{SPEC}.yaml"))
print(*sorted(plan.graph.nodes), *(job.job_id for job in plan.jobs), sep="\\n")
"""


def test_ids_are_the_same_in_every_process():
    printed = [
        subprocess.run(
            [sys.executable, "-c", PRINT_IDS],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1")
    ]
    assert printed[0] == printed[1]
    assert printed[0].count("run:") == 96


def case_ids(content, level=None, mask=None):
    plan = compiled(content)
    return {
        case.case_id
        for case in plan.cases
        if level in (None, case.level) and mask in (None, case.workload.mask_node.mask)
    }


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("seed",), 8),
        (("seed",), 0),
        (("shape", "batch"), 2),
        (("shape", "num_heads_q"), 4),
        (("shape", "num_heads_kv"), 4),
        (("shape", "head_dim"), 32),
        (("shape", "dtype"), "bfloat16"),
    ],
)
def test_what_every_case_asks_changes_every_case(path, value):
    other = small_spec()
    held = other
    for key in path[:-1]:
        held = held[key]
    held[path[-1]] = value
    assert case_ids(other).isdisjoint(case_ids(small_spec()))


@pytest.mark.parametrize(("key", "value"), [("lengths", "pile"), ("max_doc_fraction", "1/8"), ("num_packs", 2)])
def test_data_changes_the_cases_that_have_documents_and_no_other(key, value):
    other = small_spec()
    other["data"][key] = value
    assert case_ids(other, mask="varlen_causal").isdisjoint(case_ids(small_spec(), mask="varlen_causal"))
    for mask in ("full", "sliding_window_causal"):
        assert case_ids(other, mask=mask) == case_ids(small_spec(), mask=mask) != set()


@pytest.mark.parametrize(
    "change",
    [
        lambda sweep: sweep["kernels"][0]["any_kernel"].update(backend="SLOW"),
        lambda sweep: sweep["kernels"][0]["any_kernel"].update(block=64),
        lambda sweep: sweep["kernels"][0]["any_kernel"].update(provider="here"),
        lambda sweep: sweep["kernels"][0]["any_kernel"]["env"].update(A="2"),
        lambda sweep: sweep["kernels"][0]["any_kernel"].pop("env"),
    ],
    ids=["backend", "parameter", "provider", "env value", "no env"],
)
def test_an_implementations_settings_change_its_cases_and_no_other(change):
    other = small_spec()
    change(other["sweeps"][0])
    cases, before = compiled(other).cases, case_ids(small_spec())
    changed = {case.case_id for case in cases if case.level == "kernel" and case.implementation.kernel == "any_kernel"}
    assert len(changed) == 12
    assert changed.isdisjoint(before)
    assert {case.case_id for case in cases} - changed == before & {case.case_id for case in cases}


def test_mask_parameters_strategy_parameters_lengths_and_cp_size_change_ids():
    for path, value in (
        (("sweeps", 0, "masks", 2, "sliding_window_causal", "window"), 65),
        (("sweeps", 1, "strategies", 0, "even_ring", "degree"), 1),
        (("sweeps", 1, "seqlen_per_rank"), 256),
        (("sweeps", 0, "seqlen"), [2048]),
    ):
        other = small_spec()
        held = other
        for key in path[:-1]:
            held = held[key]
        held[path[-1]] = value
        assert case_ids(other) != case_ids(small_spec()), path
    plan = compiled(small_spec())
    of_same_length = [case for case in plan.cases if case.workload.mask_node.mask == "full" and case.pass_ == "fwd"]
    assert len({case.case_id for case in of_same_length}) == len(of_same_length)


@pytest.mark.parametrize("key", ["name", "description", "runner", "measure"])
def test_what_is_not_asked_of_a_case_changes_no_node(key):
    other = small_spec()
    other[key] = {"name": "other", "description": "words", "runner": "h100", "measure": {"min_iters": 9}}[key]
    assert sorted(compiled(other).graph.nodes) == sorted(compiled(small_spec()).graph.nodes)


def test_ids_are_content_ids_of_what_the_architecture_names():
    plan = compiled(small_spec())
    for case in plan.cases:
        work, node = case.workload, case.workload.mask_node
        packs = {
            "data_sha256": node.sample.data_sha256,
            "max_doc_fraction": None if node.sample.max_doc_fraction is None else str(node.sample.max_doc_fraction),
            "num_packs": node.sample.num_packs,
        }
        lengths = {"seqlen_q": node.seqlen_q, "seqlen_k": node.seqlen_k}
        drawn = packs["data_sha256"] is not None
        sample = {**packs, "seqlen": node.seqlen_q, "seed": 7} if drawn else {"seqlen": node.seqlen_q}
        assert node.sample.sample_id == content_id("sample", sample)
        mask = {"mask": node.mask, "params": dict(node.params), "sample": node.sample.sample_id, **lengths}
        assert node.mask_id == content_id("mask", mask)
        workload = {"mask": node.mask, "mask_params": dict(node.params), **lengths, **packs, "seed": 7}
        assert work.workload_id == content_id("workload", {**workload, "shape": shape_content(work.shape)})
        asked = implementation_content(case.implementation)
        assert case.case_id == content_id(
            "case",
            {
                "workload_id": work.workload_id,
                "implementation": asked,
                "pass": case.pass_,
                "cp_size": case.cp_size,
                "env": dict(case.env),
            },
        )


def test_golden_ids():
    """Ids are how results of different versions find each other: a change here orphans all of them."""
    plan = compiled(small_spec())
    assert collect_id(case.case_id for case in plan.cases) == "de385ad47e134976"
    assert plan.cases[0].case_id == "b99a59620a5f7660"
    assert case_id(workload="w", implementation="{}", pass_="bwd", cp_size=8, env='{"A":"1"}') == "db14b29bbe999573"


def test_implementations_share_workloads_and_levels_share_masks():
    plan = compiled(small_spec())
    nodes = count_nodes(plan)
    assert nodes == {"sample": 4, "mask": 6, "run": 28, "collect": 1}
    for key, count in nodes.items():
        assert sum(stage == key for _, stage in plan.graph.nodes(data="stage")) == count
    kernel = {case.workload.mask_node.mask_id for case in plan.cases if case.level == "kernel"}
    ranks = {case.workload.mask_node.mask_id for case in plan.cases if case.level == "distributed"}
    assert ranks <= kernel  # 512 and 1K of full and varlen_causal


def test_the_same_case_asked_twice_is_one_case():
    content = small_spec()
    content["sweeps"].append(copy.deepcopy(content["sweeps"][0]) | {"seqlen": [512]})
    plan, single = compiled(content), compiled(small_spec())
    assert [case.case_id for case in plan.cases] == [case.case_id for case in single.cases]


def test_masks_without_documents_have_one_pack_of_one_document():
    for node in compiled(small_spec()).masks.values():
        drawn = node.mask == "varlen_causal"
        assert (node.sample.num_packs, node.sample.lengths) == ((3, "page") if drawn else (1, None))


def test_a_spec_without_documents_reads_no_lengths():
    content = small_spec()
    content["data"]["lengths"] = "/nowhere/lengths.csv"
    for sweep in content["sweeps"]:
        sweep["masks"] = ["full"]
    assert compiled(content).lengths is None


def test_the_graph_is_layered():
    graph = compiled(small_spec()).graph
    assert nx.is_directed_acyclic_graph(graph)
    following = {"sample": "mask", "mask": "run", "run": "collect"}
    stage = dict(graph.nodes(data="stage"))
    assert all(key.startswith(f"{name}:") for key, name in stage.items())
    for source, target in graph.edges:
        assert following[stage[source]] == stage[target]
    for key, name in stage.items():
        assert graph.in_degree(key) == {"sample": 0, "mask": 1, "run": 1, "collect": 28}[name]
        assert (graph.out_degree(key) > 0) == (name != "collect")


def test_jobs_hold_every_case_once_and_group_by_environment_and_ranks():
    plan = compiled(small_spec())
    held = [case.case_id for job in plan.jobs for case in job.cases]
    assert sorted(held) == sorted(case.case_id for case in plan.cases)
    assert {(job.world_size, json.dumps(dict(job.env))) for job in plan.jobs} == {
        (1, '{"A": "1", "B": "2"}'),
        (1, "{}"),
        (2, "{}"),
    }
    for job in plan.jobs:
        for group in job.groups:
            assert {case.workload.workload_id for case in group.cases} == {group.workload.workload_id}
            assert {case.level for case in group.cases} == {group.level}


def test_a_job_keeps_its_id_when_cases_come_and_go():
    fewer = small_spec()
    fewer["sweeps"][0]["seqlen"] = [512]
    assert [job.job_id for job in compiled(fewer).jobs] == [job.job_id for job in compiled(small_spec()).jobs]
    other = small_spec()
    other["runner"] = "h100"
    assert {job.job_id for job in compiled(other).jobs}.isdisjoint(job.job_id for job in compiled(fewer).jobs)


@settings(deadline=None)
@given(st.integers(1, 2**40), st.fractions(min_value="1/200", max_value=1))
def test_example_documents_fill_the_sequence_and_keep_to_the_share(seqlen, share):
    docs = example_documents(seqlen, share)
    assert int(docs.sum()) == seqlen
    assert (docs >= 0).all()
    assert int(docs.max()) <= max(int(seqlen * max(share, 1 / 64)), 1) + 1
    assert len(docs) == len(example_documents(2**20, share))


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(any),
    st.integers(1, 1000),
    st.sampled_from(["varlen_full", "varlen_causal", "full", "causal", "causal_blockwise", "share_question"]),
)
def test_the_structure_of_a_mask_without_lengths_does_not_change_with_scale(docs, factor, name):
    mask = plugins.load("masks", name)
    docs = docs if mask.USES_DOCUMENTS else [sum(docs)]
    short = make_slices(mask, mask.Params(), docs, sum(docs))
    long = make_slices(mask, mask.Params(), [factor * length for length in docs], factor * sum(docs))
    assert structure(short) == structure(long)


def test_structures_tell_corners_order_and_diagonals_apart():
    def of(*rows):
        return structure(AttnSlices.from_rows(rows, seqlen_q=9, seqlen_k=9))

    different = [
        of((0, 9, 0, 9, 0)),
        of((0, 9, 0, 9, 1)),
        of((0, 8, 0, 9, 0)),
        of((0, 4, 0, 4, 1), (4, 9, 4, 9, 1)),
        of((0, 4, 0, 4, 1), (4, 9, 3, 8, 1)),
        of((0, 4, 0, 4, 1), (4, 9, 3, 9, 1)),
        of(),
    ]
    assert len(set(different)) == len(different)
