"""The specs that come with attnspec: valid, in step with the JSON Schema, and exactly the published matrices."""

from __future__ import annotations

import csv
import itertools

import jsonschema
import pytest

from attnspec.resources import shipped
from attnspec.shape import Shape
from attnspec.spec import KernelSweep, Spec, load_spec
from attnspec.spec.schema import json_schema, schema_text
from attnspec.spec.yaml_text import parse_yaml

SPECS = sorted(shipped("specs").glob("*.yaml"))
PAGE_SHAPE = Shape(batch=1, num_heads_q=64, num_heads_kv=8, head_dim=128, dtype="bfloat16")


@pytest.fixture(scope="module")
def validator():
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_the_specs_of_the_design_are_there():
    assert {path.stem for path in SPECS} >= {
        "quickstart",
        "quickstart_distributed",
        *(f"{device}_{level}" for device in ("h100", "b200", "h200") for level in ("kernel", "distributed")),
    }


def test_the_schema_is_current():
    assert (shipped("specs") / "schema.json").read_text() == schema_text(), (
        "run: attnspec schema --out specs/schema.json"
    )


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_every_spec_is_valid_for_us_and_for_editors(path, validator):
    text = path.read_text()
    assert text.startswith("# yaml-language-server: $schema=schema.json\n")
    spec = load_spec(path)
    assert spec.name == path.stem
    assert spec.description
    assert spec.seed == 42
    assert [error.message for error in validator.iter_errors(parse_yaml(text).value)] == []
    assert [error.message for error in validator.iter_errors(spec.canonical())] == []


@pytest.mark.parametrize(
    "change",
    [
        {"seed": "1"},
        {"widnow": 1},
        {"attnspec": 2},
        {"name": "a b"},
        {"shape": {"num_heads_q": 8, "num_heads_kv": 2}},
        {"data": {"max_doc_fraction": True}},
        {"data": {"max_doc_fraction": 1.5}},
        {"data": {"max_doc_fraction": "a quarter"}},
        {"sweeps": []},
        {"sweeps": [{"level": "kernel", "masks": ["full"], "seqlen": "8k", "kernels": ["reference"]}]},
        {"sweeps": [{"level": "kernel", "masks": ["fulll"], "seqlen": "8K", "kernels": ["reference"]}]},
        {"sweeps": [{"level": "kernel", "masks": ["sliding_window"], "seqlen": "8K", "kernels": ["reference"]}]},
        {"sweeps": [{"level": "kernel", "masks": ["full"], "seqlen": "8K", "kernels": [{"sdpa": {"backend": "x"}}]}]},
        {"sweeps": [{"level": "kernel", "masks": ["full"], "seqlen": "8K", "kernels": [{"sdpa": {"env": {"A": 1}}}]}]},
        {
            "sweeps": [
                {"level": "kernel", "masks": ["full"], "seqlen": "8K", "kernels": [{"sdpa": {"env": {"RANK": "1"}}}]}
            ]
        },
        {
            "sweeps": [
                {"level": "kernel", "masks": ["full"], "seqlen": "8K", "kernels": [{"sdpa": {"env": {"A=B": "1"}}}]}
            ]
        },
        {
            "sweeps": [
                {"level": "kernel", "masks": [{"sliding_window": {"window": 0}}], "seqlen": "8K", "kernels": ["sdpa"]}
            ]
        },
        {"sweeps": [{"level": "kernel", "masks": ["full"], "seqlen": "8K", "kernels": ["reference"], "cp_size": 2}]},
    ],
)
def test_the_schema_refuses_what_we_refuse(validator, change):
    good = parse_yaml((shipped("specs") / "quickstart.yaml").read_text()).value
    assert list(validator.iter_errors({**good, **change})) != []


@pytest.mark.parametrize(
    "change",
    [
        {"data": {"max_doc_fraction": " 1 / 4 "}, "measure": {"ci": "2.5 %"}},
        {"data": {"max_doc_fraction": "0.25"}, "measure": {"ci": 1}},
        {
            "sweeps": [
                {
                    "level": "kernel",
                    "masks": [
                        {"prefix_lm_causal": {"prefix": 0}},
                        {"global_sliding_window": {"window": 1, "global_tokens": 0}},
                    ],
                    "seqlen": "8K",
                    "kernels": [{"sdpa": {"env": {"_A1": "08"}}}, {"sdpa": {"env": None}}],
                }
            ]
        },
    ],
)
def test_the_schema_takes_what_we_take(validator, change):
    changed = {**parse_yaml((shipped("specs") / "quickstart.yaml").read_text()).value, **change}
    Spec.model_validate(changed)
    assert [error.message for error in validator.iter_errors(changed)] == []


def asked(name: str) -> set[tuple[object, ...]]:
    """(mask, pass, implementation, seqlen or cp_size) of every case of a shipped spec."""
    cases = set()
    for sweep in load_spec(shipped("specs") / f"{name}.yaml").sweeps:
        for values in itertools.product(*sweep.axes.values()):
            case = dict(zip(sweep.axes, values, strict=True))
            if not any(exclude.matches(case) for exclude in sweep.exclude):
                size = case["seqlen"] if isinstance(sweep, KernelSweep) else case["cp_size"]
                item = case["kernels" if isinstance(sweep, KernelSweep) else "strategies"]
                key = (case["masks"].name, case["passes"], item.name, size)
                assert key not in cases, key
                cases.add(key)
    return cases


def published(level: str, device: str) -> set[tuple[object, ...]]:
    """The same of every bar or X that the page shows."""
    size = "seqlen" if level == "kernel" else "cp_size"
    name = "kernel" if level == "kernel" else "strategy"
    with (shipped("data") / "published" / "tflops.csv").open(newline="") as stream:
        return {
            (row["mask"], row["pass"], row[name], int(row[size]))
            for row in csv.DictReader(stream)
            if (row["level"], row["device"]) == (level, device) and row["status"] != "not_shown"
        }


@pytest.mark.parametrize("device", ["h100", "b200"])
def test_kernel_specs_are_the_published_matrix(device):
    cases = asked(f"{device}_kernel")
    # The page's text goes to 64K, its figures to 32K.
    assert {case for case in cases if case[3] != 65536} == published("kernel", device)
    assert {case[:3] for case in cases if case[3] == 65536} == {case[:3] for case in cases}


@pytest.mark.parametrize("device", ["h100", "b200"])
def test_distributed_specs_are_the_published_matrix(device):
    assert asked(f"{device}_distributed") == published("distributed", device)


@pytest.mark.parametrize(
    ("name", "lengths", "num_packs", "params"),
    [
        ("h100_kernel", [1024 * 2**n for n in range(7)], 4, {"window": 1024, "block": 2048}),
        ("b200_kernel", [1024 * 2**n for n in range(7)], 4, {"window": 1024, "block": 512}),
        ("h100_distributed", [8192], 20, {}),
        ("b200_distributed", [16384], 20, {}),
    ],
)
def test_the_settings_are_the_pages(name, lengths, num_packs, params):
    spec = load_spec(shipped("specs") / f"{name}.yaml")
    (sweep,) = spec.sweeps
    assert spec.shape == PAGE_SHAPE
    assert (str(spec.data.max_doc_fraction), spec.num_packs(sweep)) == ("1/4", num_packs)
    assert list(sweep.seqlen if isinstance(sweep, KernelSweep) else sweep.seqlen_per_rank) == lengths
    assert {key: value for mask in sweep.masks for key, value in mask.params.items() if key != "seqlen_k"} == params


@pytest.mark.parametrize(
    ("device", "kernel", "magi_kernel", "more"),
    [("h100", "fa3", "ffa", {}), ("b200", "cudnn", "ffa_fa4", {"MAGI_ATTENTION_FA4_BACKEND": "1"})],
)
def test_strategies_have_the_pages_kernels_degrees_and_environment(device, kernel, magi_kernel, more):
    (sweep,) = load_spec(shipped("specs") / f"{device}_distributed.yaml").sweeps
    magi = {
        "CUDA_DEVICE_MAX_CONNECTIONS": "8",
        "MAGI_ATTENTION_HIERARCHICAL_COMM": "0",
        "NCCL_CGA_CLUSTER_SIZE": "1",
        "TORCH_NCCL_HIGH_PRIORITY": "1",
        **more,
    }
    for item in sweep.strategies:
        asked_for = item.implementation
        if item.name.startswith("magi_attn"):
            native = {"MAGI_ATTENTION_NATIVE_GRPCOLL": "1"} if item.name == "magi_attn_native" else {}
            assert (asked_for.kernel, dict(item.env)) == (magi_kernel, {**magi, **native})
        else:
            assert (asked_for.kernel, dict(item.env)) == (kernel, {})
    windows = {
        (cp_size, item.implementation.strategy_params["window"])
        for cp_size in sweep.cp_size
        for item in sweep.strategies
        if item.name == "loongtrain"
        and not sweep.excludes(
            mask=sweep.masks[0], cp_size=cp_size, seqlen_per_rank=sweep.seqlen_per_rank[0], pass_="fwd", item=item
        )
    }
    assert windows == {(8, 1), (16, 1), (32, 2), (64, 2)}
    degrees = [
        i.implementation.strategy_params["ulysses_degree"] for i in sweep.strategies if i.name in ("usp", "loongtrain")
    ]
    assert degrees == [8, 8, 8]
