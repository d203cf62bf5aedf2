"""Specs: what is allowed and what it means; what is not, with the message and the path."""

from __future__ import annotations

import copy
import dataclasses
from fractions import Fraction

import pytest
from pydantic import ValidationError

from attnspec.catalog import names
from attnspec.catalog.findings import dotted, findings_of
from attnspec.flops import attention_flops
from attnspec.shape import Shape
from attnspec.spec import DistributedSweep, KernelSweep, Spec
from attnspec.spec.models import ShapeSection
from attnspec.wire import Implementation, Measure

pytestmark = pytest.mark.usefixtures("toys")

BASE = {
    "attnspec": 1,
    "name": "small",
    "shape": {"num_heads_q": 8, "num_heads_kv": 2, "head_dim": 64},
    "sweeps": [
        {
            "level": "kernel",
            "masks": ["full", "causal"],
            "seqlen": ["1K", 2048],
            "kernels": ["toy_kernel", "toy_plain"],
        },
        {
            "level": "distributed",
            "masks": ["causal"],
            "cp_size": [2, 4],
            "seqlen_per_rank": "1K",
            "strategies": [{"toy_ring": {"kernel": "toy_plain"}}, "toy_bound"],
        },
    ],
}


def changed(path: str, value: object) -> dict[str, object]:
    """BASE with one value replaced; `...` takes it out."""
    spec = copy.deepcopy(BASE)
    *around, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    held: object = spec
    for part in around:
        held = held.setdefault(part, {}) if isinstance(held, dict) else held[part]
    if value is ...:
        del held[last]
    else:
        held[last] = value
    return spec


def problems(spec: object) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        Spec.model_validate(spec)
    return [": ".join(filter(None, (dotted(one.loc), one.message))) for one in findings_of(caught.value)]


def test_a_spec_has_every_default_filled():
    spec = Spec.model_validate(BASE)
    assert (spec.runner, spec.seed, spec.description) == ("local", 42, "")
    assert spec.shape == Shape(batch=1, num_heads_q=8, num_heads_kv=2, head_dim=64, dtype="bfloat16")
    assert (spec.data.lengths, spec.data.max_doc_fraction) == ("page", Fraction(1, 4))
    assert spec.measure == Measure()
    kernel, distributed = spec.sweeps
    assert isinstance(kernel, KernelSweep)
    assert isinstance(distributed, DistributedSweep)
    assert (kernel.seqlen, kernel.passes) == ((1024, 2048), ("fwd", "bwd"))
    assert (distributed.cp_size, distributed.seqlen_per_rank) == ((2, 4), (1024,))
    assert [spec.num_packs(sweep) for sweep in spec.sweeps] == [4, 20]
    assert kernel.kernels[0].implementation == Implementation(
        kernel="toy_kernel",
        kernel_params={"block": 128, "stages": 2, "ratio": 0.5, "tiles": [64, 64], "copy": False},
    )
    ring, bound = distributed.strategies
    assert ring.implementation == Implementation(kernel="toy_plain", strategy="toy_ring", strategy_params={"window": 1})
    assert (bound.name, bound.implementation.kernel) == ("toy_bound", "toy_kernel")


def test_num_packs_given_counts_for_both_levels():
    spec = Spec.model_validate(changed("data.num_packs", 3))
    assert [spec.num_packs(sweep) for sweep in spec.sweeps] == [3, 3]


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("attnspec", ..., "attnspec: is missing (Version of the spec format)"),
        ("attnspec", True, "attnspec: got true; allowed: 1, the version of the spec format"),
        ("attnspec", 1.0, "attnspec: got 1.0; allowed: 1, the version of the spec format"),
        ("attnspec", 2, "attnspec: got 2; allowed: 1, the version of the spec format"),
        ("name", ..., "name: is missing (Short name that the plan carries; the run's folder is named after the spec's file)"),
        ("name", "../x", "name: got '../x'; allowed: up to 100 letters, digits, '.', '_' and '-', a letter or digit first"),
        ("name", 7, 'name: got 7; allowed: text; write it in quotes: "7"'),
        ("name", "x\n", "name: got 'x\\n'; allowed: up to 100 letters, digits, '.', '_' and '-', a letter or digit first"),
        ("description", 8, 'description: got 8; allowed: text; write it in quotes: "8"'),
        ("runner", "", "runner: got ''; allowed: text"),
        ("seed", -1, "seed: got -1; allowed: at least 0"),
        ("seed", True, "seed: got true; allowed: an integer"),
        ("seed", 1000.0, "seed: got 1000.0; allowed: an integer"),
        ("seed", "1_000", "seed: got '1_000'; allowed: an integer"),
        ("seed", 2**63, f"seed: got {2**63}; allowed: at most {2**63 - 1}"),
        ("seed", 10**30, f"seed: got {10**30}; allowed: at most {2**63 - 1}"),
        ("shape", ..., "shape: is missing (Sizes shared by all tensors)"),
        ("shape", None, "shape: got null; allowed: a mapping with batch, num_heads_q, num_heads_kv, head_dim, dtype"),
        ("shape.head_dim", "yes", "shape.head_dim: got 'yes'; allowed: an integer"),
        ("shape.head_dim", True, "shape.head_dim: got true; allowed: an integer"),
        ("shape.head_dim", "64", "shape.head_dim: got '64'; allowed: an integer"),
        ("shape.head_dim", 64.0, "shape.head_dim: got 64.0; allowed: an integer"),
        ("shape.head_dim", 64.5, "shape.head_dim: got 64.5; allowed: an integer"),
        ("shape.head_dim", [64, 128], "shape.head_dim: got a list; allowed: an integer"),
        ("shape.head_dim", 0, "shape.head_dim: got 0; allowed: at least 1"),
        ("shape.head_dm", 64, "shape.head_dm: unknown key 'head_dm' (did you mean 'head_dim'?); allowed: batch, num_heads_q, num_heads_kv, head_dim, dtype"),
        ("shape.dtype", "bf16", "shape.dtype: got 'bf16' (did you mean 'bfloat16'?); allowed: bfloat16, float16, float32, float64"),
        ("shape.num_heads_kv", 0, "shape.num_heads_kv: got 0; allowed: at least 1"),
        ("shape.num_heads_kv", 3, "shape.num_heads_kv: got 3; allowed: a divisor of num_heads_q (8 % 3 = 2)"),
        ("shape.num_heads_kv", 16, "shape.num_heads_kv: got 16; allowed: a divisor of num_heads_q (8 % 16 = 8)"),
        ("data.max_doc_fraction", 0, "data.max_doc_fraction: got 0; allowed: a share over 0 and at most 1, such as 1/4, 0.25 or 25%"),
        ("data.max_doc_fraction", True, "data.max_doc_fraction: got true; allowed: a share over 0 and at most 1, such as 1/4, 0.25 or 25%"),
        ("data.num_packs", 0, "data.num_packs: got 0; allowed: at least 1"),
        ("data.lengths", 7, 'data.lengths: got 7; allowed: text; write it in quotes: "7"'),
        ("measure.min_iters", 0, "measure.min_iters: got 0; allowed: at least 1"),
        ("measure.min_iters", -1, "measure.min_iters: got -1; allowed: at least 1"),
        ("measure.max_seconds", 0, "measure.max_seconds: got 0; allowed: over 0"),
        ("measure.max_seconds", "200ms", "measure.max_seconds: got '200ms'; allowed: a number of seconds, such as 0.2"),
        ("measure.setup_timeout_s", True, "measure.setup_timeout_s: got true; allowed: a number of seconds, such as 0.2"),
        ("measure.max_seconds", float("nan"), "measure.max_seconds: got nan; allowed: a finite number"),
        ("measure.ci", "2 percent", "measure.ci: got '2 percent'; allowed: a share over 0 and at most 1, such as 1/4, 0.25 or 25%"),
        ("sweep", [], "sweep: unknown key 'sweep' (did you mean 'sweeps'?); allowed: attnspec, name, description, runner, seed, shape, data, sweeps, measure"),
        ("on", 1, "on: unknown key 'on'; allowed: attnspec, name, description, runner, seed, shape, data, sweeps, measure"),
        ("sweeps", [], "sweeps: is empty; allowed: a list of sweeps, each with its level: kernel, distributed"),
        ("sweeps", {"level": "kernel"}, "sweeps: got a mapping; allowed: a list of sweeps, each with its level: kernel, distributed"),
        ("sweeps.0", 5, "sweeps[0]: got 5; allowed: a mapping with level, masks and so on"),
        ("sweeps.0.level", ..., "sweeps[0].level: is missing; allowed: kernel, distributed"),
        ("sweeps.0.level", "kernels", "sweeps[0].level: got 'kernels' (did you mean 'kernel'?); allowed: kernel, distributed"),
        ("sweeps.0.level", ["kernel"], "sweeps[0].level: got a list; allowed: kernel, distributed"),
        ("sweeps.0.cp_size", 2, "sweeps[0].cp_size: unknown key 'cp_size'; allowed: level, masks, seqlen, passes, kernels, exclude"),
        ("sweeps.0.seqlen", ..., "sweeps[0].seqlen: is missing (Total tokens of a pack, such as 8K or [1K, 2K])"),
        ("sweeps.0.seqlen", [], "sweeps[0].seqlen: is empty; allowed: one value or more"),
        ("sweeps.0.seqlen", [1024, "1K"], "sweeps[0].seqlen[1]: '1K' is given twice as 1024"),
        ("sweeps.0.seqlen", "64k", "sweeps[0].seqlen: got '64k': unknown suffix 'k'; write 64K; allowed: a positive integer, or one with the suffix K (1024) or M (1048576) such as 64K, 1.5K, 1M"),
        ("sweeps.0.seqlen", ["1,024"], "sweeps[0].seqlen[0]: got '1,024'; allowed: a positive integer, or one with the suffix K (1024) or M (1048576) such as 64K, 1.5K, 1M"),
        ("sweeps.0.seqlen", [True], "sweeps[0].seqlen[0]: got true; allowed: a positive integer, or one with the suffix K (1024) or M (1048576) such as 64K, 1.5K, 1M"),
        ("sweeps.0.seqlen", [1024.0], "sweeps[0].seqlen[0]: got 1024.0; allowed: a positive integer, or one with the suffix K (1024) or M (1048576) such as 64K, 1.5K, 1M"),
        ("sweeps.0.passes", ["fwd", "fwd"], "sweeps[0].passes[1]: 'fwd' is given twice"),
        ("sweeps.0.passes", "forward", "sweeps[0].passes: got 'forward' (did you mean 'fwd'?); allowed: fwd, bwd, fwd_bwd"),
        ("sweeps.0.masks", "full", "sweeps[0].masks: got 'full'; allowed: a list of masks, of " + ", ".join(names("masks"))),
        ("sweeps.0.masks", False, "sweeps[0].masks: got false; allowed: a list of masks, of " + ", ".join(names("masks"))),
        ("sweeps.0.masks", [["full"]], "sweeps[0].masks[0]: got a list; allowed: the name of a mask, alone or with settings as `name: {setting: value}`"),
        ("sweeps.0.masks", [{}], "sweeps[0].masks[0]: got a mapping; allowed: the name of a mask, alone or with settings as `name: {setting: value}`"),
        ("sweeps.0.masks", ["full", {"full": None}], "sweeps[0].masks[1]: is given twice: the same as item 0"),
        ("sweeps.0.masks", [{"full": {"seqlen_k": "2K"}}, {"full": {"seqlen_k": 2048}}], "sweeps[0].masks[1]: is given twice: the same as item 0"),
        ("sweeps.0.masks", [{"full": 5}], "sweeps[0].masks[0].full: got 5; allowed: a mapping of settings"),
        ("sweeps.0.masks", ["sliding_window_causal"], "sweeps[0].masks[0].window: is missing (Keys that a query sees, its own included)"),
        ("sweeps.0.masks", [{"sliding_window_causal": {"widnow": 128}}], "sweeps[0].masks[0].sliding_window_causal.widnow: unknown key 'widnow' (did you mean 'window'?); allowed: window"),
        ("sweeps.0.masks", [{"sliding_window_causal": {"window": 0}}], "sweeps[0].masks[0].sliding_window_causal.window: got 0; allowed: at least 1"),
        ("sweeps.0.masks", [{"sliding_window_causal": {"window": "0K"}}], "sweeps[0].masks[0].sliding_window_causal.window: got '0K'; allowed: a positive integer, or one with the suffix K (1024) or M (1048576) such as 64K, 1.5K, 1M, at most 2**62"),
        ("sweeps.0.masks", [{"prefix_lm_causal": {"prefix": "-1"}}], "sweeps[0].masks[0].prefix_lm_causal.prefix: got '-1'; allowed: an integer of 0 or more, or one with the suffix K (1024) or M (1048576) such as 64K, 1.5K, 1M"),
        ("sweeps.0.masks", [{"prefix_lm_causal": {"prefix": -1}}], "sweeps[0].masks[0].prefix_lm_causal.prefix: got -1; allowed: at least 0"),
        ("sweeps.0.masks", [{"sliding_window_causal": {"window": [512, 1024]}}], "sweeps[0].masks[0].sliding_window_causal.window: got a list; allowed: one value. To measure several, repeat the item with each"),
        ("sweeps.0.kernels", ["toy_kernle"], "sweeps[0].kernels[0]: unknown kernel: got 'toy_kernle' (did you mean 'toy_kernel'?); allowed: "),
        ("sweeps.0.kernels", [8], "sweeps[0].kernels[0]: unknown kernel: got 8; allowed: "),
        ("sweeps.0.kernels", [{"toy_plain": None, "toy_kernel": None}], "sweeps[0].kernels[0]: got 2 keys in one item (toy_plain, toy_kernel); allowed: one name; start each with '- '"),
        ("sweeps.0.kernels", [{"toy_kernel": None, "backend": "FAST"}], "sweeps[0].kernels[0]: got 2 keys in one item (toy_kernel, backend); allowed: one name; indent what belongs to toy_kernel deeper"),
        ("sweeps.0.kernels", [{"toy_kernel": {"backend": "fast"}}], "sweeps[0].kernels[0].toy_kernel.backend: got 'fast'; allowed: FAST, SLOW"),
        ("sweeps.0.kernels", [{"toy_plain": {"backend": "FAST"}}], "sweeps[0].kernels[0].toy_plain.backend: got 'FAST'; kernel toy_plain has no backends"),
        ("sweeps.0.kernels", [{"toy_kernel": {"provider": "hre"}}], "sweeps[0].kernels[0].toy_kernel.provider: unknown provider of toy_kernel: got 'hre' (did you mean 'here'?); allowed: here, there"),
        ("sweeps.0.kernels", [{"toy_kernel": {"provider": ["here", "there"]}}], "sweeps[0].kernels[0].toy_kernel.provider: unknown provider of toy_kernel: got a list; allowed: here, there"),
        ("sweeps.0.kernels", [{"toy_plain": {"block": 1}}], "sweeps[0].kernels[0].toy_plain.block: unknown key 'block'; allowed: none"),
        ("sweeps.0.kernels", [{"toy_kernel": {"copy": "NO"}}], "sweeps[0].kernels[0].toy_kernel.copy: got 'NO'; allowed: true or false"),
        ("sweeps.0.kernels", [{"toy_kernel": {"stages": True}}], "sweeps[0].kernels[0].toy_kernel.stages: got true; allowed: 1, 2, 4"),
        ("sweeps.0.kernels", [{"toy_kernel": {"stages": 3}}], "sweeps[0].kernels[0].toy_kernel.stages: got 3; allowed: 1, 2, 4"),
        ("sweeps.0.kernels", [{"toy_kernel": {"ratio": 1.5}}], "sweeps[0].kernels[0].toy_kernel.ratio: got 1.5; allowed: at most 1"),
        ("sweeps.0.kernels", [{"toy_kernel": {"tiles": [64, 4]}}], "sweeps[0].kernels[0].toy_kernel.tiles[1]: got 4; allowed: at least 8"),
        ("sweeps.0.kernels", [{"toy_kernel": {"tiles": 64}}], "sweeps[0].kernels[0].toy_kernel.tiles: got 64; allowed: a list"),
        ("sweeps.0.kernels", [{"toy_kernel": {"block": "8k"}}], "sweeps[0].kernels[0].toy_kernel.block: got '8k': unknown suffix 'k'; write 8K; allowed: a positive integer, or one with the suffix K (1024) or M (1048576) such as 64K, 1.5K, 1M"),
        ("sweeps.0.kernels", [{"toy_kernel": {"env": ["A=1"]}}], "sweeps[0].kernels[0].toy_kernel.env: got a list; allowed: a mapping from variable to text"),
        ("sweeps.0.kernels", [{"toy_kernel": {"env": {"A": 8}}}], 'sweeps[0].kernels[0].toy_kernel.env.A: got 8; allowed: text; write it in quotes: "8"'),
        ("sweeps.0.kernels", [{"toy_kernel": {"env": {"A": True}}}], 'sweeps[0].kernels[0].toy_kernel.env.A: got true; allowed: text; write it in quotes: "true"'),
        ("sweeps.0.kernels", [{"toy_kernel": {"env": {"A": None}}}], "sweeps[0].kernels[0].toy_kernel.env.A: got null; allowed: text"),
        ("sweeps.0.kernels", [{"toy_kernel": {"env": {"A=B": "1"}}}], "sweeps[0].kernels[0].toy_kernel.env.A=B: got 'A=B'; allowed: a variable's name: letters, digits and '_', no digit first"),
        ("sweeps.0.kernels", [{"toy_kernel": {"env": {"RANK": "1"}}}], "sweeps[0].kernels[0].toy_kernel.env.RANK: RANK is set by the launcher of a job; leave it out"),
        ("sweeps.1.cp_size", 0, "sweeps[1].cp_size: got 0; allowed: a number of ranks, 1 or more"),
        ("sweeps.1.cp_size", [8, True], "sweeps[1].cp_size[1]: got true; allowed: a number of ranks, 1 or more"),
        ("sweeps.1.cp_size", [8, 8], "sweeps[1].cp_size[1]: 8 is given twice"),
        ("sweeps.1.strategies", ["toy_ring"], "sweeps[1].strategies[0].kernel: is missing: toy_ring needs a kernel; allowed: "),
        ("sweeps.1.strategies", [{"toy_ring": {"kernel": "toy_plane"}}], "sweeps[1].strategies[0].toy_ring.kernel: unknown kernel: got 'toy_plane' (did you mean 'toy_plain'?); allowed: "),
        ("sweeps.1.strategies", [{"toy_bound": {"kernel": "toy_plain"}}], "sweeps[1].strategies[0].toy_bound.kernel: toy_bound does not run toy_plain; allowed: toy_kernel"),
        ("sweeps.1.strategies", [{"toy_ring": {"kernel": "toy_kernel", "backend": "X"}}], "sweeps[1].strategies[0].toy_ring.backend: got 'X'; allowed: FAST, SLOW"),
        ("sweeps.1.strategies", [{"toy_ring": {"kernel": {"toy_kernel": {"blok": 1}}}}], "sweeps[1].strategies[0].toy_ring.kernel.toy_kernel.blok: unknown key 'blok' (did you mean 'block'?); allowed: backend, block, stages, ratio, tiles, copy, label"),
        ("sweeps.1.strategies", [{"toy_ring": {"kernel": {"toy_kernel": {"env": {"A": "1"}}}}}], "sweeps[1].strategies[0].toy_ring.kernel.toy_kernel.env: write env beside kernel, not inside"),
        ("sweeps.1.strategies", [{"toy_ring": {"kernel": {"toy_kernel": {"backend": "FAST"}}, "backend": "SLOW"}}], "sweeps[1].strategies[0].toy_ring.kernel.toy_kernel.backend: write backend beside kernel, not inside"),
        ("sweeps.1.strategies", [{"toy_ring": {"kernel": "toy_plain", "degre": 2}}], "sweeps[1].strategies[0].toy_ring.degre: unknown key 'degre' (did you mean 'degree'?); allowed: degree, window"),
        ("sweeps.0.exclude", {"masks": "full"}, "sweeps[0].exclude: got a mapping; allowed: a list of mappings"),
        ("sweeps.0.exclude", [{}], "sweeps[0].exclude[0]: is empty; allowed: a mapping with some of masks, seqlen, passes, kernels"),
        ("sweeps.0.exclude", [{"mask": "full"}], "sweeps[0].exclude[0].mask: unknown key 'mask' (did you mean 'masks'?); allowed: masks, seqlen, passes, kernels"),
        ("sweeps.0.exclude", [{"cp_size": 2}], "sweeps[0].exclude[0].cp_size: unknown key 'cp_size'; allowed: masks, seqlen, passes, kernels"),
        ("sweeps.0.exclude", [{"seqlen": []}], "sweeps[0].exclude[0].seqlen: is empty; allowed: one value or more"),
        ("sweeps.0.exclude", [{"seqlen": "4K"}], "sweeps[0].exclude[0].seqlen: excludes no case: 4096 is not among this sweep's seqlen"),
        ("sweeps.0.exclude", [{"passes": "fwd_bwd"}], "sweeps[0].exclude[0].passes: excludes no case: fwd_bwd is not among this sweep's passes"),
        ("sweeps.0.exclude", [{"masks": "varlen_full"}], "sweeps[0].exclude[0].masks: excludes no case: varlen_full is not among this sweep's masks"),
        ("sweeps.0.exclude", [{"masks": "fulll"}], "sweeps[0].exclude[0].masks: unknown mask: got 'fulll' (did you mean 'full'?); allowed: "),
        ("sweeps.0.exclude", [{"kernels": {"toy_kernel": {"backend": "FAST"}}}], "sweeps[0].exclude[0].kernels: excludes no case: toy_kernel: {backend: 'FAST'} is not among this sweep's kernels"),
        ("sweeps.0.exclude", [{"kernels": {"toy_kernel": {"blok": 1}}}], "sweeps[0].exclude[0].kernels.toy_kernel.blok: unknown key 'blok' (did you mean 'block'?); allowed: backend, block, stages, ratio, tiles, copy, label"),
        ("sweeps.0.exclude", [{"masks": "full"}, {"masks": ["full"]}], "sweeps[0].exclude[1]: is given twice"),
        ("sweeps.0.exclude", [{"masks": ["full", "causal"]}], "sweeps[0].exclude: leaves no case of this sweep"),
        ("sweeps.0.exclude", [{"masks": "full"}, {"masks": "causal", "passes": ["fwd", "bwd"]}], "sweeps[0].exclude: leaves no case of this sweep"),
    ],
)  # fmt: skip
def test_one_fault_is_one_problem(path, value, problem):
    found = problems(changed(path, value))
    assert len(found) == 1, found
    assert found[0].startswith(problem) if problem.endswith("allowed: ") else found[0] == problem


@pytest.mark.parametrize(("num_heads_q", "num_heads_kv"), [(40, 16), (33, 2), (3, 2), (28, 8)])
def test_every_key_value_head_serves_as_many_query_heads(num_heads_q, num_heads_kv):
    spec = changed("shape", {"num_heads_q": num_heads_q, "num_heads_kv": num_heads_kv, "head_dim": 64})
    rest = num_heads_q % num_heads_kv
    allowed = f"a divisor of num_heads_q ({num_heads_q} % {num_heads_kv} = {rest})"
    assert problems(spec) == [f"shape.num_heads_kv: got {num_heads_kv}; allowed: {allowed}"]


@pytest.mark.parametrize("value", [None, [], "text", 5, [1, 2]])
def test_what_is_no_mapping_is_no_spec(value):
    assert problems(value)[0].endswith(
        "; allowed: a mapping with attnspec, name, description, runner, seed, shape, data, sweeps, measure"
    )


def test_all_faults_come_at_once():
    spec = changed("sweeps.0.kernels", {"toy_kernel": {"blok": 1, "backend": "X", "env": {"A": 1}, "provider": "no"}})
    spec["seed"] = -1
    spec["shape"] = {"head_dim": 0}
    spec["sweeps"][1]["cp_size"] = [0, -1]
    spec["sweeps"].append({"level": "nothing"})
    assert [text.partition(": ")[0] for text in problems(spec)] == [
        "seed",
        "shape.num_heads_q",
        "shape.num_heads_kv",
        "shape.head_dim",
        "sweeps[0].kernels",
        "sweeps[0].kernels.toy_kernel.env.A",
        "sweeps[0].kernels.toy_kernel.provider",
        "sweeps[0].kernels.toy_kernel.backend",
        "sweeps[0].kernels.toy_kernel.blok",
        "sweeps[1].cp_size[0]",
        "sweeps[1].cp_size[1]",
        "sweeps[2].level",
    ]


def test_the_same_sweep_twice_is_refused():
    spec = copy.deepcopy(BASE)
    spec["sweeps"].append({**spec["sweeps"][0], "seqlen": [1024, "2K"]})
    assert problems(spec) == ["sweeps[2]: is given twice: the same as sweep 0"]


def test_a_kernel_may_be_asked_in_several_ways():
    spec = Spec.model_validate(
        changed(
            "sweeps.0.kernels",
            [
                "toy_kernel",
                {"toy_kernel": {"backend": "FAST"}},
                {"toy_kernel": {"backend": "FAST", "env": {"B": "08"}}},
            ],
        )
    )
    items = spec.sweeps[0].kernels
    assert [item.implementation.backend for item in items] == [None, "FAST", "FAST"]
    assert [dict(item.env) for item in items] == [{}, {}, {"B": "08"}]
    assert all("backend" not in item.implementation.kernel_params for item in items)


def test_a_strategys_kernel_takes_settings_inside_and_beside():
    inside = {"toy_ring": {"kernel": {"toy_kernel": {"block": "1K", "backend": "FAST"}}, "degree": 2}}
    beside = {"toy_ring": {"degree": 2, "kernel": {"toy_kernel": {"block": 1024}}, "backend": "FAST"}}
    one, other = (
        Spec.model_validate(changed("sweeps.1.strategies", [item])).sweeps[1].strategies[0] for item in (inside, beside)
    )
    assert one == other
    assert one.implementation.kernel_params["block"] == 1024
    assert one.implementation.backend == "FAST"
    assert one.implementation.strategy_params == {"degree": 2, "window": 1}


def test_excludes_take_out_exactly_what_they_name():
    kernels = ["toy_plain", {"toy_kernel": {"backend": "FAST"}}, {"toy_kernel": {"backend": "SLOW", "block": 256}}]
    spec = changed("sweeps.0.kernels", kernels)
    spec["sweeps"][0]["exclude"] = [
        {"kernels": {"toy_kernel": {"block": 256}}, "seqlen": ["2K"]},
        {"kernels": "toy_plain", "masks": "full", "passes": ["bwd"]},
    ]
    sweep = Spec.model_validate(spec).sweeps[0]
    left = [
        (mask.name, seqlen, pass_, item.implementation.backend or "plain")
        for mask in sweep.masks
        for seqlen in sweep.seqlen
        for pass_ in sweep.passes
        for item in sweep.kernels
        if not sweep.excludes(mask=mask, seqlen=seqlen, pass_=pass_, item=item)
    ]
    assert len(left) == 2 * 2 * 2 * 3 - 4 - 2
    assert ("full", 2048, "fwd", "SLOW") not in left
    assert ("full", 1024, "fwd", "SLOW") in left
    assert ("full", 1024, "bwd", "plain") not in left
    assert ("causal", 1024, "bwd", "plain") in left


def test_distributed_excludes_know_strategy_kernel_and_degree():
    strategies = [
        {"toy_ring": {"kernel": "toy_plain", "window": 1}},
        {"toy_ring": {"kernel": "toy_plain", "window": 2}},
        {"toy_ring": {"kernel": "toy_kernel"}},
    ]
    spec = changed("sweeps.1.strategies", strategies)
    spec["sweeps"][1]["exclude"] = [
        {"strategies": {"toy_ring": {"kernel": "toy_plain", "window": 2}}, "cp_size": 2},
        {"strategies": {"toy_ring": {"kernel": "toy_kernel"}}, "seqlen_per_rank": "1K", "passes": "bwd"},
    ]
    sweep = Spec.model_validate(spec).sweeps[1]
    left = [
        (cp_size, pass_, number)
        for cp_size in sweep.cp_size
        for pass_ in sweep.passes
        for number, item in enumerate(sweep.strategies)
        if not sweep.excludes(mask=sweep.masks[0], cp_size=cp_size, seqlen_per_rank=1024, pass_=pass_, item=item)
    ]
    assert left == [(2, "fwd", 0), (2, "fwd", 2), (2, "bwd", 0)] + [(4, "fwd", n) for n in (0, 1, 2)] + [
        (4, "bwd", 0),
        (4, "bwd", 1),
    ]


def test_canonical_form_is_a_spec_and_the_same_one():
    spec = Spec.model_validate(changed("sweeps.0.exclude", [{"kernels": "toy_plain", "seqlen": "2K"}]))
    again = Spec.model_validate(spec.canonical())
    assert again == spec
    assert again.canonical() == spec.canonical()


def test_specs_are_made_from_their_own_parts():
    spec = Spec.model_validate(BASE)
    again = Spec(attnspec=1, name="small", shape=spec.shape, data=spec.data, sweeps=spec.sweeps, measure=spec.measure)
    assert again == spec


def test_specs_are_frozen():
    spec = Spec.model_validate(BASE)
    with pytest.raises(ValidationError, match="frozen"):
        spec.seed = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.shape.batch = 2


def test_sizes_that_overflow_the_flops_column_are_refused() -> None:
    shape = {"num_heads_q": 2**31 - 1, "num_heads_kv": 1}
    allowed = 2**48 // (2**31 - 1)
    with pytest.raises(ValidationError) as caught:
        ShapeSection.model_validate({**shape, "head_dim": allowed + 1})
    (finding,) = findings_of(caught.value)
    assert finding.message == (f"got {allowed + 1}; allowed: at most {allowed} (batch x num_heads_q is {2**31 - 1})")
    largest = ShapeSection.model_validate({**shape, "head_dim": allowed})
    flops = attention_flops(2**63 - 1, 1, largest.num_heads_q, largest.head_dim, "fwd_bwd")
    assert flops < 10**38
