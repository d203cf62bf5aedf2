"""Jobs split by image: each case in the first image that holds its kernel and strategy, ids of cases unchanged."""

from __future__ import annotations

import json

import pytest

from attnspec import plugins
from attnspec.cli._plan_text import plan_text
from attnspec.images.folder import find_image, image_names
from attnspec.launch.container_place import choices_of, plan_images
from attnspec.launch.runner_profile import load_runner
from attnspec.plan import Image, compile_plan, restrict
from attnspec.plan.document import json_chunks, read_images
from attnspec.plan.expect import expect
from attnspec.resources import shipped
from attnspec.spec import load_spec
from attnspec.support import Device

FIRST = Image(name="first", kernels=("sdpa", "fa2"), strategies=())
SECOND = Image(name="second", kernels=("sdpa", "fa3"), strategies=("ring_p2p",))
H100 = Device(type="cuda", capability=(9, 0))
SPEC = """\
attnspec: 1
name: split
shape: {num_heads_q: 8, num_heads_kv: 8, head_dim: 128, dtype: bfloat16}
sweeps:
  - {level: kernel, masks: [causal], seqlen: 1K, passes: [fwd], kernels: [sdpa, fa2, fa3, fa4]}
  - level: distributed
    masks: [causal]
    cp_size: 2
    seqlen_per_rank: 1K
    passes: [fwd]
    strategies: [ring_p2p: {kernel: sdpa}]
"""

ASKED = """\
attnspec: 1
name: asked
shape: {num_heads_q: 8, num_heads_kv: 8, head_dim: 128, dtype: bfloat16}
sweeps:
  - level: kernel
    masks: [causal]
    seqlen: 1K
    passes: [fwd]
    kernels:
      - fa2
      - fa2: {provider: torch}
      - fa2: {provider: flash-attn}
      - cudnn: {provider: transformer-engine}
"""
APART = """\
attnspec: 1
name: apart
shape: {num_heads_q: 8, num_heads_kv: 8, head_dim: 128, dtype: bfloat16}
sweeps:
  - level: kernel
    masks: [causal]
    seqlen: [1K, 2K]
    passes: [fwd]
    kernels: [sdpa, fa3: {provider: flash-attn-3}, fa3: {provider: xformers}, fa3, fa2: {provider: torch}]
  - level: distributed
    masks: [causal]
    cp_size: 2
    seqlen_per_rank: 1K
    passes: [fwd]
    strategies: [ring_p2p: {kernel: sdpa}, ring_p2p: {kernel: fa3, provider: xformers}]
"""
ELSEWHERE = ("transformer-engine", "flash-attn")


@pytest.fixture
def spec(tmp_path):
    (tmp_path / "split.yaml").write_text(SPEC)
    return load_spec(tmp_path / "split.yaml")


def asked(job):
    return [(case.implementation.strategy, case.implementation.kernel) for case in job.cases]


def test_each_case_goes_where_it_is_held(spec):
    plan = compile_plan(spec, device=H100, images=[FIRST, SECOND])
    assert [(job.image, job.world_size, asked(job)) for job in plan.jobs] == [
        ("first", 1, [(None, "sdpa"), (None, "fa2"), (None, "fa4")]),
        ("second", 1, [(None, "fa3")]),
        ("second", 2, [("ring_p2p", "sdpa")]),
    ]
    (why,) = plan.unsupported.values()
    assert why.reason_code == "missing_package"
    assert why.reason == "no image of the runner holds fa4; it has first, second"


def test_images_change_jobs_and_nothing_else(spec):
    plain, split = compile_plan(spec, device=H100), compile_plan(spec, device=H100, images=[FIRST, SECOND])
    assert [case.case_id for case in plain.cases] == [case.case_id for case in split.cases]
    assert {job.image for job in plain.jobs} == {None}
    assert not {job.job_id for job in plain.jobs} & {job.job_id for job in split.jobs}
    some = restrict(split, split.cases[:1])
    assert [job.job_id for job in some.jobs] == [split.jobs[0].job_id]


def test_a_provider_that_wants_a_process_of_its_own_is_a_job_of_its_own(tmp_path):
    (tmp_path / "split.yaml").write_text(APART)
    plan = compile_plan(load_spec(tmp_path / "split.yaml"), device=H100)
    assert [(job.apart, job.world_size, len(job.cases)) for job in plan.jobs] == [
        (None, 1, 8),
        ("fa3 xformers", 1, 2),
        (None, 2, 1),
        ("fa3 xformers", 2, 1),
    ]
    assert len({job.job_id for job in plan.jobs}) == 4
    kept = [case for case in plan.cases if case.implementation.provider == "xformers"]
    assert [job.job_id for job in restrict(plan, kept).jobs] == [job.job_id for job in plan.jobs if job.apart]


def test_an_image_of_unknown_contents_holds_everything(spec):
    plan = compile_plan(spec, device=H100, images=[Image(name="registry.example/a@sha256:1")])
    assert {job.image for job in plan.jobs} == {"registry.example/a@sha256:1"}
    assert plan.unsupported == {}


def test_the_plan_tells_its_images(spec):
    plan = compile_plan(spec, device=H100, images=[FIRST, SECOND])
    held = json.loads("".join(json_chunks(plan)))
    assert read_images(held) == (FIRST, SECOND)
    assert [job["image"] for job in held["jobs"]] == ["first", "second", "second"]
    text = "\n".join(plan_text(plan, spec, expect(plan, tflops=None), expected_device="x"))
    assert "1 rank  3 cases (1 unsupported) in first\n" in text


@pytest.mark.parametrize("name", ["h100_distributed", "b200_distributed"])
def test_the_clusters_images_hold_what_the_specs_ask(name, tmp_path):
    spec = load_spec(shipped("specs") / f"{name}.yaml")
    runner = load_runner(spec.runner, [shipped("runners")])
    assert runner.launcher == "slurm" and runner.slurm is not None and runner.slurm.container == "pyxis"
    assert runner.gpus_per_node * runner.nodes == 64
    images = plan_images(choices_of(runner, cwd=tmp_path, environ={"HOME": str(tmp_path)}))
    plan = compile_plan(spec, device=runner.expected_device(), images=images)
    assert {case.cp_size for case in plan.cases} == {8, 16, 32, 64}
    reasons = {why.reason for why in plan.unsupported.values()}
    assert not [reason for reason in reasons if reason.startswith("no image")]
    assert len({job.image for job in plan.jobs}) == 2


def test_a_provider_that_is_asked_for_chooses_the_image(tmp_path):
    (tmp_path / "asked.yaml").write_text(ASKED)
    wheels = Image(name="wheels", kernels=("fa2", "cudnn"), strategies=(), providers=("torch", "nvidia-cudnn-frontend"))
    source = Image(name="source", kernels=("fa2", "cudnn"), strategies=(), providers=("flash-attn",))
    plan = compile_plan(load_spec(tmp_path / "asked.yaml"), device=H100, images=[wheels, source])
    images = {
        (case.implementation.kernel, case.implementation.provider): job.image for job in plan.jobs for case in job.cases
    }
    assert images == {
        ("fa2", None): "wheels",
        ("fa2", "torch"): "wheels",
        ("fa2", "flash-attn"): "source",
        ("cudnn", "transformer-engine"): "wheels",  # the first, which nothing runs in
    }
    (why,) = plan.unsupported.values()
    assert why.reason == "no image of the runner holds cudnn from transformer-engine; it has wheels, source"
    assert read_images(json.loads("".join(json_chunks(plan)))) == (wheels, source)


def test_libraries_strategies_run_where_their_libraries_are(tmp_path):
    spec = load_spec(shipped("specs") / "h200_distributed.yaml")
    runner = load_runner("docker-h200", [shipped("runners")])
    images = plan_images(choices_of(runner, cwd=tmp_path, environ={"HOME": str(tmp_path)}))
    plan = compile_plan(spec, device=runner.expected_device(), images=images)
    assert not [why for why in plan.unsupported.values() if why.reason.startswith("no image")]
    found = {}
    for job in plan.jobs:
        for case in job.cases:
            found.setdefault((case.implementation.strategy, case.implementation.provider), set()).add(job.image)
    assert {image for (_, provider), held in found.items() if provider in ELSEWHERE for image in held} == {"hopper-te"}
    assert found["te_a2a", "transformer-engine"] == found["ring_flash_attn_llama3", None] == {"hopper-te"}
    assert found["yunchang_usp", None] == {"hopper-te"}
    assert found["ulysses", None] == {"hopper"}
    assert found["magi_attn_a2av", None] == {"hopper-magi"}


def test_image_folders_name_what_there_is():
    kernels = {name: plugins.load("kernels", name) for name in plugins.names("kernels")}
    providers = {one.name for kernel in kernels.values() for one in getattr(kernel, "PROVIDERS", ())}
    for name in image_names([shipped("containers")]):
        contents = find_image(name, [shipped("containers")]).contents()
        assert set(contents.kernels) <= kernels.keys()
        assert set(contents.strategies) <= set(plugins.names("strategies"))
        assert set(contents.providers or ()) <= providers
