"""The rehearsal of a spec: small, on the CPU, and as many-sided as the spec."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnspec import plugins
from attnspec.launch.rehearsal import rehearsal
from attnspec.plan import compile_plan
from attnspec.resources import shipped
from attnspec.spec import load_spec
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
        assert case.cp_size in (1, 2, 4)
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
