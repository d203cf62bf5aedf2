"""What a plan hands on: job requests, base rows, plan.json, pictures and estimates."""

from __future__ import annotations

import dataclasses
import json
import xml.etree.ElementTree as ElementTree
from decimal import Decimal

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning import planning_toys, small_spec

from attnspec import compile_plan, wire
from attnspec.cli._progress import case_title
from attnspec.plan import base_row, base_rows, job_request
from attnspec.plan.document import CASE_COLUMNS, json_chunks
from attnspec.plan.expect import expect, expected_area, expected_documents, tensor_bytes
from attnspec.plan.graph import dot_lines, node_link
from attnspec.plan.identity import collect_id
from attnspec.plan.picture import draw_stages
from attnspec.plan.requests import narrowed
from attnspec.plan.stages import MAX_GROUPS, STAGES, collapse, implementation_label
from attnspec.record.schema import Cell, to_table
from attnspec.sample import draw_packs, read_lengths
from attnspec.spec import Spec


@pytest.fixture(scope="module")
def plan():
    with planning_toys():
        yield compile_plan(Spec.model_validate(small_spec()))


def job_of(plan, world_size, *, env):
    return next(job for job in plan.jobs if job.world_size == world_size and bool(job.env) == env)


def test_a_request_survives_the_wire_and_asks_every_supported_case_once(plan):
    asked = []
    for job in plan.jobs:
        whole = job_request(plan, job, run_dir="/run", attempt=1, device="cpu")
        ids = {case.case_id for case in job.cases}
        request = narrowed(whole, attempt=2, only=ids, done=["key"], rounds_done={"k": {"0": 3}})
        assert (request.done, request.rounds_done) == (("key",), {"k": {"0": 3}})
        assert wire.loads(wire.JobRequest, wire.dumps(request)) == request
        assert (request.job_id, request.world_size, request.attempt) == (job.job_id, job.world_size, 2)
        assert request.measure == plan.measure
        asked += [case.case_id for workload in request.workloads for case in workload.cases]
    assert len(asked) == len(set(asked))
    assert set(asked) == {case.case_id for case in plan.cases} - set(plan.unsupported)


def test_a_job_does_one_length_for_all_masks_before_the_next(plan):
    """Lengths come as the spec has them: 1K, then 512."""
    job = job_of(plan, 1, env=True)
    asked = [(group.workload.mask_node.seqlen_q, group.workload.mask_node.mask) for group in job.groups]
    masks = ["full", "varlen_causal", "sliding_window_causal"]
    assert asked == [(seqlen, mask) for seqlen in (1024, 512) for mask in masks]


def test_a_request_names_the_artifacts_of_its_workloads(plan):
    request = job_request(plan, job_of(plan, 2, env=False), run_dir="/run", attempt=1, device="cpu")
    by_id = plan.workloads
    assert len(request.workloads) == 2
    for workload in request.workloads:
        node = by_id[workload.workload_id].mask_node
        assert workload.packs == f"artifacts/packs-{node.sample.sample_id}.arrow"
        assert workload.slices == f"artifacts/slices-{node.mask_id}.arrow"
        assert (workload.mask, workload.level, workload.seqlen_q) == (node.mask, "distributed", 1024)


def test_a_jobs_environment_wins_over_the_runners(plan):
    request = job_request(
        plan, job_of(plan, 1, env=True), run_dir="/run", attempt=1, device="cpu", env={"A": "runner", "C": "3"}
    )
    assert request.env == {"A": "1", "B": "2", "C": "3"}


def test_only_and_solo(plan):
    job = job_of(plan, 1, env=True)
    first, second, *_ = [case.case_id for case in job.cases]
    whole = job_request(plan, job, run_dir="/run", attempt=1, device="cpu", only={first, second})
    assert (whole.solo, whole.anchor) == ((), first)
    request = narrowed(whole, attempt=1, only={first, second}, solo=[first])
    assert [case.case_id for workload in request.workloads for case in workload.cases] == [first, second]
    assert (request.solo, request.anchor) == ((first,), second)
    nothing = job_request(plan, job, run_dir="/run", attempt=1, device="cpu", only=set())
    assert (nothing.workloads, nothing.anchor) == ((), None)


def test_rows_before_and_after_the_mask_stage(plan):
    areas = {mask_id: [node.seqlen_q] * node.sample.num_packs for mask_id, node in plan.masks.items()}
    rows = list(base_rows(plan, areas))
    assert rows == [base_row(plan, case, areas[case.workload.mask_node.mask_id]) for case in plan.cases]
    table = to_table(Cell, rows)
    assert table.num_rows == len(plan.cases)
    varlen = next(row for row in rows if row.mask == "varlen_causal" and row.seqlen == 512 and row.pass_ == "bwd")
    assert (varlen.num_packs, varlen.mask_area) == (3, 3 * 512)
    assert varlen.flops == Decimal(4 * 3 * 512 * 8 * 64 * 5 // 2)
    ring = next(row for row in rows if row.strategy == "even_ring" and row.cp_size == 2)
    assert (ring.mesh, ring.seqlen, ring.seqlen_per_rank, ring.status) == ('{"degree":2}', 1024, 512, "skipped")
    assert (ring.reason_code, ring.reason, ring.source) == ("not_run", "not measured yet", "measured")
    assert all(row.mask_area is row.flops is None for row in base_rows(plan))
    with_env = next(row for row in rows if row.backend == "FAST")
    assert (with_env.env, with_env.kernel) == ('{"A":"1","B":"2"}', "any_kernel")


def test_plan_json_holds_each_fact_once_and_every_reference_resolves(plan):
    chunks = list(json_chunks(plan))
    assert max(map(len, chunks)) < 4096
    held = json.loads("".join(chunks))
    assert held["case_columns"] == list(CASE_COLUMNS)
    cases = [dict(zip(held["case_columns"], row, strict=True)) for row in held["cases"]]
    assert [case["case_id"] for case in cases] == [case.case_id for case in plan.cases]
    for row, case in zip(cases, plan.cases, strict=True):
        workload = held["workloads"][row["workload"]]
        mask = held["masks"][workload["mask"]]
        sample = held["samples"][mask["sample"]]
        assert (mask["mask"], sample["seqlen"]) == (case.workload.mask_node.mask, case.workload.mask_node.seqlen_q)
        asked = held["implementations"][row["implementation"]]
        assert (asked["kernel"], asked["strategy"]) == (case.implementation.kernel, case.implementation.strategy)
        assert held["envs"][row["env"]] == dict(case.env)
    assert len(held["implementations"]) == 3
    assert set(held["unsupported"]) == set(plan.unsupported)
    assert sorted(case for job in held["jobs"] for case in job["cases"]) == sorted(case["case_id"] for case in cases)
    assert held["collect"] == collect_id(case.case_id for case in plan.cases)
    assert sorted(held["samples"]) == sorted(plan.samples)


def test_full_graphs_in_dot_and_node_link_hold_every_node_and_edge(plan):
    text = "".join(dot_lines(plan))
    assert text.count(" -> ") == plan.graph.number_of_edges()
    assert text.count("[label=") == plan.graph.number_of_nodes()
    back = nx.node_link_graph(json.loads(json.dumps(node_link(plan))), edges="edges")
    assert set(back.nodes) == set(plan.graph.nodes)
    assert set(back.edges) == set(plan.graph.edges)
    assert all(back.nodes[key]["label"] for key in back)


def test_the_collapsed_graph_counts_every_case_in_every_stage(plan):
    stages = collapse(plan)
    for stage in STAGES:
        assert sum(group.cases for group in stages.groups[stage]) == len(plan.cases)
        assert sum(group.unsupported for group in stages.groups[stage]) == len(plan.unsupported)
    for stage in STAGES[:-1]:
        flows = [counts for (at, _, _), counts in stages.flows.items() if at == stage]
        assert sum(cases for cases, _ in flows) == len(plan.cases)
    assert [group.label for group in stages.groups["sample"]] == ["one document", "page × 3 packs"]
    assert [group.label for group in stages.groups["run"]] == ["any_kernel FAST", "one_slice", "even_ring (any_kernel)"]
    assert list(stages.groups["run"][2].notes) == ["1", "2"]


def test_the_picture_is_xml_and_its_cards_do_not_meet(plan):
    root = ElementTree.fromstring(draw_stages(plan))
    space = "{http://www.w3.org/2000/svg}"
    width, height = float(root.get("width")), float(root.get("height"))
    cards = [
        [float(rect.get(key)) for key in ("x", "y", "width", "height")]
        for rect in root.iter(f"{space}rect")
        if rect.get("rx")
    ]
    assert len(cards) == 2 + 3 + 3 + 1
    for x, y, wide, high in cards:
        assert x >= 0 and y >= 0 and x + wide <= width and y + high <= height
    for index, (x, y, _, high) in enumerate(cards):
        for other_x, other_y, _, other_high in cards[:index]:
            assert other_x != x or y >= other_y + other_high or other_y >= y + high
    words = "".join(root.itertext())
    assert "small" in words and "28 cases" in words and "unsupported" in words and "window 64" in words


def test_many_masks_are_folded_and_hostile_names_escaped():
    content = small_spec() | {"runner": 'a<b&"c'}
    windows = [{"sliding_window_causal": {"window": window}} for window in range(1, 41)]
    content["sweeps"] = [
        {"level": "kernel", "masks": windows, "seqlen": [64], "passes": "fwd", "kernels": ["any_kernel"]}
    ]
    with planning_toys():
        plan = compile_plan(Spec.model_validate(content))
    groups = collapse(plan).groups["mask"]
    assert (len(groups), groups[-1].label, groups[-1].cases) == (MAX_GROUPS, "25 more", 25)
    assert 'a<b&"c' in "".join(ElementTree.fromstring(draw_stages(plan)).itertext())


@settings(max_examples=40, deadline=None)
@given(
    seqlen=st.integers(64, 2**20),
    num_packs=st.integers(1, 20),
    share=st.fractions(min_value="1/64", max_value=1),
    name=st.sampled_from(["page", "pile", "prolong512k"]),
)
def test_expected_documents_fill_every_pack(seqlen, num_packs, share, name):
    packs = expected_documents(read_lengths(name), seqlen=seqlen, num_packs=num_packs, max_doc_fraction=share)
    assert [int(pack.sum()) for pack in packs] == [seqlen] * num_packs
    assert all(int(pack.min()) >= 1 and int(pack.max()) <= max(int(seqlen * share), 1) for pack in packs)


def test_many_packs_are_expected_as_soon_as_a_hundred():
    contents = [small_spec() for _ in range(2)]
    for content, num_packs in zip(contents, (100, 1_000_000), strict=True):
        content["data"]["num_packs"] = num_packs
    with planning_toys():
        few, many = (compile_plan(Spec.model_validate(content)) for content in contents)
        for one, other in zip(few.masks.values(), many.masks.values(), strict=True):
            times = other.sample.num_packs // one.sample.num_packs
            assert expected_area(many, other) == times * expected_area(few, one)


@pytest.mark.parametrize(("name", "seqlen"), [("page", 8192), ("page", 65536), ("pile", 65536)])
def test_expected_documents_are_near_what_is_drawn(name, seqlen):
    lengths = read_lengths(name)
    drawn = draw_packs(lengths, seqlen=seqlen, num_packs=100, max_doc_fraction=0.25, seed=1)
    typical = expected_documents(lengths, seqlen=seqlen, num_packs=100, max_doc_fraction=0.25)

    def squares(packs):
        return sum(float(np.square(pack, dtype=np.float64).sum()) for pack in packs)

    assert squares(typical) == pytest.approx(squares(drawn), rel=0.1)
    assert sum(map(len, typical)) == pytest.approx(sum(map(len, drawn)), rel=0.1)


def test_expected_areas_are_exact_without_documents(plan):
    for node in plan.masks.values():
        if node.mask == "full":
            assert expected_area(plan, node) == node.seqlen_q**2
        if node.mask == "varlen_causal":
            assert 0 < expected_area(plan, node) < 3 * node.seqlen_q**2 / 4


def test_tensor_bytes_at_64k_are_what_was_measured():
    content = small_spec()
    content["shape"] = {"batch": 1, "num_heads_q": 64, "num_heads_kv": 8, "head_dim": 128, "dtype": "bfloat16"}
    content["sweeps"] = [
        {"level": "kernel", "masks": ["full"], "seqlen": ["64K"], "passes": ["fwd", "bwd"], "kernels": ["any_kernel"]}
    ]
    with planning_toys():
        plan = compile_plan(Spec.model_validate(content))
    sizes = {case.pass_: tensor_bytes(case) for case in plan.cases}
    q = 65536 * 64 * 128 * 2
    lse = 65536 * 64 * 4
    assert sizes == {"fwd": 2 * q + 2 * q // 8 + lse, "bwd": 4 * q + 4 * q // 8 + lse}


def test_expectations_leave_out_what_cannot_run_and_time_needs_a_known_device(plan):
    unknown, known = expect(plan, tflops=None), expect(plan, tflops=100.0)
    assert unknown.device_s_least is None
    assert unknown.device_s_most == pytest.approx(
        sum(case.workload.mask_node.sample.num_packs for case in plan.cases if case.case_id not in plan.unsupported)
    )
    ranks = [case.cp_size for case in plan.cases if case.case_id not in plan.unsupported]
    assert 0 < known.device_s_least <= plan.measure.min_iters * known.flops_once / 1e14
    assert max(ranks) == 2
    assert known.largest is not None and known.largest.pass_ == "bwd"


def test_a_switch_is_a_column_and_part_of_the_name(plan):
    asked = dataclasses.replace(plan.cases[0].implementation, kernel_params={"copy": True, "block": 128})
    case = dataclasses.replace(plan.cases[0], implementation=asked)
    row = base_row(plan, case)
    assert row.kernel_params == '{"block":128,"copy":true}'
    kernel = " ".join(filter(None, (asked.kernel, asked.backend)))
    assert implementation_label(case) == f"{kernel} copy"
    assert f"{kernel} copy, " in case_title(case)
