"""--only: which cases it means, and what it refuses."""

from __future__ import annotations

import pytest
from planning import planning_toys, small_spec

from attnspec import compile_plan
from attnspec.errors import InputError
from attnspec.plan import count_nodes, parse_only, restrict, select
from attnspec.plan.select import KEYS
from attnspec.record.schema import Cell, column_names
from attnspec.spec import Spec


@pytest.fixture(scope="module")
def plan():
    with planning_toys():
        yield compile_plan(Spec.model_validate(small_spec()))


def chosen(plan, *texts):
    return select(plan.cases, parse_only(texts))


def test_keys_are_columns_of_cells():
    assert set(KEYS) <= set(column_names(Cell))


def test_nothing_asked_means_everything(plan):
    assert select(plan.cases, parse_only([])) == plan.cases


@pytest.mark.parametrize(
    ("texts", "count"),
    [
        (["mask=full"], 10),
        (["mask=full|varlen_causal"], 20),
        (["mask=full", "mask=varlen_causal"], 20),
        (["mask=full,seqlen=1K"], 5),
        (["mask=full,seqlen=1024,pass=bwd"], 2),
        (["kernel=any_kernel,level=kernel"], 12),
        (["strategy=none"], 24),
        (["strategy=even_ring,cp_size=2"], 2),
        (["seqlen_per_rank=0.5K"], 16),
        (["backend=FAST|none"], 28),
        ([" mask = full | varlen_causal , pass = fwd "], 12),
    ],
)
def test_what_is_chosen(plan, texts, count):
    cases = chosen(plan, *texts)
    assert len(cases) == count
    assert [case for case in plan.cases if case in cases] == list(cases)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mask", r"--only: got 'mask'; allowed: key=value\[\|value\.\.\]\[,key=value\.\.\]"),
        ("mask=", r"--only: got 'mask='; allowed: key=value"),
        ("mask=full|", r"got 'mask=full\|'"),
        ("", r"got ''"),
        ("mask=full,", r"got ''"),
        ("maks=full", r"--only: unknown key 'maks' \(did you mean 'mask'\?\); allowed: level, kernel, strategy,"),
        ("mask=ful", r"--only: no case has mask=ful \(did you mean 'full'\?\); allowed: full, varlen_causal, sliding"),
        ("backend=SLOW", r"allowed: FAST; or backend=none, which means cases whose spec names no backend \(where a "),
        (
            "provider=flash",
            r"provider=flash; allowed: provider=none, which means cases whose spec names no provider \(it ",
        ),
        ("strategy=usp", r"allowed: .*; or strategy=none, which means cases of level kernel"),
        ("seqlen=2K", r"--only: no case has seqlen=2K; allowed: 1024, 512"),
        ("seqlen=64k", r"--only: seqlen: got '64k': unknown suffix 'k'; write 64K"),
        ("cp_size=2,kernel=one_slice", r"--only cp_size=2,kernel=one_slice: no case has all of this"),
    ],
)
def test_what_is_refused(plan, text, message):
    with pytest.raises(InputError, match=message):
        chosen(plan, text)


def test_a_restricted_plan_holds_what_its_cases_need_and_keeps_ids(plan):
    part = restrict(plan, chosen(plan, "mask=varlen_causal,seqlen=1K,kernel=one_slice"))
    assert count_nodes(part) == {"sample": 1, "mask": 1, "run": 2, "collect": 1}
    assert {key for key in part.graph if not key.startswith("collect")} <= set(plan.graph)
    assert set(part.unsupported) == {case.case_id for case in part.cases}
    assert {job.job_id for job in part.jobs} <= {job.job_id for job in plan.jobs}
    assert len(part.graph) == 5
