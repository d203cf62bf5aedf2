"""What goes wrong on one rank: one outcome for all, nobody waits in vain, and the job goes on."""

from __future__ import annotations

import dataclasses

import pytest
from rank_jobs import distributed_request, distributed_workload, run_job_of
from ranks import RankPool
from worker_requests import QUICK, case

from attnspec.launch.provenance import facts_of_workers
from attnspec.record.journal import read_journal

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pool():
    with RankPool(2) as made:
        yield made


def strategy(name, fault=None, pass_="fwd", rank=1, case_name=None, **params):
    label = case_name or f"{name} {fault} {pass_} {rank}"
    if fault is None:
        return case("reference", pass_, name=label, strategy=name, strategy_params=params)
    kernel = {"kernel_params": {"fault": fault, "rank": rank}}
    return case("faulty_rank", pass_, name=label, strategy=name, strategy_params=params, **kernel)


SIX_CALLS_AT_LEAST = dataclasses.replace(QUICK, min_iters=6)
"""Timed calls alone are enough for a fault in the sixth call, however few warm-ups a slow machine makes."""


def outcomes(pool, folder, *cases, measure=QUICK, **given):
    asked = distributed_request(folder, distributed_workload(folder, cases, **given), measure=measure)
    heard, *others = pool.run(run_job_of, asked)
    assert not any(others)
    journal = read_journal(folder / "journal")
    found = {one.case_id: one for one in journal.outcomes}
    assert sorted(event.case_id for event in heard if event.kind == "outcome") == sorted(one.case_id for one in cases)
    assert len(journal.outcomes) == len(cases)
    assert [event.kind for event in heard][:: len(heard) - 1] == ["hello", "bye"]
    return found, journal


FAULTS = [
    ("raise:forward", "fwd", "error", "exception", "rank 1: RuntimeError: the library says no"),
    ("raise:backward", "bwd", "error", "exception", "rank 1: RuntimeError: the library says no"),
    ("oom:forward", "fwd", "oom", "host_memory", "rank 1: MemoryError: no memory here"),
    ("oom:backward", "bwd", "oom", "host_memory", "rank 1: MemoryError: no memory here"),
    ("no_lowering", "fwd", "unsupported", "no_lowering", "no call expresses these slices"),
    ("wrong", "fwd", "wrong", "mask_probe", "expected"),
]


@pytest.mark.parametrize("name", ["ring_p2p", "ulysses", "ring_allgather", "hybrid_dcp"])
def test_a_fault_on_one_rank_is_one_outcome_and_the_others_go_on(pool, tmp_path, name):
    bad = [strategy(name, fault, pass_) for fault, pass_, *_ in FAULTS]
    found, journal = outcomes(pool, tmp_path, *bad, strategy(name, case_name="good"))
    for one, (_, _, status, code, words) in zip(bad, FAULTS, strict=True):
        outcome = found[one.case_id]
        assert (outcome.status, outcome.reason_code) == (status, code), outcome.reason
        assert words in outcome.reason
    assert found["good"].status == "ok"
    ranks = {row["rank"] for row in journal.timings.to_pylist() if row["case_id"] == "good"}
    assert ranks == {0, 1}


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("name", "verified"), [("ring_p2p", 2), ("ulysses", 4)])
def test_a_rank_that_fails_while_it_is_timed_still_serves_the_others(pool, tmp_path, name, verified, rank):
    late = strategy(name, f"raise:forward:{verified + 1}", rank=rank)
    good = strategy(name, case_name="good")
    found, _ = outcomes(pool, tmp_path, late, good)
    assert found[late.case_id].status == "error"
    assert f"rank {rank}: RuntimeError: the library says no" in found[late.case_id].reason
    assert found[late.case_id].verified_error is not None
    assert found["good"].status == "ok"


OPERATORS = {"ring_p2p": {"send"}, "ring_allgather": {"_allgather_base_", "_reduce_scatter_base_"}, "ulysses": {"send"}}


def test_what_is_sent_is_measured_of_every_case_and_as_planned(pool, tmp_path):
    cases = [
        strategy(name, pass_=pass_, case_name=f"{name} {pass_}")
        for name in OPERATORS
        for pass_ in ("fwd", "bwd", "fwd_bwd")
    ]
    found, journal = outcomes(pool, tmp_path, *cases)
    kept = facts_of_workers(journal)["communication"]
    assert set(kept) == {one.case_id for one in cases}
    for case_id, sent in kept.items():
        assert sent["counted_bytes"] == sent["planned_bytes"] == [found[case_id].comm_bytes]
        assert found[case_id].comm_bytes > 0
        assert set(sent["calls"]) <= OPERATORS[case_id.split()[0]]
        assert sent["not_counted"] == []


def test_a_pack_that_is_tried_twice_counts_once(pool, tmp_path):
    packs = ((23, 41), (9, 55), (5, 59))
    twice, twin = strategy("ring_p2p", "once:forward:6"), strategy("ring_p2p", case_name="twin")
    found, journal = outcomes(pool, tmp_path, twice, twin, docs=packs, measure=SIX_CALLS_AT_LEAST)
    again, once = found[twice.case_id], found["twin"]
    assert again.status == once.status == "ok"
    assert any("trying alone" in note.data["text"] for note in journal.notes if note.kind == "message")
    for told in ("padding_tokens", "load_imbalance", "comm_bytes", "mesh", "verified_error"):
        assert getattr(again, told) == getattr(once, told), told
    assert once.padding_tokens == sum(-length % 4 for pack in packs for length in pack)
    taken = [
        tuple(row[name] for name in ("case_id", "pack", "rank", "round", "iteration"))
        for row in journal.timings.to_pylist()
    ]
    assert len(set(taken)) == len(taken)


def test_packs_add_up(pool, tmp_path):
    packs = ((24, 40), (9, 55), (64,))
    found, journal = outcomes(pool, tmp_path, strategy("ring_p2p", pass_="bwd"), docs=packs)
    (one,) = found.values()
    assert one.status == "ok"
    assert one.padding_tokens == sum(-length % 4 for pack in packs for length in pack)
    assert one.mesh == '{"ring_degree":2,"ulysses_degree":1}'
    assert 1 <= one.load_imbalance < 1.2
    assert one.comm_bytes == 2 * max(sum(-(-length // 4) * 2 for length in pack) for pack in packs) * 4 * 16 * 4
    assert one.exposed_comm_ms is not None
    assert one.exposed_comm_ms >= 0
    sent = [note.data for note in journal.notes if note.kind == "communication"]
    assert [note["pack"] for note in sent] == [0, 1, 2]
    assert all(note["case_id"] == one.case_id and note["counted_bytes"] == note["planned_bytes"] for note in sent)
    assert max(note["counted_bytes"] for note in sent) == one.comm_bytes
    assert all(set(note["calls"]) == {"send"} and note["not_counted"] == [] for note in sent)
    (kept,) = facts_of_workers(journal)["communication"].values()
    assert kept["packs"] == [0, 1, 2]
    assert kept["counted_bytes"] == kept["planned_bytes"] == [note["planned_bytes"] for note in sent]
    (links, *_) = [note.data for note in journal.notes if note.kind == "bandwidth"]
    assert links["num_ranks"] == 2
    assert all(rate > 0 for one in links["rates"] for rate in one.values())
    rows = journal.timings.to_pylist()
    for pack in range(len(packs)):
        taken = [
            {(row["round"], row["iteration"]) for row in rows if (row["pack"], row["rank"]) == (pack, rank)}
            for rank in (0, 1)
        ]
        assert taken[0] == taken[1]
        assert len(taken[0]) >= 2
