"""Every shipped spec plans on a machine without torch and without any attention library."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from attnspec import plugins
from attnspec.resources import shipped

BLOCKED = (
    "torch",
    "triton",
    "flash_attn",
    "flash_attn_interface",
    "xformers",
    "transformer_engine",
    "cudnn",
    "magi_attention",
)
PLAN_ALL = f"""
import importlib.abc, json, os, sys
from pathlib import Path

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in {BLOCKED!r}:
            raise ImportError(f"{{name}} is blocked")
        return None

sys.meta_path.insert(0, Blocked())
from attnspec import compile_plan, load_spec
from attnspec.launch.runner_profile import load_runner, search_folders
from attnspec.plan.expect import expect
from attnspec.plan.picture import draw_stages

said = {{}}
for file in sys.argv[1:]:
    spec = load_spec(file)
    runner = load_runner(spec.runner, search_folders(cwd=Path.cwd(), environ=os.environ))
    plan = compile_plan(spec, device=runner.expected_device())
    expect(plan, tflops=None)
    assert draw_stages(plan).startswith("<svg")
    said[spec.name] = [len(plan.cases), len(plan.unsupported), len(plan.jobs), sorted(plan.graph.nodes)[0]]
assert not [name for name in sys.modules if name.partition(".")[0] in {BLOCKED!r}]
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def planned():
    files = sorted(map(str, shipped("specs").glob("*.yaml")))
    done = subprocess.run([sys.executable, "-c", PLAN_ALL, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_shipped_spec_plans(planned):
    assert set(planned) >= {"quickstart", "quickstart_distributed"} | {
        f"{device}_{level}" for device in ("h100", "h200", "b200") for level in ("kernel", "distributed")
    }
    assert all(cases > unsupported for cases, unsupported, *_ in planned.values())


@pytest.mark.parametrize(
    ("name", "cases"),
    [
        ("h100_kernel", 6 * 7 * 2 * 7),  # masks, lengths, passes, kernels of the page
        ("b200_kernel", 6 * 7 * 2 * 6 - 2 * 7),
        ("h100_distributed", 4 * 4 * 2 * 8),  # masks, cp sizes, passes, strategies of the page
        ("b200_distributed", 4 * 4 * 2 * 7),
    ],
)
def test_the_published_matrices_have_the_pages_size(planned, name, cases):
    assert planned[name][0] == cases


def test_every_plugin_loads_without_torch():
    listed = "; ".join(
        f"plugins.load({kind!r}, {name!r})"
        for kind in ("kernels", "masks", "strategies")
        for name in plugins.names(kind)
    )
    code = PLAN_ALL.split("from attnspec import")[0] + f"from attnspec import plugins; {listed}; print('fine')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "fine\n", done.stderr
