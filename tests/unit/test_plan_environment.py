"""Environment variables that a strategy needs, asked while planning: the case's own, else the runner's."""

from __future__ import annotations

import json

import pytest

from attnspec import compile_plan, plugins
from attnspec.cli.main import exit_code
from attnspec.errors import UnsupportedError
from attnspec.plan import base_rows
from attnspec.spec import Spec
from attnspec.support import Device
from attnspec.wire import Implementation, JobRequest, Measure
from attnspec.worker.identity import check_variables

NATIVE, FA4 = "MAGI_ATTENTION_NATIVE_GRPCOLL", "MAGI_ATTENTION_FA4_BACKEND"


def content(name, kernel="ffa", env=None):
    return {
        "attnspec": 1,
        "name": "magi",
        "runner": "local",
        "shape": {"batch": 1, "num_heads_q": 8, "num_heads_kv": 2, "head_dim": 64, "dtype": "bfloat16"},
        "sweeps": [
            {
                "level": "distributed",
                "masks": ["causal"],
                "cp_size": [2],
                "seqlen_per_rank": 1024,
                "passes": ["fwd"],
                "strategies": [{name: {"kernel": kernel, "env": env or {}}}],
            }
        ],
    }


def refused(name, kernel, env, runner_env):
    plan = compile_plan(Spec.model_validate(content(name, kernel, env)), env=runner_env)
    assert len(plan.cases) == 1
    return [(why.reason_code, why.reason) for why in plan.unsupported.values()]


@pytest.mark.parametrize(
    ("name", "kernel", "env", "runner_env", "words"),
    [
        ("magi_attn_native", "ffa", {}, {}, f'{{{NATIVE}: "1"}} in the spec or runner; it is not set'),
        ("magi_attn_native", "ffa", {NATIVE: "0"}, {NATIVE: "1"}, f'{{{NATIVE}: "1"}} in the spec or runner; got "0"'),
        ("magi_attn_native", "ffa", {NATIVE: "0"}, None, f'{{{NATIVE}: "1"}} in the spec or runner; got "0"'),
        ("magi_attn_a2av", "ffa", {}, {NATIVE: "1"}, f'{{{NATIVE}: "0"}} in the spec or runner; got "1"'),
        ("magi_attn_a2av", "ffa_fa4", {}, {}, f'{{{FA4}: "1"}} in the spec or runner; it is not set'),
        ("magi_attn_a2av", "ffa", {FA4: "1"}, {}, f'{{{FA4}: "0"}} in the spec or runner; got "1"'),
    ],
)
def test_an_environment_that_does_not_let_a_strategy_run_is_refused_while_planning(
    name, kernel, env, runner_env, words
):
    assert refused(name, kernel, env, runner_env) == [("backend", f"{name} with {kernel} needs env: {words}")]


@pytest.mark.parametrize(
    ("name", "kernel", "env", "runner_env"),
    [
        ("magi_attn_native", "ffa", {NATIVE: "1"}, {}),
        ("magi_attn_native", "ffa", {}, {NATIVE: "1"}),
        ("magi_attn_native", "ffa", {NATIVE: "1"}, {NATIVE: "0"}),
        ("magi_attn_native", "ffa", {}, None),
        ("magi_attn_a2av", "ffa", {}, {}),
        ("magi_attn_a2av", "ffa", {NATIVE: "0", FA4: "0"}, {}),
        ("magi_attn_a2av", "ffa_fa4", {FA4: "1"}, {}),
    ],
)
def test_what_the_case_or_the_runner_sets_counts_and_what_nobody_looked_at_is_no_ground(name, kernel, env, runner_env):
    assert refused(name, kernel, env, runner_env) == []


def test_a_ground_that_lies_deeper_goes_first_and_the_row_is_kept():
    plan = compile_plan(Spec.model_validate(content("magi_attn_native")), device=Device(type="cpu"), env={})
    (row,) = base_rows(plan)
    assert (row.status, row.reason_code) == ("unsupported", "device")


def test_the_command_takes_the_variables_of_the_runner(tmp_path, capsys):
    spec, runner = tmp_path / "magi.yaml", tmp_path / "native.yaml"
    spec.write_text(json.dumps(content("magi_attn_native")))
    runner.write_text(f'{{launcher: local, env: {{{NATIVE}: "1"}}}}')
    found = []
    for given in ([], ["--runner", str(runner)]):
        assert exit_code(["plan", str(spec), "--json", *given]) == 0
        found.append([one["reason"] for one in json.loads(capsys.readouterr().out)["unsupported"]])
    assert found[0] == [f'magi_attn_native with ffa needs env: {{{NATIVE}: "1"}} in the spec or runner; it is not set']
    assert found[1] == []


def test_variables_are_said_for_every_kernel_that_a_strategy_runs():
    told = {
        name: module
        for name in plugins.names("strategies")
        if hasattr(module := plugins.load("strategies", name), "variables")
    }
    assert set(told) == {"magi_attn_native", "magi_attn_a2av"}
    for module in told.values():
        for kernel in module.KERNELS:
            assert set(module.variables(kernel).values()) <= {"0", "1"}


@pytest.mark.parametrize("name", ["magi_attn_native", "magi_attn_a2av"])
@pytest.mark.parametrize("kernel", ["ffa", "ffa_fa4"])
@pytest.mark.parametrize("fa4", [None, "", "0", "1"])
@pytest.mark.parametrize("collectives", [None, "", "0", "1"])
def test_planning_and_worker_want_the_same(name, kernel, fa4, collectives):
    env = {variable: value for variable, value in {FA4: fa4, NATIVE: collectives}.items() if value is not None}
    asked = JobRequest(
        job_id="j", attempt=1, run_dir="/r", device="cpu", world_size=2, env=env, measure=Measure(), workloads=()
    )
    try:
        check_variables(asked, Implementation(kernel=kernel, strategy=name), env)
        taken = True
    except UnsupportedError:
        taken = False
    assert (refused(name, kernel, env, {}) == []) == taken
