"""Jobs with strategies of libraries: one that is not there costs its own cases, one that is there is verified and timed."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys

import pytest
from rank_jobs import run_job_of
from ranks import RankPool
from test_rank_faults import outcomes, strategy
from worker_requests import case

from attnspec.launch.provenance import facts_of_workers


def library(name, kernel, pass_="fwd", **params):
    return case(kernel, pass_, name=f"{name} {pass_}", strategy=name, strategy_params=params)


@pytest.mark.slow
def test_a_library_that_is_not_there_is_unsupported_on_all_ranks(tmp_path):
    with RankPool(2) as pool:
        found, _ = outcomes(
            pool,
            tmp_path,
            library("te_p2p", "cudnn"),
            library("yunchang_usp", "fa2", "bwd"),
            strategy("ring_p2p", case_name="good"),
        )
    absent = "flash_attn" if importlib.util.find_spec("yunchang") else "yunchang"
    for name, package in (("te_p2p fwd", "transformer_engine"), ("yunchang_usp bwd", absent)):
        assert (found[name].status, found[name].reason_code) == ("unsupported", "missing_package")
        assert f"ModuleNotFoundError: No module named '{package}' (pip install" in found[name].reason
    assert found["good"].status == "ok"


def run_with_libraries(ranks, asked):
    from fakes import flash_attention, libraries
    from fakes.arithmetic import Log

    from attnspec import plugins

    libraries.install()
    flash_attention.install_flash_attn(pytest.MonkeyPatch(), Log())
    sys.modules["flash_attn.flash_attn_interface"].__version__ = "2.8.3"
    fa2 = plugins.load("kernels", "fa2")
    fa2.SUPPORT = dataclasses.replace(fa2.SUPPORT, devices=("cpu",), dtypes=("float32",), capability_min=None)
    return run_job_of(ranks, asked)


@pytest.mark.slow
def test_a_library_that_is_there_is_verified_and_timed_beside_ours(tmp_path, monkeypatch):
    monkeypatch.setattr("test_rank_faults.run_job_of", run_with_libraries)
    names = ("ring_flash_attn_zigzag", "ring_flash_attn_llama3")
    cases = [library(name, "fa2", pass_) for name in names for pass_ in ("fwd", "bwd")]
    refused = library("yunchang_usp", "fa2")
    with RankPool(2) as pool:
        found, journal = outcomes(pool, tmp_path, *cases, refused, strategy("ring_p2p", pass_="bwd", case_name="good"))
    for one in cases:
        outcome = found[one.case_id]
        assert outcome.status == "ok", outcome.reason
        assert (outcome.provider, outcome.exposed_comm_ms) == ("flash-attn", None)
        assert outcome.comm_bytes > 0
    assert found["good"].status == "ok"
    assert found["good"].exposed_comm_ms is not None
    assert (found[refused.case_id].status, found[refused.case_id].reason_code) == ("unsupported", "no_lowering")
    sent = facts_of_workers(journal)["communication"]
    assert set(sent) == {*(one.case_id for one in cases), "good"}
    assert sent["good"]["counted_bytes"] == sent["good"]["planned_bytes"]
    for one in cases:  # the stand-ins exchange otherwise than the libraries, which shows
        assert sent[one.case_id]["counted_bytes"][0] > 0
        assert sent[one.case_id]["calls"]["allreduce_"] > 0
        assert sent[one.case_id]["counted_bytes"] != sent[one.case_id]["planned_bytes"]
