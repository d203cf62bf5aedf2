"""The conditions of a run against those of now: every difference is named, and nothing else is."""

from __future__ import annotations

import dataclasses
import json

import pytest

from attnspec.errors import InputError
from attnspec.launch.recorded import (
    Conditions,
    drift,
    present_conditions,
    recorded_conditions,
    recorded_runner,
    workers_drift,
)
from attnspec.launch.runner_profile import load_runner, runner_names
from attnspec.resources import shipped

SHIPPED = [shipped("runners")]
H100 = {"model": "NVIDIA H100 80GB HBM3", "capability": [9, 0]}
BEFORE = Conditions(
    code=("a" * 64,),
    python="3.12.1",
    images={"hopper": {"image_id": "sha256:1", "digest": "sha256:2"}},
    packages={"torch": "2.11.0", "flash-attn-4": "4.0.0b36"},
    driver="570.1",
    devices=(H100, H100),
    host={"machine": "x86_64", "processor": "p", "num_cpus": 8},
    variables={"NCCL_ALGO": "Ring"},
)


@pytest.mark.parametrize(
    ("changed", "lines"),
    [
        ({}, []),
        ({"packages": {**BEFORE.packages, "pytest": "9"}}, []),
        ({"code": ("a" * 64, "b" * 64)}, [f"attnspec's code: {'a' * 12} -> {'a' * 12}, {'b' * 12}"]),
        ({"code": ("b" * 64,)}, [f"attnspec's code: {'a' * 12} -> {'b' * 12}"]),
        ({"python": "3.11.2"}, ["python: 3.12.1 -> 3.11.2"]),
        (
            {"packages": {"torch": "2.13.0"}},
            ["package flash-attn-4: 4.0.0b36 -> none", "package torch: 2.11.0 -> 2.13.0"],
        ),
        ({"driver": None}, ["driver: 570.1 -> none"]),
        ({"variables": {}}, ["variable NCCL_ALGO: Ring -> unset"]),
        (
            {"variables": {"NCCL_ALGO": "Tree", "OMP_NUM_THREADS": "4"}},
            ["variable NCCL_ALGO: Ring -> Tree", "variable OMP_NUM_THREADS: unset -> 4"],
        ),
        ({"devices": (H100,)}, ["devices: 2 x NVIDIA H100 80GB HBM3 -> 1 x NVIDIA H100 80GB HBM3"]),
        ({"devices": ()}, ["devices: 2 x NVIDIA H100 80GB HBM3 -> none"]),
        ({"host": {**BEFORE.host, "num_cpus": 16}}, ["host num_cpus: 8 -> 16"]),
        ({"images": {}}, ["image hopper: image ID: sha256:1 -> none", "image hopper: digest: sha256:2 -> none"]),
        (
            {"images": {"hopper": {"image_id": "sha256:3", "digest": "sha256:2"}}},
            ["image hopper: image ID: sha256:1 -> sha256:3"],
        ),
    ],
)
def test_drift(changed, lines):
    assert drift(BEFORE, dataclasses.replace(BEFORE, **changed)) == lines


def test_variables_that_an_earlier_version_did_not_record_are_not_compared():
    now = dataclasses.replace(BEFORE, variables={"NCCL_ALGO": "Tree"})
    assert drift(dataclasses.replace(BEFORE, variables=None), now) == []


def test_variables_of_workers_are_compared_where_both_runs_tell_them():
    def run(*seen):
        facts = {"driver": "1", "device": "d", "versions": {}}
        return {"workers": {"environment": {str(one): {**facts, **one} for one in seen}}}

    old, new = {"variables": {"NCCL_ALGO": "Ring"}}, {"variables": {"NCCL_ALGO": "Tree"}}
    assert workers_drift(run(old), run(new)) == ["variable NCCL_ALGO: Ring -> Tree"]
    assert workers_drift(run(old), run(old, new)) == ["variable NCCL_ALGO: Ring -> Ring, Tree"]
    assert workers_drift(run(old), run({"variables": {}})) == ["variable NCCL_ALGO: Ring -> unset"]
    assert workers_drift(run({}), run(new)) == []


def test_machines_that_nobody_has_seen_are_not_compared():
    now = Conditions(code=("b" * 64,), images={"hopper": {"image_id": "sha256:1", "digest": "sha256:2"}})
    assert drift(BEFORE, now, seen=False) == [f"attnspec's code: {'a' * 12} -> {'b' * 12}"]


TREE = {"NCCL_ALGO": "Tree"}


def provenance(**found):
    return {
        "code_sha256": "a",
        "images": {},
        "host": {"machine": "m", "processor": "p", "num_cpus": 2, "name": "n"},
        "found": {
            "python": "3.11",
            "versions": {"torch": "2.13.0"},
            "packages": {"torch": "2.13.0", "numpy": "2", "flash-attn-4": "4"},
            "driver": None,
            "devices": [],
            "variables": {},
            **found,
        },
    }


def test_what_workers_reported_counts_before_what_the_host_saw():
    held = provenance()
    assert recorded_conditions(held).packages == {"torch": "2.13.0"}
    held["workers"] = {
        "environment": {"a": {"versions": {"flash_attn.4": "3"}}, "b": {"versions": {"torch": "2.13.0"}}}
    }
    assert recorded_conditions(held).packages == {"flash-attn-4": "3", "torch": "2.13.0"}
    assert drift(recorded_conditions(held), present_conditions(provenance())) == ["package flash-attn-4: 3 -> 4"]


def test_a_run_of_several_states_of_the_code_was_made_under_all_of_them():
    held = provenance()
    held["workers"] = {"code": {"job-rank0-1": {"code_sha256": "b"}, "job-rank0-2": {"code_sha256": "a"}}}
    assert drift(recorded_conditions(held), present_conditions(provenance())) == ["attnspec's code: b, a -> a"]


@pytest.mark.parametrize(
    ("attempts", "now", "lines"),
    [
        ([TREE], TREE, []),
        ([TREE], {}, ["variable NCCL_ALGO: Tree -> unset"]),  # whatever the last run had
        ([{}], TREE, ["variable NCCL_ALGO: unset -> Tree"]),
        ([{}], {}, []),
        ([TREE, TREE], TREE, []),
        ([TREE, {}], TREE, ["variable NCCL_ALGO: mixed in the run itself, whose attempts had Tree and unset -> Tree"]),
        ([TREE, {}], {}, ["variable NCCL_ALGO: mixed in the run itself, whose attempts had Tree and unset -> unset"]),
        ([{**TREE, "OMP_NUM_THREADS": "1"}], TREE, []),  # set by a launcher
        ([], {}, []),  # no samples: the last run counts
        ([], TREE, ["variable NCCL_ALGO: unset -> Tree"]),
    ],
)
def test_variables_are_those_of_the_attempts_whose_samples_stand(attempts, now, lines):
    held = provenance(variables={})
    held["runs"] = [{}, {"variables": TREE}, {"variables": {}}]
    seen = {f"job-rank0-{number}": {"env": {}, "variables": one} for number, one in enumerate(attempts)}
    held["workers"] = {"variables": seen}
    assert drift(recorded_conditions(held), present_conditions(provenance(variables=now))) == lines


def test_variables_that_case_or_runner_name_are_not_the_hosts():
    held = provenance(variables=TREE)
    held["runs"] = [{"variables": TREE}]
    own = {"env": {"NCCL_ALGO": "Ring"}, "variables": {"NCCL_ALGO": "Ring"}}
    held["workers"] = {"variables": {"a-rank0-1": own, "b-rank0-1": {"env": {}, "variables": TREE}}}
    assert drift(recorded_conditions(held), present_conditions(provenance(variables=TREE))) == []


def test_variables_of_the_host_do_not_count_in_containers():
    held, now = provenance(variables={}), provenance(variables={})
    held["images"] = now["images"] = {"cpu": {"image_id": "sha256:1", "digest": None}}
    held["runs"] = [{"variables": TREE}, {"variables": {}}]
    held["workers"] = {"variables": {"a-rank0-1": {"env": {}, "variables": TREE}}}
    assert drift(recorded_conditions(held), present_conditions(now)) == []


def test_a_provenance_that_tells_too_little():
    held = provenance()
    del held["images"]
    with pytest.raises(InputError, match=r"provenance.json has no 'images'; an older attnspec wrote it"):
        recorded_conditions(held)


@pytest.mark.parametrize("name", runner_names(SHIPPED))
def test_every_runner_comes_back_from_a_provenance(name):
    runner = load_runner(name, SHIPPED)
    held = json.loads(json.dumps({"runner": runner.model_dump(mode="json")}))
    assert recorded_runner(held) == runner


@pytest.mark.parametrize("container", ["podman", "pyxis", "apptainer"])
def test_an_image_in_no_registry_is_had_again_by_its_id_where_nodes_may_hold_it(container):
    from attnspec.errors import EnvironmentMissingError
    from attnspec.images.reference import parse_image
    from attnspec.launch.container_place import quiet
    from attnspec.launch.rerun import _again
    from attnspec.launch.runner_profile import Profile, Runner

    profile = Profile.model_validate({"launcher": "slurm", "image": "cpu", "slurm": {"container": container}})
    runner = Runner(**dict(profile), name="site", file="site.yaml")
    facts = {
        "image_id": "sha256:1",
        "digest": None,
        "repository": None,
        "python": "python3",
        "pinned": True,
        "packages": None,
    }
    if container == "podman":
        assert _again(runner, parse_image("cpu").text, facts, quiet).run_as == "sha256:1"
        return
    with pytest.raises(EnvironmentMissingError, match="recorded no digest to pull it by"):
        _again(runner, "cpu", facts, quiet)
